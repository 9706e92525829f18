"""What ``explain=true`` adds to an answer: its bounds, who was asked in which order and why, and when.

The parameter is taken off the query before any route reads it, so it is neither passed on to workers nor part of
any cursor. What works on the request finds the explanation in its context.
"""

from __future__ import annotations

import re
from collections import Counter
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.clock import boot_ms
from forebay.errors import BadParameter, Problem
from forebay.grants import Needed
from forebay.lag import Tolerance
from forebay.wire.answers import json_body
from forebay_web.request_guard import access_of, refuse

EXPLAIN_PARAMETER: dict[str, Any] = {
    "name": "explain",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean", "default": False},
    "description": "Add to the answer, as `explain`: its bounds, who was asked in which order and why, and when.",
}
_IN_QUERY = re.compile(rb"(?:^|&)explain=([^&]*)")
_WANTED = {b"true": True, b"1": True, b"false": False, b"0": False}
_MAX_EVENTS = 1_000


class Explanation:
    """What happened so far. Times are milliseconds since the request was received."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._received_boot_ms = boot_ms()
        self._bounds: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []

    def hold_to(self, *, request: Tolerance, store: Tolerance, ceiling: Tolerance, all_of_them: Tolerance) -> None:
        """Note the bounds: the request's, or else its store's, no laxer than the operator's ceiling."""
        named = {"request": request, "store": store, "ceiling": ceiling, "effective": all_of_them}
        self._bounds = {name: _stated(bounds) for name, bounds in named.items()}

    def note(self, event: str, **members: Any) -> None:
        """Note something that happened now; the most that is noted is a thousand events."""
        if len(self._events) < _MAX_EVENTS:
            self._events.append({"at_ms": self._now_ms(), "event": event, **members})

    def document(self) -> dict[str, Any]:
        """All of it as JSON values."""
        shown = {"tier": self._tier, "took_ms": self._now_ms(), "bounds": self._bounds, "events": self._events}
        return shown if len(self._events) < _MAX_EVENTS else {**shown, "cut": True}

    def _now_ms(self) -> float:
        return round(boot_ms() - self._received_boot_ms, 3)


def _stated(bounds: Tolerance) -> dict[str, int]:
    return {name: bound for name, bound in bounds._asdict().items() if bound is not None}


explained: ContextVar[Explanation | None] = ContextVar("forebay_explanation", default=None)
"""That of the request which a task works on, None unless it is to be explained."""


class Explaining:
    """Adds the explanation to answers of requests for some paths that want one.

    It names workers and their lags, so it needs what ``/v1/lags`` needs.
    """

    def __init__(
        self, app: ASGIApp, tier: str, paths: tuple[re.Pattern[str], ...], refusals: Counter[int]
    ) -> None:
        self._app = app
        self._tier = tier
        self._paths = paths
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _IN_QUERY.findall(scope.get("query_string", b""))
        if not found or not any(known.fullmatch(scope["path"]) for known in self._paths):
            await self._app(scope, receive, send)
            return
        try:
            is_wanted = _is_wanted(scope, found)
        except Problem as problem:
            await refuse(problem, self._refusals, send)
            return
        scope["query_string"] = _IN_QUERY.sub(b"", scope["query_string"]).removeprefix(b"&")
        if is_wanted:
            explanation = Explanation(self._tier)
            explained.set(explanation)
            send = _WithExplanation(explanation, send).send
        await self._app(scope, receive, send)


def _is_wanted(scope: Scope, found: list[bytes]) -> bool:
    if len(found) > 1 or found[0] not in _WANTED:
        raise BadParameter("explain= is true or false, and there once.", parameter="explain")
    access = access_of(scope)
    if access is not None and _WANTED[found[0]]:
        store = unquote(scope["path"].split("/")[3])
        access.require(Needed("metadata", store))
    return _WANTED[found[0]]


class _WithExplanation:
    """Sends an answer with the explanation as its last member, for which its last byte is held back.

    The length of an answer in several pieces is not known at its start.
    """

    def __init__(self, explanation: Explanation, send: Send) -> None:
        self._explanation = explanation
        self._send = send
        self._start: Message | None = None
        self._last = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = self._last + message.get("body", b"")
        is_more = message.get("more_body", False)
        if is_more:
            body, self._last = body[:-1], body[-1:]
        elif body.endswith(b"}"):
            body = b'%b,"explain":%b}' % (body[:-1], json_body(self._explanation.document()))
        if self._start is not None:
            start, self._start = self._start, None
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            headers += [] if is_more else [(b"content-length", b"%d" % len(body))]
            await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})
