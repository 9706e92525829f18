"""The changes of one key as events: a stream's parameters, and its events.

Faults of the request are reported as a status. Passing ones are reported as a ``problem`` event instead, because a
browser's EventSource gives up for good on any status but 200.
"""

from __future__ import annotations

from dataclasses import replace

from forebay.errors import BadParameter, PartitionerMissing, Problem, WrongStoreKind
from forebay.position import decode_position, encode_position, later_position
from forebay.store_kinds import SINGLE_VALUE_KINDS
from forebay.store_spec import StoreSpec
from forebay.wire.answers import TRANSIENT
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import require_kind

KEEP_ALIVE_MS = 15_000
"""A stream sends a comment after this long without an event."""

LAST_EVENT_ID_PARAMETER = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Id of the last event received; the stream continues from there. With an unknown one it begins "
    "anew.",
}


def resumed(parameters: ReadParameters, last_event_id: str | None) -> ReadParameters:
    """A stream's parameters, with the position from ``Last-Event-ID`` if it is that of an event.

    Why: an EventSource sends what it last received, from whomever, and gives up on an error.
    """
    try:
        decode_position(last_event_id or "")
    except BadParameter:
        return parameters
    minimum = None if parameters.min_position is None else encode_position(parameters.min_position)
    token = later_position(minimum, last_event_id)
    assert token is not None
    return replace(parameters, min_position=decode_position(token))


def require_followed(spec: StoreSpec) -> None:
    """Raise ``WrongStoreKind`` unless the store has one value per key."""
    try:
        require_kind(spec, *SINGLE_VALUE_KINDS)
    except WrongStoreKind as problem:
        problem.detail += " Poll the key's list instead."
        raise


def is_transient(problem: Problem) -> bool:
    """Whether another replica, or a later attempt, may not have a problem."""
    return problem.status in TRANSIENT and not isinstance(problem, PartitionerMissing)
