"""Checks recognised requests with the authenticator, as ``forebay_web.request_guard`` does for all others."""

from __future__ import annotations

from collections import Counter

from forebay.authentication import Authenticator
from forebay.errors import Problem
from forebay.grants import Access, GrantedTokens
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay_web.fast_path.protocol import FastPathProtocol, Handlers, KeyHandler, Outcome
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate


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
        self._granted = authenticator if isinstance(authenticator, GrantedTokens) else None
        self._refusals = refusals

    def key(self, template: RequestTemplate) -> KeyHandler:
        keys, authorization = f"/v1/stores/{template.store}/keys/", template.authorization
        authenticate, granted = self._authenticator.authenticate, self._granted
        read: KeyHandler | None = None
        unlimited: Access | None = None
        """What was found to allow every key of the store."""

        def guarded(segment: bytes, protocol: FastPathProtocol) -> Outcome:
            nonlocal read, unlimited
            try:
                access = None if granted is None else granted.access(authorization)
                if access is None or access is not unlimited:
                    authenticate("GET", keys + segment.decode(), authorization)
                    if access is not None and "" in access.prefixes("read", template.store):
                        unlimited = access
            except Problem as problem:
                return self._refused(problem)
            if read is None:
                # Only now: whoever is refused has nothing prepared.
                read = self._handlers.key(template)
            return read(segment, protocol)

        return guarded

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        try:
            self._authenticator.authenticate(*request.target(), request.template.authorization)
            if self._limits_keys(request.template):
                # Each of them has to be looked at.
                return None
        except Problem as problem:
            return self._refused(problem)
        return self._handlers.batch(request, protocol)

    def _limits_keys(self, template: RequestTemplate) -> bool:
        """Whether whoever sends a batch may read some keys of its store only."""
        if self._granted is None:
            return False
        return "" not in self._granted.access(template.authorization).prefixes("read", template.store)

    def _refused(self, problem: Problem) -> HttpAnswer:
        self._refusals[problem.status] += 1
        return problem_answer(problem)
