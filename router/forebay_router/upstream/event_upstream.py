"""A stream of events from a worker, over a connection of its own."""

from __future__ import annotations

import asyncio
from collections import deque

import httptools

from forebay.wire.server_sent_events import Event, EventReader

_READ_BYTES = 64 << 10
_MAX_REFUSAL_BYTES = 1 << 20


class EventUpstream:
    """An open stream. Nothing is read ahead of the consumer, beyond the connection's buffer."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._parsed = EventReader()
        self._events: deque[Event] = deque()
        self._refusal = b""
        self._complete = False

    async def next(self) -> Event | None:
        """The next event, None for a sign of life; a refusal comes as a ``problem``.

        May be cancelled without loss. Raises ``OSError`` if the stream ends.
        """
        if not self._events:
            await self._receive()
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """Close the connection, which notifies the worker."""
        # With TLS, a regular close would wait for the worker, which may hang.
        self._transport.abort()

    async def _receive(self) -> None:
        if self._complete:
            raise ConnectionResetError("the worker ended the stream")
        received = await self._reader.read(_READ_BYTES)
        if not received:
            raise ConnectionResetError("the worker closed the connection")
        try:
            self._parser.feed_data(received)
        except (httptools.HttpParserError, ValueError) as error:
            raise ConnectionResetError(f"the worker sent something other than an answer: {error}") from None

    def on_body(self, body: bytes) -> None:
        """Some of the body was read; called by the parser."""
        if self._parser.get_status_code() == 200:
            self._events.extend(self._parsed.feed(body))
        else:
            self._refusal += body
            if len(self._refusal) > _MAX_REFUSAL_BYTES:
                raise ValueError("a refusal without end")

    def on_message_complete(self) -> None:
        """The body is complete; called by the parser."""
        self._complete = True
        if self._parser.get_status_code() != 200:
            self._events.append(Event("problem", self._refusal))
