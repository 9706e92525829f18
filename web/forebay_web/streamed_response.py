"""A response that is sent piece by piece until its client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from forebay_web.follower_wakeups import follower_turns

_T = TypeVar("_T")


async def left(receive: Receive) -> None:
    """Return once the client has closed its connection; nothing of the request's body may be left to read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def for_client(receive: Receive, work: Awaitable[_T]) -> _T:
    """The outcome of some work for a request; raises ``ClientDisconnect`` as soon as its client has left."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
        # An error refers to this frame: if this referred to it, all it holds would stay until a collection.
        del working, leaving


class StreamedResponse(StreamingResponse):
    """Ends once its client has left, one in each turn of the loop: thousands may leave together.

    The framework's own leaves a hundred objects of each response to the garbage collector.
    """

    _is_sending = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(left(receive))
        try:
            async with asyncio.timeout(None) as end:
                leaving.add_done_callback(partial(self._on_left, end))
                await self.stream_response(send)
        except TimeoutError:
            if not end.expired():
                raise
        finally:
            self._is_sending = False
            leaving.cancel()

    def _on_left(self, end: asyncio.Timeout, leaving: asyncio.Task[None]) -> None:
        if not leaving.cancelled():
            follower_turns().add(partial(self._end, end))

    def _end(self, end: asyncio.Timeout) -> None:
        if self._is_sending:
            end.reschedule(0)
