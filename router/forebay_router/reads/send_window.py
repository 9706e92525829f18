"""The requests to workers that one request of a client has in flight: few at once if their bodies are large."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forebay_web.limits import Held

MAX_BYTES = 2 << 20
"""Of bodies at once. A longer body is sent alone."""


class SendWindow:
    """Requests are sent in the order in which they come, as soon as the ones before leave room.

    A body is held in ``memory`` until its answer is there: each request has a copy of its own.
    """

    def __init__(self, memory: Held, max_requests: int) -> None:
        self._memory = memory
        self._min_share_bytes = MAX_BYTES // max_requests
        self._free_bytes = MAX_BYTES
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._in_flight_bytes = self._reserved_bytes = 0
        self.held_bytes = 0

    async def reserve(self, body_bytes: int, requests: int, within_ms: float = 0.0) -> None:
        """Hold what so many requests with bodies of this size have in flight; raises ``Overloaded``."""
        reserved_bytes = min(requests, MAX_BYTES // self._share(body_bytes)) * body_bytes
        if reserved_bytes:
            await self._memory.reserve(reserved_bytes, within_ms)
        self.held_bytes += reserved_bytes
        self._reserved_bytes = reserved_bytes
        self._count(0)

    def release(self) -> None:
        """Give back what was reserved, but for what is in flight."""
        self._reserved_bytes = 0
        self._count(0)

    def close(self) -> None:
        """Give everything back, also for requests that were cancelled and have not ended yet."""
        self._memory.adjust(-self.held_bytes)
        self.held_bytes = 0

    @asynccontextmanager
    async def sending(self, body_bytes: int) -> AsyncIterator[None]:
        """Wait until a request may be sent; it is in flight until the end of the block."""
        share = self._share(body_bytes)
        await self._acquire(share)
        self._count(body_bytes)
        try:
            yield
        finally:
            self._count(-body_bytes)
            self._give_back(share)

    def _count(self, more_bytes: int) -> None:
        self._in_flight_bytes += more_bytes
        held_bytes = max(self._in_flight_bytes, self._reserved_bytes)
        self._memory.adjust(held_bytes - self.held_bytes)
        self.held_bytes = held_bytes

    async def _acquire(self, share: int) -> None:
        if not self._waiting and share <= self._free_bytes:
            self._free_bytes -= share
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # It may have got its turn already.
            self._give_back(0 if turn.cancelled() else share)
            raise

    def _give_back(self, share: int) -> None:
        self._free_bytes += share
        while self._waiting:
            share, turn = self._waiting[0]
            if not turn.done():
                if share > self._free_bytes:
                    return
                self._free_bytes -= share
                turn.set_result(None)
            self._waiting.popleft()

    def _share(self, body_bytes: int) -> int:
        """How much of the window a request takes."""
        return min(MAX_BYTES, max(1, self._min_share_bytes, body_bytes))
