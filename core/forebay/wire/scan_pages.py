"""Pages of scans: what a worker sends of one partition, and how those of several become one list."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NotRequired, TypedDict

import msgspec

from forebay.errors import BadParameter
from forebay.lag import Lag, worst_lag
from forebay.position import decode_position, encode_position, merged_position
from forebay.unproven import united
from forebay.wire.answers import json_body, lag_json
from forebay.wire.scans import Cursor, Scan

FRAMES_MEDIA_TYPE = "application/vnd.forebay.frames.v1"
"""How a worker passes a page or a batch to a router, so that no JSON is parsed: items with their stored keys, or
results with their statuses. Another version of the format has another name."""

UNPROVEN = "unproven"
"""The member of a page's provenance that has its unproven ranges, if it has any."""
SKIPPED_OLD = "skipped_old"
"""The one that has how many entries were left out since their records are too old."""
_OF_THE_PAGE = frozenset({UNPROVEN, SKIPPED_OLD})

_MERGED_AT_ONCE, _MIN_OF_A_PAGE = 4_096, 32
"""Items merged within a turn of the event loop: of all pages together, but for those of a page."""

Items = tuple[list[bytes], list[bytes]]
"""Stored keys in order, and the item of each."""


class _LagFigures(TypedDict):
    record_lag: int | None
    time_lag_ms: int | None
    age_ms: int | None


class PageSource(TypedDict):
    """The provenance of a page, as it passes from a worker to a router."""

    partition: int
    position: str
    role: str
    host: str
    lag: _LagFigures
    unproven: NotRequired[list[tuple[int | None, int]]]
    skipped_old: NotRequired[int]


_decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes], bool, PageSource, bytes]).decode


@dataclass
class ScanPage:
    """Some items of one partition with their stored keys, whether more follow, and their provenance."""

    keys: list[bytes] = field(default_factory=list)
    items: list[bytes] = field(default_factory=list)
    more: bool = False
    source: dict[str, Any] = field(default_factory=dict)
    """``partition``, ``position``, ``role``, ``host`` and ``lag`` as JSON values, and what is of the page."""
    last: bytes = b""
    """The stored key up to which the page is complete, maybe past its last item; empty if nothing is."""

    def take_to(self, bound: bytes | None, *, reverse: bool) -> Items:
        """The items up to and including a stored key, all of them without one; they are removed from the page."""
        keys, items = self.keys, self.items
        count = len(keys) if bound is None else _count_to(keys, bound, reverse)
        if not count:
            return [], []
        self.keys, self.items = keys[count:], items[count:]
        return keys[:count], items[:count]

    def encode(self) -> bytes:
        """The page as MessagePack, which packs and unpacks bytes without parsing them."""
        return msgspec.msgpack.encode((self.keys, self.items, self.more, self.source, self.last))

    @classmethod
    def decode(cls, raw: bytes) -> ScanPage:
        """The inverse of ``encode``; raises ``ValueError`` for anything else."""
        try:
            keys, items, more, source, last = _decode(raw)
            if len(keys) != len(items):
                raise ValueError(f"{len(keys)} keys of {len(items)} items")
            decode_position(source["position"])
        except (BadParameter, ValueError) as error:
            raise ValueError(f"answered with something other than a page: {error!r}") from None
        return cls(keys, items, more, dict(source), last)


def first_end(pages: Iterable[ScanPage], *, reverse: bool) -> bytes | None:
    """The stored key up to which several partitions' pages are all complete, None for the end."""
    ends = [page.last for page in pages if page.more]
    return max(ends, default=None) if reverse else min(ends, default=None)


def window_end(pages: Sequence[ScanPage], *, reverse: bool) -> bytes | None:
    """The same, or one before it up to which there are no more than some thousand items: they are merged within a
    turn of the event loop."""
    most = max(_MIN_OF_A_PAGE, _MERGED_AT_ONCE // max(1, len(pages)))
    ends = [page.keys[most - 1] for page in pages if len(page.keys) > most]
    end = first_end(pages, reverse=reverse)
    if end is not None:
        ends.append(end)
    return max(ends, default=None) if reverse else min(ends, default=None)


def merging(pages: Sequence[ScanPage], *, reverse: bool) -> Iterator[tuple[list[bytes], Callable[[int], bytes]]]:
    """Merge what several partitions' pages have up to the key to which they are all complete, some thousand items
    at a time; they are removed from the pages."""
    end = first_end(pages, reverse=reverse)
    while True:
        up_to = window_end(pages, reverse=reverse)
        yield merge([page.take_to(up_to, reverse=reverse) for page in pages], reverse=reverse)
        if up_to == end:
            return


def merge(runs: Iterable[Items], *, reverse: bool) -> tuple[list[bytes], Callable[[int], bytes]]:
    """Items of several partitions in one order, and the stored key of each by its place.

    Sorting finds what is ordered already.
    """
    found = [run for run in runs if run[0]]
    if len(found) == 1:
        keys, items = found[0]
        return items, keys.__getitem__
    keys = list(chain.from_iterable(keys for keys, _ in found))
    items = list(chain.from_iterable(items for _, items in found))
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)
    return list(map(items.__getitem__, order)), lambda place: keys[order[place]]


def _count_to(keys: list[bytes], bound: bytes, reverse: bool) -> int:
    """How many keys of a page are at or before the bound."""
    if reverse:
        return bisect.bisect_right(keys, False, key=lambda key: key < bound)
    return bisect.bisect_right(keys, bound)


def list_head(scan: Scan) -> bytes:
    """Up to and including the opening bracket of the items."""
    key = b"" if scan.plain is None else b'"key":%b,' % scan.spec.key_codec.to_json(scan.plain)
    return b'{"store":%b,%b"%b":[' % (json.dumps(scan.spec.name).encode(), key, scan.route.items.encode())


def list_tail(sources: Iterable[dict[str, Any]], following: Cursor | None, missing: Iterable[int]) -> bytes:
    """From the closing bracket on: ``next``, ``complete``, why not, the worst lag, and every partition's."""
    listed = sorted(sources, key=lambda source: int(source["partition"]))
    partitions = [provenance_alone(source) for source in listed]
    counts = [source[SKIPPED_OLD] for source in listed if SKIPPED_OLD in source]
    absent = sorted(missing)
    unproven = united(chain.from_iterable(source.get(UNPROVEN, ()) for source in listed))
    worst = worst_lag([Lag(**source["lag"]) for source in partitions])
    return b'],"next":%b,"complete":%b,%b%b%b"lag":%b,"partitions":%b}' % (
        json.dumps(None if following is None else following.encode()).encode(),
        b"false" if absent or unproven else b"true",
        b'"missing":%b,' % json.dumps(absent).encode() if absent else b"",
        b'"unproven":%b,' % json_body([one._asdict() for one in unproven]) if unproven else b"",
        b'"skipped_old":%d,' % sum(counts) if counts else b"",
        lag_json(worst),
        json_body(partitions),
    )


def provenance_alone(source: dict[str, Any]) -> dict[str, Any]:
    """A partition's provenance without what its page has beside it."""
    return {name: value for name, value in source.items() if name not in _OF_THE_PAGE}


def joined_position(sources: list[dict[str, Any]]) -> str | None:
    """One token for several partitions' positions; None if there are none or their logs differ."""
    positions = [decode_position(source["position"]) for source in sources]
    if len({position.log for position in positions}) != 1:
        return None
    return encode_position(merged_position(positions))
