"""What a worker's answer means for the read that it is for."""

from __future__ import annotations

from forebay.errors import Overloaded, UnknownStore
from forebay.routing.failover_policy import AttemptOutcome
from forebay.wire.answers import HttpAnswer, is_problem
from forebay.wire.retryable_statuses import FINAL

RETRYABLE_SOON = frozenset({412, 503})
"""Refusals of what a replica may be able to answer soon."""


def outcome_of(answer: HttpAnswer) -> AttemptOutcome:
    """What a worker's answer means for its read."""
    if is_final(answer):
        return AttemptOutcome.FINAL
    if answer.status == Overloaded.status:
        return AttemptOutcome.OVERLOADED
    return AttemptOutcome.NOT_YET if answer.status in RETRYABLE_SOON else AttemptOutcome.REFUSED


def is_final(answer: HttpAnswer) -> bool:
    """Whether a worker's answer goes to the client, without asking another worker.

    A worker that does not know a store in the router's map is behind in a deployment.
    """
    return answer.status in FINAL and not (answer.status == 404 and is_problem(answer, UnknownStore))
