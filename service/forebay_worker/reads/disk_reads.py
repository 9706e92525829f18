"""Reads from disk, in threads: the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from forebay.event_loop_turns import in_turns
from forebay.state_store import StateStore
from forebay_worker.state.rocksdb import NotInMemory, RocksDbStore

_THREADS = 16
"""Solid-state disks are fastest with some reads at once; RocksDB leaves Python's lock to others meanwhile."""
_KEYS_TOGETHER = 8
"""How many values a thread holds at once, of whatever size."""
_CHECK_INTERVAL_S = 1.0


class DiskReads:
    """Brings what reads need into the block cache, from which they are then answered like all others.

    Why not the value itself: role, position and lag are those of the moment at which the answer is made.
    """

    def __init__(self, cache_is_full: Callable[[], bool]) -> None:
        self.counts: Counter[str] = Counter()
        """Keys by store."""
        self._pool = ThreadPoolExecutor(_THREADS, "forebay-disk-read")
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
        loop = asyncio.get_running_loop()

        def read() -> None:
            _read_blocks(missing.store, [missing.key])
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(then)

        self._pool.submit(read)

    async def bring(self, sought: Iterable[tuple[StateStore, bytes]]) -> None:
        """Return once memory knows of the stored keys that reads begin at, in their stores."""
        if not self.are_likely():
            return
        missing: defaultdict[RocksDbStore, list[bytes]] = defaultdict(list)
        for one in await in_turns(not_in_memory(*at) for at in sought):
            if one is not None:
                missing[one.store].append(one.key)
        loop = asyncio.get_running_loop()
        reads = []
        for store, keys in missing.items():
            self.counts[store.name] += len(keys)
            for at in range(0, len(keys), _KEYS_TOGETHER):
                some = keys[at : at + _KEYS_TOGETHER]
                reads.append(loop.run_in_executor(self._pool, _read_blocks, store, some))
        # Those that are dropped when the worker stops are read by whoever needs them.
        await asyncio.gather(*reads, return_exceptions=True)

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


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


def _read_blocks(store: RocksDbStore, keys: list[bytes]) -> None:
    # Damage, or that the store was closed, is found and said by the read that follows.
    with contextlib.suppress(Exception):
        store.get_many(keys)
