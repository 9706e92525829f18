"""A connection to a worker: requests pipelined and answers matched in order, or one stream of events.

A worker's ``HttpAnswer`` has its header lines as received, without content-length.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import cast

import httptools

from forebay.errors import AnswerTooLarge, Problem
from forebay.request_trace import current
from forebay.wire.answers import MAX_ANSWER_BYTES, HttpAnswer, problem_answer
from forebay.wire.server_sent_events import Event, EventReader

_MAX_LATE_MS = 100.0
TIME_TO_READ_S = 0.02
"""How long what was received while the process was stopped may take to be read."""
_MAX_HEAD_BYTES = 64 << 10
_KNOWN_LINES = (
    b"forebay-",
    b"content-type:",
    b"cache-control:",
    b"retry-after:",
    b"www-authenticate:",
    b"server-timing:",
)
"""How the header lines begin that are passed on to clients; others are dropped."""
_MAX_GATHERED = 16
"""Requests sent together at most: the worker can begin with them while others still come."""
_LENGTH = b"\r\ncontent-length: "
_LENGTH_SIZE = len(_LENGTH)
_MAX_DIGITS = 20
_LINE = re.compile(rb"([!#-'*+.0-9A-Z^-z|~-]+):[\t -~\x80-\xff]*\r\n")
"""A header line as RFC 9112 has it: no control characters."""
_KNOWN_NAMES = tuple(line.removesuffix(b":") for line in _KNOWN_LINES)
OnAnswer = Callable[["HttpAnswer | None"], bool]
"""Called once with the answer, or with None if the connection ended before it was complete; returns whether that
was an answer to its request: if not, the connection is closed."""
Admit = Callable[[int], None]
"""Makes room for an answer of so many bytes before it is read; raises ``Problem`` if there is none."""
_READ_BYTES = 64 << 10
_MAX_REFUSAL_BYTES = 1 << 20


def was_stopped(late_ms: float) -> bool:
    """Whether a timer that ran so much too late shows that the process did not run: nobody else was slow."""
    return late_ms > _MAX_LATE_MS


class UpstreamClosed(ConnectionError):
    """The connection ended before the answer was complete."""


class AnsweredForAnother(ConnectionError):
    """The answer names another store or key than the request: answers and requests are out of step."""


class InFlight:
    """How many requests are in flight at one worker."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Connection(asyncio.Protocol):
    """One connection to a worker. Requests are answered in the order in which they were sent.

    An abandoned request keeps its place: its answer is read and dropped. ``in_flight`` also counts what is
    outstanding here.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_flight = in_flight
        self._pending: deque[OnAnswer] = deque()
        self._chunks: list[bytes] = []
        self._awaited = 0
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.closed = False
        self.on_body_begun: Callable[[int], bool] | None = None
        """Called with the size in bytes of a body that has not arrived whole; returns whether to read it."""
        self.parts: list[bytes] | None = None
        """Takes the parts of a body that has not arrived whole, instead of its answer; only while one request is
        outstanding."""

    @property
    def load(self) -> int:
        """How many answers are outstanding."""
        return len(self._pending)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    @property
    def gathering(self) -> bool:
        """Whether requests are waiting for the end of the event loop's turn, to be sent together."""
        return bool(self._unsent)

    def send(self, request: bytes, on_answer: OnAnswer, *, at_once: bool) -> None:
        """Send a request, either at once or together with others of the event loop's turn.

        It has the trace of the request that this task works on.
        """
        trace = current.get()
        if trace is not None:
            request = trace.passed_on(request)
        if self.closed or self._transport is None:
            self._loop.call_soon(on_answer, None)
            return
        self._pending.append(on_answer)
        self._in_flight.count += 1
        if at_once and not self._unsent:
            self._transport.write(request)
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(request)
        if len(self._unsent) >= _MAX_GATHERED:
            self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self.closed and self._transport is not None:
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        """Match answers to requests; anything that is not an answer to one closes the connection."""
        if self._awaited > len(data):
            # In the middle of a large body: nothing can be parsed before it is complete.
            self._chunks.append(data)
            self._awaited -= len(data)
            return
        if self._awaited and self.parts is not None:
            self._end_parts(self.parts, data)
            return
        buffer = b"".join([*self._chunks, data]) if self._chunks else data
        self._chunks.clear()
        at, size, pending = 0, len(buffer), self._pending
        while at < size:
            try:
                parsed = parse_answer(buffer, at)
            except AnswerTooLarge as problem:
                # The worker is well, and nothing more of it can be understood.
                if pending:
                    self._in_flight.count -= 1
                    pending.popleft()(problem_answer(problem))
                self.close()
                return
            except ValueError:
                self.close()
                return
            if parsed is None:
                break
            answer, at, keep = parsed
            if not pending:
                self.close()
                return
            self._in_flight.count -= 1
            if not (pending.popleft()(answer) and keep):
                self.close()
                return
        self._awaited = 0
        if at < size:
            self._chunks.append(buffer[at:])
            self._awaited = _left_of_body(buffer, at)
            if self._awaited and self.on_body_begun is not None:
                on_body_begun, self.on_body_begun = self.on_body_begun, None
                if not on_body_begun(self._awaited + size - at):
                    self.close()

    def _end_parts(self, parts: list[bytes], data: bytes) -> None:
        """The last part of a body that is not joined: nothing may follow it."""
        begun, end = self._chunks[0], self._chunks[0].find(b"\r\n\r\n")
        parts += [begun[end + 4 :], *self._chunks[1:], data]
        whole, self._chunks, self._awaited = len(data) == self._awaited, [], 0
        status, lines, _, keep = _read_head(begun, 0, end)
        self._in_flight.count -= 1
        if not (whole and self._pending.popleft()(HttpAnswer(status, lines, b"")) and keep):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify all that still wait, and hold nothing of what was received."""
        self.closed = True
        self._chunks.clear()
        self.parts = self.on_body_begun = None
        while self._pending:
            self._in_flight.count -= 1
            self._pending.popleft()(None)

    def close(self) -> None:
        """Close; outstanding requests get None."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


async def exchange(
    connection: Connection,
    request: bytes,
    named: Callable[[HttpAnswer], bool] | None = None,
    admit: Admit | None = None,
    parts: list[bytes] | None = None,
) -> HttpAnswer:
    """Send and wait; raises ``UpstreamClosed``, or ``AnsweredForAnother`` unless an answer is as ``named`` asks.

    On a connection without other requests, ``admit`` makes room for a large answer before it is read. Its
    ``Problem`` is raised here, and closes the connection. ``parts`` gets the body of an answer that does not
    arrive whole, in parts: a copy of a large one takes as long as hundreds of reads.
    """
    future: asyncio.Future[HttpAnswer | None] = asyncio.get_running_loop().create_future()

    def on_answer(answer: HttpAnswer | None) -> bool:
        if answer is not None and named is not None and not named(answer):
            if not future.done():
                future.set_exception(AnsweredForAnother("the worker answered for another key"))
            return False
        if not future.done():
            future.set_result(answer)
        return True

    def on_body_begun(size_bytes: int) -> bool:
        assert admit is not None
        if future.done():
            # Nobody waits for it any more, and nothing may be held for it.
            return False
        try:
            admit(size_bytes)
        except Problem as problem:
            future.set_exception(problem)
        return not future.done()

    connection.on_body_begun = None if admit is None else on_body_begun
    connection.parts = parts
    connection.send(request, on_answer, at_once=connection.load == 0)
    answer = await future
    if answer is None:
        raise UpstreamClosed("the worker closed the connection")
    return answer


def parse_answer(buffer: bytes, at: int) -> tuple[HttpAnswer, int, bool] | None:
    """The answer that begins at ``at``, where it ends, and whether the connection stays open; None if incomplete.

    Raises ``ValueError`` unless it is a final HTTP/1.1 answer with a content-length, and ``AnswerTooLarge``.
    """
    end = buffer.find(b"\r\n\r\n", at)
    if end < 0:
        if len(buffer) - at > _MAX_HEAD_BYTES:
            raise ValueError("head too long")
        return None
    body_at = end + 4
    length_at = buffer.rfind(_LENGTH, at, end)
    status_line = _before_length(buffer[at : length_at + 2]) if length_at >= 0 else None
    digits = buffer[length_at + _LENGTH_SIZE : end]
    if status_line is not None and digits.isdigit():
        # From a forebay worker: the length is the last line.
        status, lines = status_line
        answer_end = body_at + _checked_length(int(digits[:_MAX_DIGITS]))
        if len(buffer) < answer_end:
            return None
        return HttpAnswer(status, lines, buffer[body_at:answer_end]), answer_end, True
    status, lines, length, keep = _read_head(buffer, at, end)
    if length < 0:
        raise ValueError("no content-length")
    if len(buffer) < body_at + length:
        return None
    return HttpAnswer(status, lines, buffer[body_at : body_at + length]), body_at + length, keep


def _left_of_body(buffer: bytes, at: int) -> int:
    """How many bytes of the answer at ``at`` are still missing, 0 while its head is incomplete."""
    end = buffer.find(b"\r\n\r\n", at)
    if end < 0:
        return 0
    _, _, length, _ = _read_head(buffer, at, end)
    return max(0, end + 4 + length - len(buffer))


def _read_head(buffer: bytes, at: int, end: int) -> tuple[int, bytes, int, bool]:
    """Status, header lines, length of the body (-1 if not stated), and whether the connection stays open.

    ``end`` is that of the last header. Raises ``ValueError``.
    """
    status, lines = _split_status(buffer[at : end + 2])
    length, keep = -1, True
    kept = []
    for header in lines[:-2].split(b"\r\n"):
        name, _, value = header.partition(b": ")
        lowered = name.lower()
        if lowered == b"content-length":
            length = _checked_length(int(value[:_MAX_DIGITS]))
        elif lowered == b"transfer-encoding":
            raise ValueError("chunked")
        elif lowered == b"connection":
            keep = value.lower() != b"close"
        elif lowered.startswith(_KNOWN_NAMES):
            kept.append(header + b"\r\n")
    return status, b"".join(kept), length, keep


@lru_cache(maxsize=1024)
def _before_length(head: bytes) -> tuple[int, bytes] | None:
    """Status and header lines before the length, None if one of them affects how to read on.

    All answers of a replica within a millisecond have the same ones.
    """
    lowered = head.lower()
    if any(name in lowered for name in (b"content-length", b"transfer-encoding", b"connection")):
        return None
    status, lines = _split_status(head)
    if all(line.lower().startswith(_KNOWN_LINES) for line in lines.split(b"\r\n")[:-1]):
        return status, lines
    return None


def _checked_length(length: int) -> int:
    """The length of a body; raises ``AnswerTooLarge`` if it is more than an answer may take."""
    if length > MAX_ANSWER_BYTES:
        raise AnswerTooLarge(f"A worker's answer of {length} bytes is longer than any may be.")
    return length


def _split_status(head: bytes) -> tuple[int, bytes]:
    """Status, and the lines after the status line; raises ``ValueError`` unless it is a final answer's."""
    line, _, lines = head.partition(b"\r\n")
    if not line.startswith(b"HTTP/1.1 ") or line[9:10] == b"1":
        raise ValueError("not a final answer")
    names = [name.lower() for name in _LINE.findall(lines)]
    if len(names) != lines.count(b"\n") or len(names) != len(set(names)):
        # A client, or a proxy before it, might read more lines than these, or the other of two.
        raise ValueError("a header line is malformed, or given twice")
    return int(line[9:12]), lines


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
