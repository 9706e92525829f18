"""Answers to HTTP/1.0: such clients know no chunks, so an answer without a length is collected first."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.errors import AnswerTooLarge, BadRequest, Problem
from forebay.rest.answers import problem_answer
from forebay.rest.events import EVENTS_MEDIA_TYPE
from forebay.rest.large_answers import send_in_pieces


class WholeAnswers:
    """Gives answers to HTTP/1.0 clients a length (RFC 9112, section 6.1), up to a size; streams are refused."""

    def __init__(self, app: ASGIApp, max_answer_bytes: int) -> None:
        self._app = app
        self._max_answer_bytes = max_answer_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["http_version"] != "1.0":
            await self._app(scope, receive, send)
            return
        answer = _CollectedBody(self._max_answer_bytes)
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
        await answer.send(send)


class _CollectedBody:
    """An answer, collected, or why it cannot be given."""

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self.refused = asyncio.Event()

    async def collect(self, message: Message) -> None:
        """Keep a part of it."""
        if self.refused.is_set():
            return
        if message["type"] == "http.response.start":
            self._start = message
            names = {name.lower(): value for name, value in message["headers"]}
            if names.get(b"content-type", b"").startswith(EVENTS_MEDIA_TYPE.encode()):
                self._refuse(BadRequest("Event streams need HTTP/1.1."))
            return
        part = message.get("body", b"")
        self._parts.append(part)
        self._size_bytes += len(part)
        if self._size_bytes > self._max_answer_bytes:
            self._refuse(
                AnswerTooLarge("The list is too long for HTTP/1.0; ask for fewer entries, or use HTTP/1.1.")
            )

    def _refuse(self, problem: Problem) -> None:
        answer = problem_answer(problem)
        self._start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers()}
        self._parts, self._size_bytes = [answer.body], len(answer.body)
        self.refused.set()

    async def send(self, send: Send) -> None:
        """Send it with its length."""
        if self._start is None:
            return
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        await send({**self._start, "headers": [*headers, (b"content-length", b"%d" % self._size_bytes)]})
        await send_in_pieces(self._parts, send)
