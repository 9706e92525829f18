"""The event streams of a process: how they are served, limited in number, and ended all at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.types import Receive, Scope, Send

from forebay.errors import NotReady, Problem
from forebay.wire.server_sent_events import COMMENT, EVENTS_MEDIA_TYPE, EncodedEvents, Event
from forebay_web.limits import Held, Limit, Peer
from forebay_web.request_guard import later_refusal
from forebay_web.streamed_response import StreamedResponse, for_client

RETRY_MS = 1_000
"""When a client reconnects to a stream that ended."""

_HEADERS = {
    # Set here, since the framework would add a charset.
    "content-type": EVENTS_MEDIA_TYPE,
    "cache-control": "no-store",
    # nginx would hold events back until its buffer is full.
    "x-accel-buffering": "no",
}

Events = AsyncGenerator[Event | EncodedEvents | None, None]
"""Events to be sent, one or several at a time; None is a comment."""


def problem_event(problem: Problem, event_id: str | None = None) -> Event:
    """A problem as an event on a stream."""
    return Event("problem", problem.body(), event_id)


class EventStreams:
    """The open streams, up to a limit."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: set[asyncio.Timeout] = set()
        self.ending = False

    async def open(self, events: Events, receive: Receive, peer: Peer) -> EventStream:
        """The response that streams events; raises ``Overloaded``, or what comes instead of the first event.

        Raises ``ClientDisconnect`` if ``receive`` shows that the client is gone: one that waits for a first event
        must not keep a place for long.
        """
        held = self._limit.held_by(peer, 1)
        self._loop = asyncio.get_running_loop()
        try:
            first = None if self.ending else await for_client(receive, anext(events))
        except BaseException:
            held.release()
            raise
        return EventStream(self, first, events, held)

    def end_all(self) -> None:
        """Tell every client to go elsewhere, and end its stream; may be called by a signal handler."""
        self.ending = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for end in self._ends:
            end.reschedule(0)

    @contextlib.asynccontextmanager
    async def until_ended(self) -> AsyncGenerator[None, None]:
        """End the block once the process ends its streams."""
        try:
            async with asyncio.timeout(None) as end:
                self._ends.add(end)
                try:
                    yield
                finally:
                    self._ends.discard(end)
        except TimeoutError:
            if not end.expired():
                raise


def _encoded(event: Event | EncodedEvents | None) -> bytes:
    return COMMENT if event is None else event.encode()


class EventStream(StreamedResponse):
    """A response of events; it counts as open until it is sent or the client has left."""

    def __init__(
        self,
        streams: EventStreams,
        first: Event | EncodedEvents | None,
        events: Events,
        held: Held,
    ) -> None:
        super().__init__((), headers=_HEADERS)
        self._streams = streams
        self._first = first
        self._events = events
        self._held = held
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        try:
            async with contextlib.aclosing(self._events):
                await super().__call__(scope, receive, send)
        finally:
            self._held.release()

    async def stream_response(self, send: Send) -> None:
        """Send events, each once the client has taken those before it, until they or this process end.

        They also end once their request would be refused, because its token was removed.
        """

        async def send_body(body: bytes, more_body: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more_body})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_body(b"retry: %d\n\n" % RETRY_MS)
        if not self._streams.ending:
            async with self._streams.until_ended():
                try:
                    await send_body(_encoded(self._first))
                    # What was sent may be a large page, and thousands of streams wait for their next.
                    self._first = None
                    async for event in self._events:
                        if (refusal := later_refusal(self._scope)) is not None:
                            raise refusal
                        await send_body(_encoded(event))
                        del event
                except Problem as problem:
                    await send_body(problem_event(problem).encode())
        if self._streams.ending:
            await send_body(problem_event(NotReady("The process is shutting down; its streams end.")).encode())
        await send_body(b"", more_body=False)
