"""Answers to HTTP/1.0: such clients know no chunks, so an answer without a length is collected first."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.errors import AnswerTooLarge, BadRequest, Problem
from forebay.timeouts import running_timeout
from forebay.wire.answers import problem_answer
from forebay.wire.server_sent_events import EVENTS_MEDIA_TYPE
from forebay_web.large_answers import send_in_pieces
from forebay_web.limits import Held, Limits

log = logging.getLogger(__name__)


class WholeAnswers:
    """Gives answers to HTTP/1.0 clients a length (RFC 9112, section 6.1), up to a size; streams are refused.

    What is collected is held as the client's memory until it is sent. A client that reads none of it within
    ``piece_ms`` gets no more.
    """

    def __init__(self, app: ASGIApp, limits: Limits, max_answer_bytes: int, piece_ms: int) -> None:
        self._app = app
        self._limits = limits
        self._max_answer_bytes = max_answer_bytes
        self._piece_s = piece_ms / 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["http_version"] != "1.0":
            await self._app(scope, receive, send)
            return
        answer = _CollectedBody(scope, self._limits, self._max_answer_bytes, send)
        try:
            await self._collect(answer, scope, receive)
            await answer.send(self._piece_s)
        finally:
            answer.release()

    async def _collect(self, answer: _CollectedBody, scope: Scope, receive: Receive) -> None:
        working = asyncio.ensure_future(self._app(scope, receive, answer.collect))
        refused = asyncio.ensure_future(answer.refused.wait())
        try:
            # A stream has no end of its own.
            await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.refused.is_set():
                await working
        finally:
            for task in (working, refused):
                task.cancel()
            await asyncio.gather(working, refused, return_exceptions=True)


class _CollectedBody:
    """An answer, collected, or why it cannot be given."""

    def __init__(self, scope: Scope, limits: Limits, max_answer_bytes: int, send: Send) -> None:
        self._scope = scope
        self._limits = limits
        self._memory: Held | None = None
        self._max_answer_bytes = max_answer_bytes
        self._send = send
        self._has_length = False
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self.refused = asyncio.Event()

    async def collect(self, message: Message) -> None:
        """Keep a part of it, or send it if the answer states its length."""
        if self.refused.is_set():
            return
        if self._has_length:
            await self._send(message)
            return
        if message["type"] == "http.response.start":
            names = {name.lower(): value for name, value in message["headers"]}
            self._has_length = b"content-length" in names
            if self._has_length:
                await self._send(message)
                return
            self._start = message
            if names.get(b"content-type", b"").startswith(EVENTS_MEDIA_TYPE.encode()):
                self._refuse(BadRequest("Event streams need HTTP/1.1."))
            return
        try:
            self._take(message.get("body", b""))
        except Problem as problem:
            self._refuse(problem)

    def _take(self, part: bytes) -> None:
        if self._size_bytes + len(part) > self._max_answer_bytes:
            raise AnswerTooLarge("The list is too long for HTTP/1.0; ask for fewer entries, or use HTTP/1.1.")
        if self._memory is None:
            # Only now is it known to be of an accepted request.
            self._memory = self._limits.memory_of(self._limits.peers.of(self._scope))
        self._memory.take(len(part))
        self._parts.append(part)
        self._size_bytes += len(part)

    def _refuse(self, problem: Problem) -> None:
        answer = problem_answer(problem)
        self._start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers()}
        self._parts, self._size_bytes = [answer.body], len(answer.body)
        self.release()
        self.refused.set()

    def release(self) -> None:
        """Hold no memory any more."""
        if self._memory is not None:
            self._memory.release()

    async def send(self, piece_s: float) -> None:
        """Send what was collected with its length, and cut it for a client that reads nothing for so long."""
        if self._start is None:
            return
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", b"%d" % self._size_bytes)]})

        async def send_in_time(message: Message) -> None:
            async with running_timeout(piece_s):
                await self._send(message)

        try:
            await send_in_pieces(self._parts, send_in_time)
        except TimeoutError:
            # The server closes the connection of an answer that is not complete.
            log.warning("an answer over HTTP/1.0 is cut: the client read nothing of it within the time allowed")
