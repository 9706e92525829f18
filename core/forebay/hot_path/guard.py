"""Checks recognised requests with the authenticator, as ``forebay.rest.guard`` does for all others."""

from __future__ import annotations

from collections import Counter

from forebay.authentication import Authenticator
from forebay.errors import Problem
from forebay.hot_path.protocol import Handlers, HotPathProtocol, Outcome
from forebay.hot_path.recogniser import HotBatch, HotRequest
from forebay.rest.answers import Answer, problem_answer


def guarded(handlers: Handlers, authenticator: Authenticator | None, refusals: Counter[int]) -> Handlers:
    """The handlers, wrapped to ask the authenticator first if there is one.

    ``refusals`` counts refused requests by status.
    """
    return handlers if authenticator is None else _Guarded(handlers, authenticator, refusals)


class _Guarded:
    """Passes requests that the authenticator accepts on to the handlers."""

    def __init__(self, handlers: Handlers, authenticator: Authenticator, refusals: Counter[int]) -> None:
        self._handlers = handlers
        self._authenticator = authenticator
        self._refusals = refusals

    def key(self, request: HotRequest, protocol: HotPathProtocol) -> Outcome:
        return self._refusal(request) or self._handlers.key(request, protocol)

    def batch(self, request: HotBatch, protocol: HotPathProtocol) -> Outcome:
        return self._refusal(request) or self._handlers.batch(request, protocol)

    def _refusal(self, request: HotRequest | HotBatch) -> Answer | None:
        method, path = request.target()
        try:
            self._authenticator.authenticate(method, path, request.form.authorization)
        except Problem as problem:
            self._refusals[problem.status] += 1
            return problem_answer(problem)
        return None
