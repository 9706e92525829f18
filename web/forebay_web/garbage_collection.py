"""When a serving process collects garbage: while one collects, no read is answered."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable

_YOUNG_OBJECTS = 5_000
"""What is searched at once: it takes half a millisecond."""
_NEVER = 1 << 30
_INTERVAL_S = 0.05
_GROWTH = 4.0
_MEMORY_EVERY = 20
"""Checks between two looks at the process's memory."""
_MEMORY_GROWTH = 2.0
_LEAST_GROWTH_BYTES = 128 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The memory that this process takes; 0 where no kernel tells it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


class GarbageCollection:
    """Searches what is new, and all that has lasted only once there is four times as much as there was least of.

    Or once the process takes twice the memory: a few objects may hold much.

    Python searches what has lasted again and again while it grows, and takes long for that with many
    event streams. It counts what is new less what has gone, so that while all is being replaced it searches
    nothing for long, and then all at once. What has no cycles is freed at once in any case.
    """

    def __init__(
        self,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        collect: Callable[[], object] = gc.collect,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        self._blocks = blocks
        self._collect = collect
        self._memory = memory
        self._most_blocks = self._most_bytes = 0.0
        self._checks = 0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Never search what exists at this moment, and keep up from now on with what is new."""
        gc.freeze()
        if self._blocks():
            gc.set_threshold(_YOUNG_OBJECTS, _NEVER, _NEVER)
            self._set_limits()
            self._check_later(loop)

    def check(self) -> None:
        """Search what is new, or all if there is much more than after the last time."""
        blocks = self._blocks()
        self._checks += 1
        looks = self._checks % _MEMORY_EVERY == 0
        if blocks > self._most_blocks or (looks and self._memory() > self._most_bytes):
            gc.unfreeze()
            self._collect()
            self._set_limits()
        else:
            gc.collect(1)
            self._most_blocks = min(self._most_blocks, _GROWTH * blocks)
        gc.freeze()

    def _set_limits(self) -> None:
        memory_bytes = self._memory()
        self._most_blocks = _GROWTH * self._blocks()
        self._most_bytes = max(_MEMORY_GROWTH * memory_bytes, memory_bytes + _LEAST_GROWTH_BYTES)

    def _check_later(self, loop: asyncio.AbstractEventLoop) -> None:
        def check() -> None:
            self.check()
            self._check_later(loop)

        loop.call_later(_INTERVAL_S, check)
