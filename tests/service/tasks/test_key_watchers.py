import asyncio
import threading
from contextlib import ExitStack

from forebay_worker.tasks.replica import KeyWatchers


async def test_only_a_changed_keys_watchers_wake():
    """They wake in their own event loop."""
    key_watchers = KeyWatchers()
    woken: list[tuple[str, int]] = []
    done = asyncio.Event()

    def note(name: str) -> None:
        woken.append((name, threading.get_ident()))
        if name == "last":
            done.set()

    with (
        key_watchers.watching(b"a", lambda: note("a")),
        key_watchers.watching(b"b", lambda: note("b")),
        key_watchers.watching(b"last", lambda: note("last")),
    ):
        await asyncio.to_thread(key_watchers.wake, [b"a", b"other"])
        await asyncio.to_thread(key_watchers.wake, [b"last"])
        await asyncio.wait_for(done.wait(), 5)
    assert woken == [("a", threading.get_ident()), ("last", threading.get_ident())]


async def test_who_watches_any_key_wakes_at_each_change():
    """A batch that changes no key, such as a heartbeat, is none."""
    key_watchers, woken = KeyWatchers(), asyncio.Event()
    with key_watchers.watching(None, woken.set):
        key_watchers.wake([])
        for _ in range(5):
            await asyncio.sleep(0)
        assert not woken.is_set()
        await asyncio.to_thread(key_watchers.wake, [b"a"])
        await asyncio.wait_for(woken.wait(), 5)


async def test_hot_keys_watchers_wake_in_several_turns():
    """Others have their turn in between."""
    key_watchers = KeyWatchers()
    woken: list[int] = []
    turns: list[int] = []

    with _all(key_watchers, [lambda i=i: woken.append(i) for i in range(500)]):
        key_watchers.wake([b"hot"])
        async with asyncio.timeout(5):
            while len(woken) < 500:
                turns.append(len(woken))
                await asyncio.sleep(0)
    assert sorted(woken) == list(range(500))
    assert len(set(turns)) > 3


async def test_nobody_is_woken_any_more_after_the_watch():
    key_watchers = KeyWatchers()
    woken: list[str] = []
    with key_watchers.watching(b"a", lambda: woken.append("a")):
        pass
    key_watchers.wake([b"a"])
    key_watchers.wake_all()
    await asyncio.sleep(0)
    assert woken == []


def _all(key_watchers, wakers):
    stack = ExitStack()
    for wake in wakers:
        stack.enter_context(key_watchers.watching(b"hot", wake))
    return stack
