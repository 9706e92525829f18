"""Time-outs that count only the time in which this process ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

_SLICE_S = 0.05


@contextlib.asynccontextmanager
async def running_timeout(seconds: float) -> AsyncGenerator[None, None]:
    """``asyncio.timeout``, except that time in which the event loop did not run counts little.

    Why: after a stop (SIGSTOP, a frozen virtual machine) timers run before what has been received meanwhile is
    read, and a healthy peer would be taken for one that is silent. The body gets the rest of its time instead.
    Raises ``TimeoutError``.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        slices = _Slices(loop, limit, seconds)
        try:
            yield
        finally:
            slices.cancel()


class _Slices:
    """Counts the time of a time-out in slices, each with the time in which it can have run at most."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout, left_s: float) -> None:
        self._loop = loop
        self._limit = limit
        self._begin(left_s)

    def _begin(self, left_s: float) -> None:
        self._timer = self._loop.call_later(min(_SLICE_S, left_s), self._end, left_s, self._loop.time())

    def _end(self, left_s: float, begun_s: float) -> None:
        left_s -= min(self._loop.time() - begun_s, 2 * _SLICE_S)
        if left_s > 0:
            self._begin(left_s)
        else:
            self._limit.reschedule(self._loop.time())

    def cancel(self) -> None:
        self._timer.cancel()
