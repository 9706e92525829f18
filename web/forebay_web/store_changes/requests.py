"""What a router posts to a worker for changes: how far each partition was sent, and how long it may wait."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

import msgpack

from forebay.errors import BadRequest
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage, is_cursor

CHANGES_MEDIA_TYPE = "application/vnd.forebay.changes.v1"
"""How pages of changes pass from workers to routers. Another version of the format has another name."""
MAX_WAIT_MS = 1_000
"""How long a poll may wait for changes: as often, its replicas are held to the bounds."""
MAX_POLL_BYTES = 1 << 20
"""What the pages of one poll may take together."""


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
        """The body of the request, which is JSON as all bodies are."""
        cursors = [
            (partition, None if cursor is None else tuple(cursor)) for partition, cursor in self.cursors.items()
        ]
        packed: bytes = msgpack.packb((cursors, self.state, self.wait_ms, self.max_bytes))
        return json.dumps({"changes": base64.b64encode(packed).decode()}).encode()

    @classmethod
    def decode(cls, body: bytes, partitions: int) -> PagesRequest:
        """The request in a body; raises ``BadRequest``."""
        try:
            packed = base64.b64decode(json.loads(body)["changes"], validate=True)
            cursors, state, wait_ms, max_bytes = msgpack.unpackb(packed)
            request = cls(
                {
                    int(partition): None if cursor is None else ChangesCursor(*cursor)
                    for partition, cursor in cursors
                },
                bool(state),
                min(int(wait_ms), MAX_WAIT_MS),
                min(int(max_bytes), MAX_POLL_BYTES),
            )
            known = [cursor for cursor in request.cursors.values() if cursor is not None]
            in_range = all(0 <= partition < partitions for partition in request.cursors)
            if all(map(is_cursor, known)) and in_range and (request.wait_ms > 0 or len(request.cursors) == 1):
                return request
        except (binascii.Error, KeyError, TypeError, ValueError, RecursionError, msgpack.UnpackException):
            pass
        raise BadRequest("The body is not that of a router that follows changes; use GET.")


Outcome = ChangesPage | dict[str, Any]
"""Of one partition: a page, or the document of the problem that there is instead."""


def encode_outcomes(outcomes: dict[int, Outcome]) -> bytes:
    """The answer to a poll, as MessagePack."""
    packed: bytes = msgpack.packb(
        [
            (partition, outcome.encode() if isinstance(outcome, ChangesPage) else json.dumps(outcome))
            for partition, outcome in outcomes.items()
        ]
    )
    return packed


def decode_outcomes(raw: bytes) -> dict[int, Outcome]:
    """The inverse of ``encode_outcomes``; raises ``ValueError`` for anything else."""
    try:
        return {
            int(partition): ChangesPage.decode(outcome)
            if isinstance(outcome, bytes)
            else dict(json.loads(outcome))
            for partition, outcome in msgpack.unpackb(raw)
        }
    except (TypeError, ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"answered with something other than pages of changes: {error!r}") from None
