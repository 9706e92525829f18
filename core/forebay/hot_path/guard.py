"""Puts recognised requests to the authenticator, as ``forebay.rest.guard`` does all others."""

from __future__ import annotations

from collections import Counter

from forebay.authentication import Authenticator
from forebay.errors import Problem
from forebay.hot_path.protocol import Handler, HotPathProtocol, Slot
from forebay.hot_path.recogniser import HotRequest
from forebay.rest.answers import Answer, problem_answer


def guarded(
    handler: Handler,
    authenticator: Authenticator | None,
    refusals: Counter[int],
) -> Handler:
    """The handler, or one that asks the authenticator first; without one, nothing comes in between.

    ``refusals`` counts what is refused, by status.
    """
    if authenticator is None:
        return handler

    def handle(request: HotRequest, protocol: HotPathProtocol) -> Answer | Slot | None:
        path = f"/v1/stores/{request.form.store}/keys/{request.segment.decode()}"
        try:
            authenticator.authenticate("GET", path, request.form.authorization)
        except Problem as problem:
            refusals[problem.status] += 1
            return problem_answer(problem)
        return handler(request, protocol)

    return handle
