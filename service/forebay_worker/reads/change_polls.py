"""Ticks at which polls look for changes: 20 a second, fewer if what they find takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from forebay.clock import boot_ms
from forebay_worker.tasks.recent_changes import RecentChanges

_TICK_MS = 50.0
"""Twenty values a second of a key are more than anyone can see."""
_PAUSE_BY_WORK = 3.0
"""Of the time of the process, polls take a quarter at most: the rest is for reads."""
_WOKEN_PER_TURN = 16

Seen = Sequence[tuple[RecentChanges, int]]
"""Replicas, each with the offset up to which its changes are known to a poll."""


class ChangeTicks:
    """Wakes the polls whose replicas have changed, all those of a tick together, so that they agree on offsets."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Seen] = {}
        self._next: asyncio.TimerHandle | None = None
        self._due_boot_ms = 0.0

    async def wait(self, seen: Seen, within_ms: float) -> None:
        """Wait for the next tick at which one of the replicas is further, or until the time is over."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = seen
        try:
            if self._next is None:
                self._schedule()
            async with asyncio.timeout(max(0.0, within_ms) / 1000):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(future, None)

    def _schedule(self) -> None:
        delay_s = max(0.0, self._due_boot_ms - boot_ms()) / 1000
        self._next = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        begun = boot_ms()
        ready = [
            future
            for future, seen in self._waiting.items()
            if not future.done() and any(recent.end > end for recent, end in seen)
        ]
        self._wake(ready, begun)

    def _wake(self, ready: list[asyncio.Future[None]], begun_boot_ms: float) -> None:
        """Wake some, and the rest in later turns of the loop, so that reads come in between."""
        for future in ready[-_WOKEN_PER_TURN:]:
            if not future.done():
                future.set_result(None)
        del ready[-_WOKEN_PER_TURN:]
        if ready:
            asyncio.get_running_loop().call_soon(self._wake, ready, begun_boot_ms)
            return
        now = boot_ms()
        self._due_boot_ms = now + max(_TICK_MS - (now - begun_boot_ms), _PAUSE_BY_WORK * (now - begun_boot_ms))
        self._next = None
        if self._waiting:
            self._schedule()
