"""A response that is sent piece by piece until its client has left."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forebay_web.client_disconnect import left
from forebay_web.follower_wakeups import follower_turns


class StreamedResponse(StreamingResponse):
    """Ends once its client has left, one in each turn of the loop: thousands may leave together.

    The framework's own leaves a hundred objects of each response to the garbage collector.
    """

    _is_sending = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the pieces and the end."""
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
