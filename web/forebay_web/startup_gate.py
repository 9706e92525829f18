"""Answers while a process starts, which may take long: it moves state, reads logs and joins its group first.

Supervisors see that it lives, everyone else that it is not ready.
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from forebay.errors import NotReady
from forebay.wire.answers import json_answer, problem_answer
from forebay_web.application import respond
from forebay_web.fast_path import (
    FastPathProtocol,
    KeyHandler,
    Outcome,
    RecognisedBatch,
    RequestTemplate,
    left_to_slow_path,
    make_protocol,
)
from forebay_web.limits import Limits

_LIVE = json_answer({"live": True})


async def answer_while_starting(scope: Scope, receive: Receive, send: Send) -> None:
    """The application until there is one. Its connections end, since they are not offered to the fast path."""
    problem = NotReady("The process is starting.", retry_after_s=1)
    response = respond(_LIVE if scope["path"] == "/livez" else problem_answer(problem))
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def starting_protocol(limits: Limits) -> type[FastPathProtocol]:
    """The protocol of connections that are accepted meanwhile, which has nothing answered on the fast path."""
    return make_protocol(_NoHandlers(), None, lambda: False, limits)


class _NoHandlers:
    def key(self, template: RequestTemplate) -> KeyHandler:
        return left_to_slow_path

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        return None
