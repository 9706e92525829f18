"""Reads from disk, in threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from forebay_worker.state.rocksdb import NotInMemory

_THREADS = 16
"""Solid-state disks are fastest with some reads at once; RocksDB leaves Python's lock to others meanwhile."""


class DiskReads:
    """Brings what reads need into the block cache, from which they are then answered like all others.

    Why not the value itself: role, position and lag are those of the moment at which the answer is made.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By store."""
        self._pool = ThreadPoolExecutor(_THREADS, "forebay-disk-read")

    def begin(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Have a key's block read, and ``then`` called on the event loop, whatever comes of it."""
        self.counts[missing.store.name] += 1
        self._pool.submit(_read, missing, asyncio.get_running_loop(), then)

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _read(missing: NotInMemory, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
    # Damage, or that the store was closed, is found and said by the read that follows.
    with contextlib.suppress(Exception):
        missing.store.get_many([missing.key])
    # The loop may have ended.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(then)
