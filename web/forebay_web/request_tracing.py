"""Has the framework's answers state the trace of their request."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.request_trace import RequestTrace, current, trace_of
from forebay.wire.answers import header_lines


class RequestTracing:
    """Has answers to requests with a trace state it, and what works on them know it."""

    def __init__(self, app: ASGIApp, tier: str) -> None:
        self._app = app
        self._tier = tier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope["headers"]) if scope["type"] == "http" else None
        if trace is None:
            await self._app(scope, receive, send)
            return
        # Each request has a task of its own, whose failure is logged after this.
        current.set(trace)
        await self._app(scope, receive, _StatedProblems(trace, self._tier, send).send)


class _StatedProblems:
    """Sends an answer with its trace; the start of a problem waits for the body, which is all there is of it."""

    def __init__(self, trace: RequestTrace, tier: str, send: Send) -> None:
        self._trace = trace
        self._tier = tier
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *header_lines(self._trace.head(self._tier))]}
            if message["status"] >= 400:
                self._start = message
                return
        elif self._start is not None:
            start, self._start = self._start, None
            body = self._trace.body(start["status"], message.get("body", b""))
            kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await self._send({**start, "headers": [*kept, (b"content-length", b"%d" % len(body))]})
            message = {**message, "body": body}
        await self._send(message)
