"""uvicorn's protocol for ordinary requests, with what it lacks: limits, and an end to every connection."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from forebay.errors import BadRequest, Problem
from forebay.linux import peer_user
from forebay.request_trace import context_of
from forebay.wire.answers import problem_answer
from forebay_web.fast_path.header_block import refusal_of_head
from forebay_web.fast_path.pending import render
from forebay_web.forwarding import LOCAL_USER

_MAX_STALL_S = 10.0
"""How long a peer may read nothing."""
_CLOSING_INTERVAL_S = 0.1
"""How often a closing connection is looked at."""
_OUT_QUEUE = struct.Struct("@i")
_MAX_HEAD_BYTES = 64 << 10
"""Limit for an incomplete request head, not counting its first chunk."""
_PARSED_AT_ONCE_BYTES = 4 << 10
"""How much is parsed before it is known whether requests queue: a segment may hold thousands."""
_MAX_AHEAD_BYTES = 64 << 10
"""How much is read behind a request that waits for long: only reading tells whether its client has left."""
_MAX_REQUEST_S = 30.0
"""How long a request may take to arrive, and the first one to begin."""
_NO_HTTP = "Invalid HTTP request received."
_NO_HTTP_BUT_FOR_ESCAPES = (
    "Invalid HTTP request received: its target holds bytes that must be percent-encoded, such as %C3%BC for ü."
)


class SlowPeerWatch:
    """Watches one connection while too much waits for its peer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on the peer must read something now and then."""
        if self._timer is None:
            self._check_later(_MAX_STALL_S)

    def finish(self) -> None:
        """The same for a connection that is being closed, and ends as soon as everything is read.

        Why: asyncio's TLS waits half a minute for the peer to confirm a close, and one that is idle confirms none.
        Each deployment would take that long. RFC 8446 allows to end without that.
        """
        self.end()
        self._check_later(_CLOSING_INTERVAL_S)

    def end(self) -> None:
        """Little is waiting, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self, interval_s: float, stalled_s: float = 0.0) -> None:
        left = self._waiting_bytes()
        self._timer = self._loop.call_later(interval_s, self._check, left, interval_s, stalled_s)

    def _check(self, waited: int, interval_s: float, stalled_s: float) -> None:
        left = self._waiting_bytes()
        stalled_s = stalled_s + interval_s if left >= waited else 0.0
        finished = interval_s == _CLOSING_INTERVAL_S and not left
        if finished or stalled_s >= _MAX_STALL_S:
            # A regular close would wait for the peer indefinitely.
            self._timer = None
            self._transport.abort()
        else:
            self._check_later(interval_s, stalled_s)

    def _waiting_bytes(self) -> int:
        """Bytes that the peer has not read, in this process and in the kernel, which can buffer megabytes."""
        waiting = int(self._transport.get_write_buffer_size())
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                # SIOCOUTQ of tcp(7): it falls with each byte, the transport's buffer after a third of them.
                waiting += _OUT_QUEUE.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting


class SlowPathProtocol(HttpToolsProtocol):
    """Parses requests for the framework.

    A peer that sends no whole request, or takes nothing, is dropped in time. Bytes that are no request are refused
    with a problem, once those before them are answered.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_refusal: Problem | None = None
        self._in_message = self._in_head = False
        self._patience: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_begun = False
        """Whether a head began in the piece that is parsed."""
        self._refusal: Problem | None = None
        """Why nothing more of what is received can be understood, while an earlier request is being answered."""
        self._running: RequestResponseCycle | None = None
        """The framework's request under way; the parser's may be a later one."""
        self._unparsed = memoryview(b"")
        """Received, and not parsed while requests before it queue: nothing more is read meanwhile."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, though not for ever."""
        super().connection_made(transport)
        self.client = self.client or _local_client(transport)
        self._slow_peer = SlowPeerWatch(self.loop, transport)
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        """Parse it, unless a head is too long."""
        if self._unparsed:
            # Reading is paused, but what the transport had already read still comes.
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            self._hold_back(len(self._unparsed))
            return
        self._unparsed = memoryview(data)
        self._parse_some()

    def _parse_some(self) -> None:
        """Parse what was received until requests queue; the rest waits for their answers.

        Each request in the queue takes a hundred times its bytes, and uvicorn goes on reading after every answer.
        """
        while self._unparsed and not self.pipeline and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:_PARSED_AT_ONCE_BYTES], self._unparsed[_PARSED_AT_ONCE_BYTES:]
            self._head_begun = False
            if not self._feed(piece):
                self._unparsed = memoryview(b"")
            elif not self._in_head or self._head_begun:
                self._head_bytes = 0
            else:
                self._head_bytes += len(piece)
                if self._head_bytes > _MAX_HEAD_BYTES:
                    self._unparsed = memoryview(b"")
                    self._refuse(BadRequest(f"The request's head is longer than {_MAX_HEAD_BYTES} bytes."))
        if self.pipeline:
            self._hold_back(len(self._unparsed))

    def _hold_back(self, unread_bytes: int) -> None:
        """Read nothing more while requests queue, or a little behind one that waits."""
        if unread_bytes <= _MAX_AHEAD_BYTES and self._waits():
            self.flow.resume_reading()
        else:
            self.flow.pause_reading()

    def _waits(self) -> bool:
        """Whether a request is being answered whose client has left once it sends nothing more."""
        running = self._running
        if running is None or running.response_complete:
            return False
        request: Any = running.scope
        return b"wait_ms=" in request["query_string"] or request["path"].endswith("/changes")

    def _feed(self, data: memoryview) -> bool:
        """Have it parsed; returns whether what follows is HTTP."""
        self._unset_keepalive_if_required()
        try:
            self._parse_pipelined(data)
        except httptools.HttpParserError:
            text = _NO_HTTP_BUT_FOR_ESCAPES if _has_raw_target(data) else _NO_HTTP
            self._refuse(self._head_refusal or BadRequest(text))
            return False
        if (
            not self._in_message
            and (self.cycle is None or self.cycle.response_complete)
            and self._patience is None
        ):
            # It was empty lines only, which begin no request.
            self._be_patient()
        return True

    def _parse_pipelined(self, data: memoryview) -> None:
        """Ignore offers to speak another protocol, after which the parser reads nothing more."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self.parser = httptools.HttpRequestParser(self)
                data = data[upgrade.args[0] :]

    def pause_writing(self) -> None:
        """Too much waits for the peer: it is dropped unless it reads some of it in time."""
        super().pause_writing()
        self._slow_peer.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._slow_peer.end()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        request: Any = cycle.scope
        # Routes go by the path as received: a %2F belongs to its key, and nothing is decoded twice.
        request["path"] = request["raw_path"].decode("ascii")
        # The parser may go on in the task of the request before.
        context_of(None).run(super()._start_asgi_task, cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            self._hold_back(len(self._unparsed))
        elif self._unparsed:
            self._parse_some()
        if self._refusal and not self._answers_earlier() and not self.transport.is_closing():
            self._refuse(self._refusal)
        self._watch_close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._slow_peer.end()
        self._end_patience()
        self._unparsed = memoryview(b"")
        running = self._running
        if running is not None and not running.response_complete:
            # Of several requests, uvicorn tells only the newest.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        # After a reset, uvicorn lets it run out, and it holds all that belongs to the connection.
        self._unset_keepalive_if_required()

    def _close(self) -> None:
        """Close once the peer has read what is left."""
        self.transport.close()
        self._watch_close()

    def _watch_close(self) -> None:
        """Drop a peer that does not read what is left, however little, if the connection is being closed."""
        if self.transport.is_closing() and self in self.connections:
            if self.scheme == "https":
                self._slow_peer.finish()
            else:
                self._slow_peer.begin()

    def _be_patient(self) -> None:
        self._patience = self.loop.call_later(_MAX_REQUEST_S, self._lose_patience)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        # A peer that sends a byte now and then would keep a connection, and the bytes received, for ever.
        self._patience = None
        self._close()

    def _between_requests(self) -> bool:
        """Whether no request is with the framework, and more may be sent."""
        return (
            not self._in_message
            and (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self._unparsed
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def on_message_begin(self) -> None:
        """The parser has begun a request, whose end must come in time."""
        self._in_message = self._in_head = self._head_begun = True
        # Counted from now, however long it took to begin.
        self._end_patience()
        self._be_patient()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The parser has read the head: anything after the body is not part of it."""
        parser = self.parser
        upgrades = parser.should_upgrade() and (parser.get_method() == b"CONNECT" or _has_body(self.headers))
        self._head_refusal = refusal_of_head(parser.get_http_version(), self.headers, upgrades=upgrades)
        if self._head_refusal is not None:
            # The parser ends with it.
            raise self._head_refusal
        super().on_headers_complete()
        self._in_head = False
        # A trailer would count as a header, even Authorization, unseen by a proxy that checks headers.
        self.headers = []

    def on_message_complete(self) -> None:
        self._in_message = False
        self._end_patience()
        super().on_message_complete()

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and close, after the answers to the requests before."""
        if self._answers_earlier():
            self._refusal = problem
            return
        answer = problem_answer(problem)
        self.transport.write(render(answer._replace(head=answer.head + b"connection: close\r\n")))
        self._close()

    def _ends_after_answer(self) -> bool:
        """Whether a request that the peer has sent whole is being answered, and ends by itself; the connection is
        closed after it.

        A peer that closes its half while it follows or waits for something has left.
        """
        running = self._running
        if running is None or not self._answers_earlier() or self.pipeline or self._waits():
            return False
        running.keep_alive = False
        return True

    def _answers_earlier(self) -> bool:
        """Whether the framework is answering a request that the parser has read to its end."""
        running = self._running
        whole = not self._in_message or self._in_head or running is not self.cycle
        return running is not None and not running.response_complete and whole

    def shutdown(self) -> None:
        if self._in_message:
            # The rest of a request may never arrive.
            self._close()
        else:
            super().shutdown()
            self._watch_close()


def _local_client(transport: asyncio.Transport) -> tuple[str, int] | None:
    """Who connected a Unix socket: a user of this machine, in place of an address."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    user = peer_user(connection)
    return None if user is None else (f"{LOCAL_USER}{user}", 0)


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
    )


def _has_raw_target(data: memoryview) -> bool:
    return not bytes(data[:_MAX_HEAD_BYTES]).split(b"\r\n", 1)[0].isascii()
