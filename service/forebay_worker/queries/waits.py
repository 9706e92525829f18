"""Reads that wait for their bound to be met: re-checked periodically, less often the more there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from forebay.errors import Overloaded

_LEAST_PAUSE_S = 0.005
_PAUSE_BY_WAITING_S = 0.0001
"""Interval per waiting read: a check takes a tenth of it, so that all together take a tenth of the process's
time."""
_MOST_WAITING = 4096


class Waits:
    """Counts the reads of a worker that wait."""

    def __init__(self) -> None:
        self._waiting = 0

    @contextmanager
    def one(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yields a coroutine function that sleeps until the next check; the read counts as waiting from its first
        call.

        That raises ``Overloaded`` if too many reads wait already.
        """
        counted = False

        async def pause() -> None:
            nonlocal counted
            if not counted and self._waiting >= _MOST_WAITING:
                raise Overloaded(
                    f"{_MOST_WAITING} reads are already waiting for their bounds; ask without wait_ms, or later.",
                    retry_after_s=1,
                )
            self._waiting += not counted
            counted = True
            await asyncio.sleep(max(_LEAST_PAUSE_S, self._waiting * _PAUSE_BY_WAITING_S))

        try:
            yield pause
        finally:
            self._waiting -= counted
