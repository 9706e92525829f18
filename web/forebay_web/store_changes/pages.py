"""Pages of a partition's changes, and what a router posts to a worker for them.

A page has items with a value, items that are gone, and how far they lead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from forebay.clock import boot_ms
from forebay.errors import BadParameter, BadRequest
from forebay.lag import Lag
from forebay.position import decode_position
from forebay.wire.answer_aging import IN_TRANSIT_MS
from forebay.wire.answer_schemas.members import Natural, read_json
from forebay.wire.answers import json_body, lag_json
from forebay.wire.scan_pages import PageSource
from forebay.wire.server_sent_events import Event
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.selection import KeySelection

CHANGES_MEDIA_TYPE = "application/vnd.forebay.changes.v1"
"""How pages of changes pass from workers to routers. Another version of the format has another name."""
MAX_WAIT_MS = 1_000
"""How long a poll may wait for changes: as often, its replicas are held to the bounds."""
MAX_POLL_BYTES = 1 << 20
"""What the pages of one poll may take together."""

_decode = msgspec.msgpack.Decoder(tuple[ChangesCursor, PageSource, list[bytes], list[bytes], bool, bool]).decode


@dataclass(frozen=True)
class ChangesPage:
    """What one read of a partition found, and the cursor after it."""

    cursor: ChangesCursor
    source: Mapping[str, Any]
    """``partition``, ``position``, ``role``, ``host`` and ``lag`` as JSON values."""
    items: list[bytes] = field(default_factory=list)
    """The JSON of each key, window or session with its value."""
    gone: list[bytes] = field(default_factory=list)
    """The JSON of those that were deleted, without value."""
    more: bool = False
    """Whether there is more that was known when this was read."""
    reset: bool = False
    """Whether the follower has to forget the partition: it cannot be known what was deleted since."""
    as_of_boot_ms: float = field(default_factory=boot_ms)
    """As of when the lag is right; of a page that was decoded, when that was done."""
    _events: list[tuple[float, list[bytes]]] = field(default_factory=list)

    @property
    def partition(self) -> int:
        return int(self.source["partition"])

    @property
    def host(self) -> str:
        return str(self.source["host"])

    @property
    def size_bytes(self) -> int:
        """What the items take."""
        return sum(map(len, self.items)) + sum(map(len, self.gone))

    def lag_at(self, now_boot_ms: float) -> Lag:
        """The lag of its content at a time."""
        return Lag(**self.source["lag"]).aged(max(0.0, now_boot_ms - self.as_of_boot_ms))

    def events(self, selection: KeySelection, now_boot_ms: float) -> list[bytes]:
        """The page as events without ids and ends, encoded once for all that send it soon; their lag is of now."""
        if not self._events or now_boot_ms - self._events[0][0] > IN_TRANSIT_MS:
            self._events[:] = [(now_boot_ms, list(self._encoded(selection, now_boot_ms)))]
        return self._events[0][1]

    def _encoded(self, selection: KeySelection, now_boot_ms: float) -> Iterator[bytes]:
        waited = now_boot_ms - self.as_of_boot_ms > IN_TRANSIT_MS
        lag = self.lag_at(now_boot_ms) if waited else Lag(**self.source["lag"])
        lasting = {name: value for name, value in self.source.items() if name != "lag"}
        tail = b'],%b,"lag":%b}' % (json_body(lasting)[1:-1], lag_json(lag))
        head = b'{"store":%b,"%b":[' % (json.dumps(selection.spec.name).encode(), selection.items.encode())
        for name, items in (("values", self.items), ("absent", self.gone)):
            if items:
                yield Event(name, head + b",".join(items) + tail).fields()

    def encode(self) -> bytes:
        packed = self.cursor, self.source, self.items, self.gone, self.more, self.reset
        return msgspec.msgpack.encode(packed)

    @classmethod
    def decode(cls, raw: bytes) -> ChangesPage:
        """The inverse of ``encode``; raises ``ValueError`` for anything else."""
        try:
            cursor, source, items, gone, more, reset = _decode(raw)
            decode_position(source["position"])
        except (BadParameter, ValueError) as error:
            raise ValueError(f"answered with something other than a page of changes: {error!r}") from None
        return cls(cursor, source, items, gone, more, reset)


class PagesRequest(Struct, frozen=True):
    """One read of some partitions.

    Of one partition with ``state``, the next page of its state is read. Otherwise it is a poll for changes, which
    waits up to ``wait_ms`` for some; the answer has the partitions that have any, and all at the end of the wait.
    Partitions are read in the order of the cursors until their pages take about ``max_bytes`` together.
    """

    cursors: dict[Natural, ChangesCursor | None]
    state: bool = False
    wait_ms: int = 0
    max_bytes: int = MAX_POLL_BYTES

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes, partitions: int) -> PagesRequest:
        """The request in a body; raises ``BadRequest``."""
        try:
            sent = read_json(body, cls)
        except ValueError:
            raise _not_of_a_router() from None
        request = cls(
            sent.cursors, sent.state, min(sent.wait_ms, MAX_WAIT_MS), min(sent.max_bytes, MAX_POLL_BYTES)
        )
        in_range = all(partition < partitions for partition in request.cursors)
        if not in_range or (request.wait_ms <= 0 and len(request.cursors) != 1):
            raise _not_of_a_router()
        return request


def _not_of_a_router() -> BadRequest:
    return BadRequest("The body is not that of a router that follows changes; use GET.")


_decode_outcomes = msgspec.msgpack.Decoder(list[tuple[int, Any]]).decode

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
