"""Reads that wait for their bound to be met: re-checked periodically, less often the more there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from forebay_web.limits import Limit, Peer

_MIN_PAUSE_S = 0.005
_PAUSE_BY_WAITING_S = 0.0001
"""Interval per waiting read: a check takes a tenth of it, so that all together take a tenth of the process's
time."""


class BoundedWaits:
    """The reads of a worker that wait, up to a limit."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    @contextmanager
    def one(self, peer: Peer) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yields a coroutine function that sleeps until the next check; the read counts as waiting from its first
        call.

        That raises ``Overloaded`` if too many reads wait already.
        """
        with self._limit.held_by(peer) as held:

            async def pause() -> None:
                held.take(1 - held.amount)
                await asyncio.sleep(max(_MIN_PAUSE_S, self._limit.used * _PAUSE_BY_WAITING_S))

            yield pause
