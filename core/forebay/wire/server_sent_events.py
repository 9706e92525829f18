"""Writes and reads server-sent events, following the HTML standard."""

from __future__ import annotations

import re
from typing import NamedTuple

EVENTS_MEDIA_TYPE = "text/event-stream"
COMMENT = b":\n\n"
"""Keeps proxies from closing an idle stream; it has no meaning."""

_MAX_EVENT_BYTES = 64 << 20
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    """One event: its name, its data, and the id that a client passes on when it reconnects.

    Without an id the previous one stays; an empty one makes the client forget it.
    """

    name: str
    data: bytes
    id: str | None = None

    def encode(self) -> bytes:
        return self.fields() + b"\n"

    def fields(self) -> bytes:
        """The same without its end, so that more may follow."""
        identity = b"" if self.id is None else b"id: %b\n" % self.id.encode()
        # A writer's JSON may span several lines.
        data = b"".join([b"data: %b\n" % line for line in _LINE_ENDS.split(self.data)])
        return b"event: %b\n%b%b" % (self.name.encode(), identity, data)


class EncodedEvents(NamedTuple):
    """Several events in bytes, which other streams may share."""

    body: bytes

    def encode(self) -> bytes:
        return self.body


class EventReader:
    """Reads events from bytes, however these are split."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """The pieces of an incomplete line: a value may be megabytes."""
        self._name = "message"
        self._id: str | None = None
        self._data: list[bytes] = []
        self._held_bytes = 0
        """Received since the last event."""

    def feed(self, received: bytes) -> list[Event]:
        """The events that are now complete; comments and unknown fields are ignored.

        Raises ``ValueError`` if one is larger than any may be.
        """
        self._held_bytes += len(received)
        if self._held_bytes > _MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {_MAX_EVENT_BYTES} bytes")
        events = self._feed(received)
        if events:
            self._held_bytes = 0
        return events

    def _feed(self, received: bytes) -> list[Event]:
        first, *others = received.split(b"\n")
        self._rest.append(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest = others[-1:]
        return [event for line in lines if (event := self._take(line.removesuffix(b"\r"))) is not None]

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"event":
                self._name = value.decode("utf-8", "replace")
            case b"data":
                self._data.append(value)
            case b"id":
                self._id = value.decode("utf-8", "replace")
        return None

    def _end_event(self) -> Event | None:
        event = Event(self._name, b"\n".join(self._data), self._id) if self._data else None
        self._name, self._id, self._data = "message", None, []
        return event
