"""Pages of a partition's changes: items that have a value, items that are gone, and how far they lead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay.clock import boot_ms
from forebay.errors import BadParameter
from forebay.lag import Lag
from forebay.position import decode_position
from forebay.wire.answer_aging import IN_TRANSIT_MS
from forebay.wire.answers import lag_json
from forebay.wire.scan_pages import PageSource
from forebay.wire.server_sent_events import Event
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.selection import KeySelection

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
        """The partition."""
        return int(self.source["partition"])

    @property
    def host(self) -> str:
        """The worker that read it."""
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
        tail = b'],%b,"lag":%b}' % (_members(lasting), lag_json(lag))
        head = b'{"store":%b,"%b":[' % (json.dumps(selection.spec.name).encode(), selection.items.encode())
        for name, items in (("values", self.items), ("absent", self.gone)):
            if items:
                yield Event(name, head + b",".join(items) + tail).fields()

    def encode(self) -> bytes:
        """The page as MessagePack."""
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


def _members(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"))[1:-1].encode()
