"""Checks every request with the authenticator before the application sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.authentication import Authenticator
from forebay.errors import BadRequest, Problem
from forebay.identity import IDENTITY_PATH
from forebay.rest.answers import problem_answer

OPEN_PATHS = ("/livez", "/readyz", IDENTITY_PATH)
"""Open to all: load balancers and supervisors have no token, and routers send theirs only to whom they know."""

_LATER_REFUSAL = "forebay.later_refusal"
_UNKNOWN = "forebay.unknown"


def is_unknown(scope: Scope) -> bool:
    """Whether a request to an open path comes from somebody who would get nothing else."""
    return bool(scope.get(_UNKNOWN, False))


def _path(scope: Scope) -> str:
    return str(scope["raw_path"].decode("ascii", "replace"))


def later_refusal(scope: Scope) -> Problem | None:
    """Why an accepted request would now be refused, None if it would not: an answer may outlast a token."""
    refusal: Callable[[Scope], Problem | None] | None = scope.get(_LATER_REFUSAL)
    return None if refusal is None else refusal(scope)


class Guard:
    """Answers requests that the authenticator refuses; others, and ``OPEN_PATHS``, go on to the application.

    It runs after CORS, which answers preflights by itself: a browser sends no token with them. ``refusals`` counts
    refused requests by status.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, refusals: Counter[int]) -> None:
        self._app = app
        self._authenticator = authenticator
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._refusal(scope)
        if _path(scope) in OPEN_PATHS:
            scope[_UNKNOWN] = problem is not None
            await self._app(scope, receive, send)
            return
        if problem is None:
            scope[_LATER_REFUSAL] = self._refusal
            await self._app(scope, receive, send)
            return
        self._refusals[problem.status] += 1
        answer = problem_answer(problem)
        headers = [*answer.headers(), (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _refusal(self, scope: Scope) -> Problem | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:
            return BadRequest("The request has more than one Authorization header; send one.")
        try:
            self._authenticator.authenticate(
                scope["method"], _path(scope), given[0].strip(b" \t") if given else b""
            )
        except Problem as problem:
            return problem
        return None
