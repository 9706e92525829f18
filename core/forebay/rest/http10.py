"""Answers to HTTP/1.0: such clients know no chunks, so an answer without a length is collected first."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.errors import AnswerTooLarge, BadRequest, Problem
from forebay.rest.answers import problem_answer
from forebay.rest.server_sent_events import EVENTS_MEDIA_TYPE


class WholeAnswers:
    """Gives answers to HTTP/1.0 clients a length (RFC 9112, section 6.1), up to a size; streams are refused."""

    def __init__(self, app: ASGIApp, max_answer_bytes: int) -> None:
        self._app = app
        self._max_answer_bytes = max_answer_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["http_version"] != "1.0":
            await self._app(scope, receive, send)
            return
        answer = _CollectedBody(self._max_answer_bytes, send)
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
        await answer.send()


class _CollectedBody:
    """An answer, collected, or why it cannot be given."""

    def __init__(self, max_answer_bytes: int, send: Send) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._send = send
        self._has_length = False
        self._start: Message | None = None
        self._body = bytearray()
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
        self._body.extend(message.get("body", b""))
        if len(self._body) > self._max_answer_bytes:
            self._refuse(
                AnswerTooLarge("The list is too long for HTTP/1.0; ask for fewer entries, or use HTTP/1.1.")
            )

    def _refuse(self, problem: Problem) -> None:
        answer = problem_answer(problem)
        self._start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers()}
        self._body = bytearray(answer.body)
        self.refused.set()

    async def send(self) -> None:
        """Send what was collected with its length."""
        if self._start is None:
            return
        send = self._send
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        await send({**self._start, "headers": [*headers, (b"content-length", b"%d" % len(self._body))]})
        await send({"type": "http.response.body", "body": bytes(self._body)})
