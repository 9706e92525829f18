"""Thousands are woken a few at a time, whether there is news or their time has come."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import uvloop

from forebay.clock import boot_ms
from forebay_web.follower_wakeups import PacedWakes, paced_wakes

FOLLOWERS = 200
AT_ONCE = 8


class Turns:
    """How many followers worked in each turn of the loop."""

    def __init__(self) -> None:
        self.work: list[int] = []
        self._counting = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.work.append(0)
            await asyncio.sleep(0)

    def end(self) -> None:
        self._counting.cancel()

    async def follow(self, woken: asyncio.Event, done: Callable[[], None]) -> None:
        await woken.wait()
        self.work[-1] += 1
        done()


async def followed(begin: Callable[[PacedWakes, list[asyncio.Event]], object]) -> list[int]:
    """The work of each turn until all were woken."""
    turns, events = Turns(), [asyncio.Event() for _ in range(FOLLOWERS)]
    followers = [asyncio.ensure_future(turns.follow(event, lambda: None)) for event in events]
    await asyncio.sleep(0)
    begin(paced_wakes(), events)
    async with asyncio.timeout(20):
        await asyncio.gather(*followers)
    turns.end()
    return turns.work


async def test_news_wake_a_few_in_a_turn():
    work = await followed(lambda wakes, events: wakes.add(event.set for event in events))
    assert (sum(work), max(work)) == (FOLLOWERS, AT_ONCE)


async def test_timers_that_are_due_together_wake_a_few_in_a_turn():
    """As all are once the process has been held up."""

    def begin(wakes: PacedWakes, events: list[asyncio.Event]) -> None:
        for event in events:
            wakes.at(event.set, boot_ms() + 5)
        time.sleep(0.02)

    work = await followed(begin)
    assert (sum(work), max(work)) == (FOLLOWERS, AT_ONCE)


async def test_each_is_woken_once_in_a_round():
    woken: list[int] = []
    wakers = [partial(woken.append, number) for number in range(20)]
    wakes = PacedWakes()
    over = wakes.add(wakers)
    # The first turn has come: these belong to the next round, and once only.
    later = wakes.add(wakers + wakers)
    async with asyncio.timeout(20):
        await over.wait()
        assert sorted(woken[:20]) == list(range(20))
        assert not later.is_set()
        await later.wait()
    assert sorted(woken) == sorted([*range(20), *range(20)])


async def test_a_round_of_nobody_is_over_at_once():
    assert PacedWakes().add([]).is_set()


async def test_a_timer_can_be_cancelled():
    wakes, woken = PacedWakes(), asyncio.Event()
    wakes.at(woken.set, boot_ms() + 5).cancel()
    last = asyncio.Event()
    wakes.at(last.set, boot_ms() + 20)
    async with asyncio.timeout(20):
        await last.wait()
    assert not woken.is_set()


async def test_pauses_are_three_times_as_long_as_the_work(monkeypatch):
    """Each reading of the clock is a millisecond after the one before."""
    readings, pauses_s = iter(range(10_000)), []
    loop = asyncio.get_running_loop()
    wakes = PacedWakes(now_ms=lambda: next(readings))

    def at_once(delay_s: float, callback: Callable[..., object], *arguments: object) -> asyncio.Handle:
        pauses_s.append(delay_s)
        return loop.call_soon(callback, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", at_once)
        over = wakes.add([partial(int, number) for number in range(10 * AT_ONCE)])
        await over.wait()
    assert pauses_s == [3 / 1000] * 10


class Stopped:
    """A clock of a process that is stopped for an hour in each turn."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        self.now_ms += 3_600_000.0
        return self.now_ms


async def test_a_stop_of_the_process_makes_no_pause():
    async with asyncio.timeout(20):
        await PacedWakes(now_ms=Stopped()).add([partial(int, number) for number in range(2 * AT_ONCE)]).wait()


async def test_long_turns_of_others_keep_nobody_waiting(monkeypatch):
    """Where reads hold the loop for half a second each time, all are woken within some seconds."""
    now_ms, woken = [0.0], []
    wakes = PacedWakes(now_ms=lambda: now_ms[0])
    loop = asyncio.get_running_loop()

    def much_later(delay_s: float, callback: Callable[..., object], *arguments: object) -> asyncio.Handle:
        now_ms[0] += 500
        return loop.call_soon(callback, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", much_later)
        await wakes.add([partial(woken.append, number) for number in range(FOLLOWERS)]).wait()
    assert len(woken) == FOLLOWERS
    assert now_ms[0] <= 5_000


async def test_one_that_fails_stops_no_other():
    wakes, woken, failed = PacedWakes(), asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())
    wakes.at(partial(int, "x"), boot_ms())
    async with asyncio.timeout(20):
        await failed.wait()
        wakes.at(woken.set, boot_ms())
        await woken.wait()


async def test_nobody_is_woken_before_the_time():
    """On the loop of the servers, which rounds to milliseconds."""
    early: list[float] = []

    async def wait(number: int) -> None:
        woken, due_boot_ms = asyncio.Event(), boot_ms() + 5 + number / 37
        paced_wakes().at(woken.set, due_boot_ms)
        await woken.wait()
        if boot_ms() < due_boot_ms:
            early.append(due_boot_ms - boot_ms())

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(all_wait())

    async def all_wait() -> None:
        await asyncio.gather(*map(wait, range(300)))

    await asyncio.to_thread(run)
    assert not early
