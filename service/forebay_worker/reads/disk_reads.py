"""Reads from disk, in threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from forebay.event_loop_turns import in_turns
from forebay.state_store import StateStore
from forebay_worker.state.rocksdb import NotInMemory, RocksDbStore

log = logging.getLogger(__name__)

_THREADS = 16
"""Solid-state disks are fastest with some reads at once; RocksDB leaves Python's lock to others meanwhile."""
_MAX_KEYS_TOGETHER = 8
"""How many values a thread holds at once, of whatever size."""
_MAX_OF_A_BATCH = 64
"""How many keys of one batch wait before those of others."""
_PATIENCE_S = 0.001
"""How long a thread should take for what it reads together, and the longest that the rest waits for it: then
another thread reads too."""
_CHECK_INTERVAL_S = 1.0

_Waiting = tuple[NotInMemory, Callable[[], None]]
"""What is not in memory, and what is called once it is."""


class DiskReads:
    """Brings what reads need into the block cache, from which they are then answered like all others.

    Why not the value itself: role, position and lag are those of the moment at which the answer is made.

    To wake a thread, and to be woken by it, takes longer than a read of a fast disk, because all share Python's
    lock. So one thread reads what came together, and then what came meanwhile. Another is woken only for what
    would have to wait for longer than that.
    """

    def __init__(self, cache_is_full: Callable[[], bool]) -> None:
        self.counts: Counter[str] = Counter()
        """Keys by store."""
        self._pool = ThreadPoolExecutor(_THREADS, "forebay-disk-read")
        self._waiting: deque[_Waiting] = deque()
        self._threads = 0
        """How many read or are about to."""
        self._is_due = False
        """Whether another thread will be woken for what waits then."""
        self._seconds_a_key = _PATIENCE_S
        """How long a key took lately."""
        self._cache_is_full = cache_is_full
        self._checked_s = float("-inf")
        self._are_likely = False

    def are_likely(self) -> bool:
        """Whether memory is asked first, which takes a tenth of a read: not while all that was read is cached."""
        now_s = perf_counter()
        if now_s >= self._checked_s + _CHECK_INTERVAL_S:
            self._checked_s, self._are_likely = now_s, self._cache_is_full()
        return self._are_likely

    def begin(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Have a key's block read, and ``then`` called on the event loop, whatever comes of it."""
        self.counts[missing.store.name] += 1
        self._waiting.append((missing, then))
        loop = asyncio.get_running_loop()
        if not self._threads:
            # Once all that this turn of the event loop lacks is known.
            self._threads += 1
            loop.call_soon(self._start, loop)
        elif not self._is_due:
            self._is_due = True
            loop.call_later(_PATIENCE_S, self._add_thread, loop)

    def _add_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have one more thread read what still waits."""
        self._is_due = False
        if not self._waiting:
            return
        if self._threads < _THREADS:
            self._threads += 1
            self._start(loop)
        self._is_due = True
        loop.call_later(_PATIENCE_S, self._add_thread, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._pool.submit(self._read, loop)
        except RuntimeError:
            # The worker stops: what is left is read in place.
            self._read(loop)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while some := self._next():
                began_s = perf_counter()
                try:
                    _read_blocks([missing for missing, _ in some])
                finally:
                    _tell(loop, _call, some)
                took_s = (perf_counter() - began_s) / len(some)
                self._seconds_a_key += (took_s - self._seconds_a_key) / 8
        finally:
            _tell(loop, self._ended, loop)

    def _next(self) -> list[_Waiting]:
        """The next keys that a thread reads together: one after the other, so that of a slow disk it reads few."""
        together = _PATIENCE_S / max(self._seconds_a_key, _PATIENCE_S / _MAX_KEYS_TOGETHER)
        some: list[_Waiting] = []
        with contextlib.suppress(IndexError):
            while len(some) < together:
                some.append(self._waiting.popleft())
        return some

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        # One that could not be started may run all the same, later.
        self._threads = max(0, self._threads - 1)
        if self._waiting and not self._threads:
            self._threads += 1
            self._start(loop)

    async def bring(self, sought: Iterable[tuple[StateStore, bytes]]) -> None:
        """Return once memory knows of the stored keys that reads begin at, in their stores; of one that is
        cancelled, no more is read."""
        if not self.are_likely():
            return
        missing = [one for one in await in_turns(not_in_memory(*at) for at in sought) if one is not None]
        most = min(_MAX_OF_A_BATCH, len(missing))
        places = asyncio.Semaphore(most)
        for one in missing:
            await places.acquire()
            self.begin(one, places.release)
        # All are free again once all is read.
        for _ in range(most):
            await places.acquire()

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    # The loop may have ended.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def _call(some: list[_Waiting]) -> None:
    for _, then in some:
        try:
            then()
        except Exception:
            log.exception("what followed a read from disk failed")


def not_in_memory(store: StateStore, key: bytes) -> NotInMemory | None:
    """What must be read first, if anything must; errors are those of the read that follows."""
    try:
        if isinstance(store, RocksDbStore):
            store.get_from_memory(key)
    except NotInMemory as missing:
        return missing
    except Exception:
        return None
    return None


def _read_blocks(some: list[NotInMemory]) -> None:
    keys: defaultdict[RocksDbStore, list[bytes]] = defaultdict(list)
    for missing in some:
        keys[missing.store].append(missing.key)
    for store, of_store in keys.items():
        # Damage, or that the store was closed, is found and said by the read that follows.
        with contextlib.suppress(Exception):
            store.get_many(of_store)
