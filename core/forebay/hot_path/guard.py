"""Puts recognised requests to the authenticator, as ``forebay.rest.guard`` does all others."""

from __future__ import annotations

from collections import Counter

from forebay.authentication import Authenticator
from forebay.errors import Problem
from forebay.hot_path.protocol import Handlers, HotPathProtocol, Outcome
from forebay.hot_path.recogniser import HotBatch, HotRequest
from forebay.rest.answers import Answer, problem_answer


def guarded(handlers: Handlers, authenticator: Authenticator | None, refusals: Counter[int]) -> Handlers:
    """The handlers, or such as ask the authenticator first; without one, nothing comes in between.

    ``refusals`` counts what is refused, by status.
    """
    return handlers if authenticator is None else _Guarded(handlers, authenticator, refusals)


class _Guarded:
    """Lets through to the handlers what the authenticator lets through."""

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
