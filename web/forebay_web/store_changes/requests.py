"""What a router posts to a worker for changes: how far each partition was sent, and how long it may wait."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from forebay.errors import BadRequest
from forebay.wire.answer_schemas.members import Natural
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage

CHANGES_MEDIA_TYPE = "application/vnd.forebay.changes.v1"
"""How pages of changes pass from workers to routers. Another version of the format has another name."""
MAX_WAIT_MS = 1_000
"""How long a poll may wait for changes: as often, its replicas are held to the bounds."""
MAX_POLL_BYTES = 1 << 20
"""What the pages of one poll may take together."""


class _Body(Struct):
    """A request's body, which is JSON as all bodies are."""

    changes: bytes


_decode_request = msgspec.msgpack.Decoder(tuple[list[tuple[Natural, ChangesCursor | None]], bool, int, int]).decode
_decode_outcomes = msgspec.msgpack.Decoder(list[tuple[int, Any]]).decode


@dataclass(frozen=True)
class PagesRequest:
    """One read of some partitions.

    Of one partition with ``state``, the next page of its state is read. Otherwise it is a poll for changes, which
    waits up to ``wait_ms`` for some; the answer has the partitions that have any, and all at the end of the wait.
    Partitions are read in the order of the cursors until their pages take about ``max_bytes`` together.
    """

    cursors: dict[int, ChangesCursor | None]
    state: bool = False
    wait_ms: int = 0
    max_bytes: int = MAX_POLL_BYTES

    def encode(self) -> bytes:
        """The body of the request."""
        packed = list(self.cursors.items()), self.state, self.wait_ms, self.max_bytes
        return msgspec.json.encode(_Body(msgspec.msgpack.encode(packed)))

    @classmethod
    def decode(cls, body: bytes, partitions: int) -> PagesRequest:
        """The request in a body; raises ``BadRequest``."""
        try:
            packed = msgspec.json.decode(body, type=_Body).changes
            cursors, state, wait_ms, max_bytes = _decode_request(packed)
        except (ValueError, RecursionError):
            raise _not_of_a_router() from None
        request = cls(dict(cursors), state, min(wait_ms, MAX_WAIT_MS), min(max_bytes, MAX_POLL_BYTES))
        in_range = all(partition < partitions for partition in request.cursors)
        if not in_range or (request.wait_ms <= 0 and len(request.cursors) != 1):
            raise _not_of_a_router()
        return request


def _not_of_a_router() -> BadRequest:
    return BadRequest("The body is not that of a router that follows changes; use GET.")


Outcome = ChangesPage | dict[str, Any]
"""Of one partition: a page, or the document of the problem that there is instead."""


def encode_outcomes(outcomes: dict[int, Outcome]) -> bytes:
    """The answer to a poll, as MessagePack."""
    return msgspec.msgpack.encode(
        [
            (partition, outcome.encode() if isinstance(outcome, ChangesPage) else json.dumps(outcome))
            for partition, outcome in outcomes.items()
        ]
    )


def decode_outcomes(raw: bytes) -> dict[int, Outcome]:
    """The inverse of ``encode_outcomes``; raises ``ValueError`` for anything else."""
    try:
        return {
            partition: ChangesPage.decode(outcome) if isinstance(outcome, bytes) else dict(json.loads(outcome))
            for partition, outcome in _decode_outcomes(raw)
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"answered with something other than pages of changes: {error!r}") from None
