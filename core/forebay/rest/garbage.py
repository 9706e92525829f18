"""When a serving process collects garbage: while one collects, no read is answered."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable

_YOUNG_OBJECTS = 5_000
"""What is looked through at once: it takes half a millisecond."""
_YOUNG_COLLECTIONS = 10
_NEVER = 1 << 30
_CHECK_S = 1.0
_GROWTH = 1.5


class GarbageCollection:
    """Collects all garbage only once memory has grown by half.

    Python does so once a quarter of the old objects is new, whether or not as many have gone. The timers and
    tasks of ten thousand event streams are replaced all the time, and each search through their objects takes a
    second. What has no cycles is freed at once in any case.
    """

    def __init__(
        self, blocks: Callable[[], int] = sys.getallocatedblocks, collect: Callable[[], object] = gc.collect
    ) -> None:
        self._blocks = blocks
        self._collect = collect
        self._most_blocks = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Never search what exists at this moment, and check from now on how much more there is."""
        gc.freeze()
        if self._blocks():
            gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _NEVER)
            self._note_blocks()
            self._check_later(loop)

    def check(self) -> None:
        """Collect all garbage if there is much more than after the last time."""
        if self._blocks() > self._most_blocks:
            self._collect()
            self._note_blocks()

    def _note_blocks(self) -> None:
        self._most_blocks = _GROWTH * self._blocks()

    def _check_later(self, loop: asyncio.AbstractEventLoop) -> None:
        def check() -> None:
            self.check()
            self._check_later(loop)

        loop.call_later(_CHECK_S, check)
