import asyncio
import threading
from contextlib import ExitStack

from forebay_worker.tasks.watches import Watches


async def test_only_those_who_watch_a_changed_key_are_woken_in_the_loop_of_theirs():
    watches = Watches()
    woken: list[tuple[str, int]] = []
    done = asyncio.Event()

    def note(name: str) -> None:
        woken.append((name, threading.get_ident()))
        if name == "last":
            done.set()

    with (
        watches.watching(b"a", lambda: note("a")),
        watches.watching(b"b", lambda: note("b")),
        watches.watching(b"last", lambda: note("last")),
    ):
        await asyncio.to_thread(watches.wake, [b"a", b"other"])
        await asyncio.to_thread(watches.wake, [b"last"])
        await asyncio.wait_for(done.wait(), 5)
    assert woken == [("a", threading.get_ident()), ("last", threading.get_ident())]


async def test_a_key_watched_by_many_wakes_all_with_turns_for_others_in_between():
    watches = Watches()
    woken: list[int] = []
    turns: list[int] = []

    with _all(watches, [lambda i=i: woken.append(i) for i in range(500)]):
        watches.wake([b"hot"])
        async with asyncio.timeout(5):
            while len(woken) < 500:
                turns.append(len(woken))
                await asyncio.sleep(0)
    assert sorted(woken) == list(range(500))
    assert len(set(turns)) > 3


async def test_nobody_is_woken_any_more_after_the_watch():
    watches = Watches()
    woken: list[str] = []
    with watches.watching(b"a", lambda: woken.append("a")):
        pass
    watches.wake([b"a"])
    watches.wake_all()
    await asyncio.sleep(0)
    assert woken == []


def _all(watches, wakers):
    stack = ExitStack()
    for wake in wakers:
        stack.enter_context(watches.watching(b"hot", wake))
    return stack
