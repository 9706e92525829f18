"""Has the framework's answers state the trace of their request."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.request_trace import current, trace_of
from forebay.wire.answers import HttpAnswer, header_lines


class RequestTracing:
    """Has answers to requests with a trace state it in their headers, and what works on them know it."""

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

        async def send_stated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *header_lines(trace.head(self._tier))]}
            await send(message)

        await self._app(scope, receive, send_stated)


def stated_body(answer: HttpAnswer) -> bytes:
    """The body of an answer to the request that this task works on; a problem has its id as a member."""
    trace = current.get()
    return answer.body if trace is None else trace.body(answer.status, answer.body)
