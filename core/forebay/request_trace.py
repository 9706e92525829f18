"""What follows a request through all processes: its id, and a tracer's context (W3C Trace Context).

Both come with the request, are passed on to workers as they came, and stand in answers, problems and log lines.
Nothing is made for a request that has none, unless it fails.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from contextvars import Context, ContextVar
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.wire.answers import HttpAnswer

_SHOWN_ID = re.compile(rb"[!-~]{1,128}")
_PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{0,200})?"
)
_STATE = re.compile(rb"[ -~]{1,512}")
_ID_LINE = b"x-request-id: "
_ID_MEMBER = b'"request_id":'
_LINE = re.compile(rb"\r\n(x-request-id|traceparent|tracestate):([\t -~]*+)(?=\r\n)", re.IGNORECASE)
_MADE_BYTES = 16


class RequestTrace(NamedTuple):
    """A request's id, and the header lines to pass on to whoever helps to answer it."""

    request_id: str
    lines: bytes
    received_boot_ms: float = 0.0
    """When this process received it."""

    @classmethod
    def made(cls) -> RequestTrace:
        """One for a request that came without, and that there is something to log of."""
        return cls(secrets.token_hex(_MADE_BYTES), b"", boot_ms())

    def passed_on(self, request: bytes) -> bytes:
        """A request to a worker with the lines of the trace."""
        return request.replace(b"\r\n", b"\r\n" + self.lines, 1)

    def stated(self, answer: HttpAnswer, tier: str) -> HttpAnswer:
        """An answer with the id and the time that a tier took; a problem has the id as a member, too."""
        return HttpAnswer(answer.status, answer.head + self.head(tier), self.body(answer.status, answer.body))

    def body(self, status: int, body: bytes) -> bytes:
        """The body of an answer of some status."""
        if status < 400 or not body.endswith(b"}") or _ID_MEMBER in body:
            return body
        return b"%b,%b%b}" % (body[:-1], _ID_MEMBER, json.dumps(self.request_id).encode())

    def head(self, tier: str) -> bytes:
        """The header lines of its answer."""
        took_ms = boot_ms() - self.received_boot_ms
        return b"%b%b\r\nserver-timing: %b;dur=%.3f\r\n" % (
            _ID_LINE,
            self.request_id.encode(),
            tier.encode(),
            took_ms,
        )


current: ContextVar[RequestTrace | None] = ContextVar("forebay_request_trace", default=None)
"""That of the request which a task works on. Callbacks run in the context of whoever opened what calls them, so
whatever they begin gets a context of its own."""


def context_of(trace: RequestTrace | None) -> Context:
    """The context of a task that works on a request, or on none."""
    context = Context()
    context.run(current.set, trace)
    return context


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace | None:
    """The trace in header lines whose names are in lower case, None if there is none.

    What is malformed or there twice counts as absent. Without ``x-request-id``, the id is that of the tracer.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in (b"x-request-id", b"traceparent", b"tracestate"):
            found.setdefault(name, []).append(value)
    request_id = _only(found.get(b"x-request-id"), _SHOWN_ID)
    parent = _only(found.get(b"traceparent"), _PARENT)
    state = None if parent is None else _only(found.get(b"tracestate"), _STATE)
    if request_id is None and parent is None:
        return None
    named = ((b"x-request-id", request_id), (b"traceparent", parent), (b"tracestate", state))
    lines = b"".join(b"%b: %b\r\n" % (name, value[0]) for name, value in named if value is not None)
    shown = request_id[0] if request_id is not None else parent[1] if parent is not None else b""
    return RequestTrace(shown.decode(), lines, boot_ms())


def cut_out(head: bytes) -> tuple[bytes, RequestTrace | None]:
    """A request's head, which ends with an empty line, without its lines of a trace, and that trace.

    Such lines differ from request to request: without them it is in the form of others.
    """
    lines = _LINE.findall(head)
    if not lines:
        return head, None
    return _LINE.sub(b"", head), trace_of((name.lower(), value.strip(b" \t")) for name, value in lines)


def _only(values: list[bytes] | None, form: re.Pattern[bytes]) -> re.Match[bytes] | None:
    return form.fullmatch(values[0]) if values is not None and len(values) == 1 else None
