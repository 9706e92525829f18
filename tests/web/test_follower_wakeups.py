"""Followers are woken one in a turn of the loop, whether there is news or their time has come."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import uvloop

from forebay.clock import boot_ms
from forebay_web.follower_wakeups import FollowerTurns, follower_turns, wait_until

FOLLOWERS = 200
WITHIN_S = 20


class Turns:
    """How many followers worked in each turn of the loop."""

    def __init__(self) -> None:
        self.work = [0]
        self._counting = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.work.append(0)
            await asyncio.sleep(0)

    def end(self) -> None:
        self._counting.cancel()


async def work_of_turns(due_boot_ms: float, begin: Callable[[list[asyncio.Event]], object]) -> list[int]:
    """The work of each turn until all followers were woken."""
    turns, events = Turns(), [asyncio.Event() for _ in range(FOLLOWERS)]

    async def follow(woken: asyncio.Event) -> None:
        await wait_until(woken, due_boot_ms)
        turns.work[-1] += 1

    followers = [asyncio.ensure_future(follow(event)) for event in events]
    await asyncio.sleep(0)
    begin(events)
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*followers)
    turns.end()
    return turns.work


async def test_news_wake_one_in_a_turn():
    work = await work_of_turns(
        boot_ms() + 1e6, lambda events: follower_turns().add(*(event.set for event in events))
    )
    assert (sum(work), max(work)) == (FOLLOWERS, 1)


async def test_timers_that_are_due_together_wake_one_in_a_turn():
    """As all are once the process has been held up."""
    work = await work_of_turns(boot_ms() + 5, lambda _: time.sleep(0.02))
    assert (sum(work), max(work)) == (FOLLOWERS, 1)


async def test_each_is_woken_once_and_in_order():
    woken: list[int] = []
    turns, wakers = FollowerTurns(), [partial(woken.append, number) for number in range(20)]
    turns.add(*wakers[:10])
    async with asyncio.timeout(WITHIN_S):
        await turns.wake(wakers)
        assert woken == list(range(20))
        await turns.wake([])


async def test_rests_are_three_times_as_long_as_the_work(monkeypatch):
    """Each reading of the clock is a millisecond after the one before, but for a stop of an hour at last."""
    readings = iter([*range(20), 20, 3_600_000])
    rests_s: list[float] = []
    sleep = asyncio.sleep

    async def at_once(delay_s: float) -> None:
        rests_s.append(delay_s)
        await sleep(0)

    with monkeypatch.context() as patched:
        patched.setattr("forebay_web.follower_wakeups.boot_ms", lambda: next(readings))
        patched.setattr(asyncio, "sleep", at_once)
        await FollowerTurns().wake([partial(int, number) for number in range(84)])
        await sleep(0)
    assert [rest_s for rest_s in rests_s if rest_s] == [3 / 1000] * 10 + [30 / 1000]


async def test_one_that_fails_stops_no_other():
    turns, failed = FollowerTurns(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())
    async with asyncio.timeout(WITHIN_S):
        await turns.wake([partial(int, "x")])
    assert failed.is_set()


async def test_a_wait_leaves_no_timer():
    woken = asyncio.Event()
    woken.set()
    await wait_until(woken, boot_ms() + 1)
    woken.clear()
    last = asyncio.Event()
    async with asyncio.timeout(WITHIN_S):
        await wait_until(last, boot_ms() + 20)
    assert not woken.is_set()


def test_nobody_is_woken_a_millisecond_before_the_time():
    """On the loop of the servers, which rounds to milliseconds."""
    early: list[float] = []

    async def wait(number: int) -> None:
        due_boot_ms = boot_ms() + 5 + number / 37
        await wait_until(asyncio.Event(), due_boot_ms)
        early.append(due_boot_ms - boot_ms())

    async def all_wait() -> None:
        await asyncio.gather(*map(wait, range(300)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(all_wait())
    assert max(early) < 1
