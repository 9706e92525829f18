"""Scans: which stored keys a list route reads, how its items look, and where a page ends."""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from forebay.codecs import all_to_json, from_segment
from forebay.errors import BadParameter, WrongStoreKind
from forebay.lag import Lag
from forebay.position import Position, decode_position
from forebay.rest.parameters import ReadParameters, parse_time
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.stored_keys import (
    END_OF_USER_KEYS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    USER_TAG,
    stored_time,
    successor,
)
from forebay.topology import StoreSpec

FRAMES_MEDIA_TYPE = "application/vnd.forebay.frames.v1"
"""How a worker passes a page or a batch to a router, so that no JSON is parsed: items with their stored keys, or
results with their statuses. Another version of the format has another name."""


_MERGED_AT_ONCE, _LEAST_OF_A_PAGE = 4_096, 32
"""Items merged within a turn of the event loop: of all pages together, but for those of a page."""
SCAN_HEADER = "forebay-scan"
"""Names the scan that a page in frames is of: neither its store nor its bounds are in the page."""
_MOST_CURSOR_IN_URL = 8 << 10
"""Characters of a cursor that is part of a URL: a longer one, which follows a long key, is posted."""


class ScanRoute(NamedTuple):
    """A list route: the member with its items, the store kind it reads, whether it covers one key."""

    items: str
    kind: str
    keyed: bool

    @property
    def path(self) -> str:
        """The route's path."""
        return "/v1/stores/{store}/" + ("keys/{key}/" if self.keyed else "") + self.items

    @property
    def store_kind(self) -> StoreKind:
        """The store kind it reads."""
        return STORE_KINDS[self.kind]


SCAN_ROUTES = tuple(
    ScanRoute(kind.items, kind.name, keyed)
    for kind in STORE_KINDS.values()
    for keyed, exists in ((True, kind.lists_each_key), (False, kind.lists_all_keys))
    if exists
)


@dataclass(frozen=True)
class Scan:
    """The scope of one list request: stored keys in ``[start, end)`` whose times pass the filter.

    ``first_ms`` and ``last_ms`` bound, half-open, a window's start or a version's valid-from; a session passes
    if it overlaps them.
    """

    route: ScanRoute
    spec: StoreSpec
    plain: bytes | None
    start: bytes
    end: bytes
    first_ms: int
    last_ms: int
    reverse: bool

    @property
    def digest(self) -> bytes:
        """Eight bytes that identify this scan, for cursors."""
        identity = (
            self.spec.name,
            *self.route,
            self.plain,
            self.start,
            self.end,
            self.first_ms,
            self.last_ms,
            self.reverse,
        )
        return hashlib.sha256(repr(identity).encode()).digest()[:8]

    def after(self, last: bytes) -> tuple[bytes, bytes]:
        """The range that is left after ``last``."""
        # A cursor may be forged, so it must never lead out of the range.
        if self.reverse:
            return self.start, max(self.start, min(self.end, last))
        return min(self.end, max(self.start, last + b"\x00")), self.end

    def selected(self, pairs: list[tuple[bytes, bytes]], oldest_ms: int | None) -> list[tuple[bytes, bytes]]:
        """Those stored keys and values whose times match, and are not before the oldest that is kept."""
        kind = self.route.store_kind
        if not kind.lists_by_time:
            return pairs
        first = stored_time(self.first_ms if oldest_ms is None else max(self.first_ms, oldest_ms))
        return kind.selected(pairs, first, stored_time(self.last_ms))

    def items(self, keys: list[bytes], values: list[bytes]) -> list[bytes]:
        """The JSON of each item, of its stored key and its value."""
        spec, kind = self.spec, self.route.store_kind
        value, texts = kind.values_json(spec.value_codec, values)
        times = kind.shown_times_ms(spec, spec.stored_keys.times_ms(keys)) if kind.time_names else []
        if self.route.keyed:
            form = item_form(kind, None, value)
            return [form % item for item in zip(*times, texts, strict=True)]
        key, names = all_to_json(spec.key_codec, spec.stored_keys.plains(keys))
        form = item_form(kind, key, value)
        return [form % item for item in zip(names, *times, texts, strict=True)]


def item_form(kind: StoreKind, key: bytes | None, value: bytes | None) -> bytes:
    """The form of an item's JSON, from the forms of its key and its value where it has them."""
    members = [] if key is None else [b'"key":' + key]
    members += [b'"%b":%%d' % name.encode() for name in kind.time_names]
    members += [] if value is None else [b'"value":' + value]
    return b"{" + b",".join(members) + b"}"


def make_scan(route: ScanRoute, spec: StoreSpec, segment: bytes | None, parameters: ReadParameters) -> Scan:
    """The scan of a request; raises ``WrongStoreKind``, ``BadKey`` or ``BadParameter``."""
    require_kind(spec, route.kind)
    plain = None if segment is None else from_segment(spec.key_codec, segment)
    first_ms, last_ms = MIN_TIME_MS, MAX_TIME_MS
    kind = route.store_kind
    if not kind.lists_by_time:
        start, end = entry_range(spec, parameters)
    else:
        first_ms = first_ms if parameters.start is None else parse_time("from", parameters.start)
        last_ms = last_ms if parameters.end is None else parse_time("to", parameters.end)
        start, end = USER_TAG, END_OF_USER_KEYS
        if plain is not None:
            start, end = kind.key_range(spec.stored_keys, plain, first_ms, last_ms)
    return Scan(route, spec, plain, start, max(start, end), first_ms, last_ms, parameters.reverse)


def scan_head(scan: Scan) -> bytes:
    """The header line that names a scan."""
    return f"{SCAN_HEADER}: {scan.digest.hex()}\r\n".encode()


def require_kind(spec: StoreSpec, *kinds: str) -> None:
    """Raise ``WrongStoreKind`` unless a store is of one of these kinds."""
    if spec.kind not in kinds:
        raise WrongStoreKind(
            f"The store {spec.name!r} is of kind {spec.kind!r}; this path reads {' and '.join(kinds)} stores.",
            store=spec.name,
            kind=spec.kind,
        )


def prefix_range(spec: StoreSpec, prefix: bytes | None) -> tuple[bytes, bytes]:
    """The stored keys whose keys begin with a prefix, all without one; raises ``BadParameter``."""
    if prefix is None:
        return USER_TAG, END_OF_USER_KEYS
    codec = spec.key_codec
    if codec.fixed_size is not None:
        raise BadParameter(
            f"The keys of {spec.name!r} are {codec.name}, which have no prefixes; use from and to.",
            parameter="prefix",
        )
    # A prefix need not be a complete key: half a character or half a JSON value will do.
    start = spec.stored_keys.beginning(prefix)
    return start, successor(start)


def entry_range(spec: StoreSpec, parameters: ReadParameters) -> tuple[bytes, bytes]:
    """The stored keys that ``prefix``, ``from`` and ``to`` select, where these are keys; raises ``BadParameter``
    or ``BadKey``."""
    codec, keys = spec.key_codec, spec.stored_keys
    start, end = prefix_range(spec, parameters.prefix)
    if parameters.start is not None:
        start = max(start, keys.prefix(codec.from_text(parameters.start)))
    if parameters.end is not None:
        end = min(end, keys.prefix(codec.from_text(parameters.end)))
    return start, end


@dataclass(frozen=True)
class Cursor:
    """Where a page ended: its scan, the last stored key, the positions read at, and the partitions left out."""

    digest: bytes
    last: bytes
    at: str | None = None
    missing: tuple[int, ...] = ()

    @property
    def position(self) -> Position | None:
        """The position that a later page must at least have reached."""
        return None if self.at is None else decode_position(self.at)

    def encode(self) -> str:
        """The opaque cursor."""
        # Packed: it contains a key, and may have to fit into a URL.
        raw: bytes = msgpack.packb((self.digest, self.last, self.at, self.missing))
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str, scan: Scan) -> Cursor:
        """The cursor, which must belong to this scan; raises ``BadParameter``."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            digest, last, at, missing = msgpack.unpackb(raw)
            if not (isinstance(digest, bytes) and isinstance(last, bytes) and isinstance(at, str | None)):
                raise TypeError("neither keys nor a position")
            if at is not None:
                decode_position(at)
            cursor = cls(digest, last, at, tuple(map(int, missing)))
        except (binascii.Error, msgpack.UnpackException, ValueError, TypeError, OverflowError, BadParameter):
            raise BadParameter(
                "The cursor is invalid; use one from an earlier answer.", parameter="cursor"
            ) from None
        if cursor.digest != scan.digest:
            raise BadParameter(
                "The cursor belongs to another query; repeat store, key, bounds and reverse as they were.",
                parameter="cursor",
            )
        return cursor


def posted_cursor(text: str) -> bytes | None:
    """The body of a request for the page after a cursor; None if the cursor fits into the request's URL."""
    return json.dumps({"cursor": text}).encode() if len(text) > _MOST_CURSOR_IN_URL else None


Items = tuple[list[bytes], list[bytes]]
"""Stored keys in order, and the item of each."""


@dataclass
class ScanPage:
    """Some items of one partition with their stored keys, whether more follow, and their provenance."""

    keys: list[bytes] = field(default_factory=list)
    items: list[bytes] = field(default_factory=list)
    more: bool = False
    source: dict[str, Any] = field(default_factory=dict)
    """``partition``, ``position``, ``role``, ``host`` and ``lag`` as JSON values."""
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
        packed: bytes = msgpack.packb((self.keys, self.items, self.more, self.source, self.last))
        return packed

    @classmethod
    def decode(cls, raw: bytes) -> ScanPage:
        """The inverse of ``encode``; raises ``ValueError`` for anything else."""
        try:
            page = cls(*msgpack.unpackb(raw))
            if page._is_whole():
                return page
        except (BadParameter, KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise ValueError(f"answered with something other than a page: {error!r}") from None
        raise ValueError("answered with something other than a page")

    def _is_whole(self) -> bool:
        """Whether all has the types that it must have."""
        decode_position(self.source["position"])
        figures = Lag(**self.source["lag"])
        return (
            len(self.keys) == len(self.items)
            and {*map(type, self.keys)} | {*map(type, self.items)} | {type(self.last)} <= {bytes}
            and all(figure is None or type(figure) is int for figure in figures)
            and (type(self.more), type(self.source["partition"])) == (bool, int)
            and {type(self.source["role"]), type(self.source["host"])} == {str}
        )


def first_end(pages: Iterable[ScanPage], *, reverse: bool) -> bytes | None:
    """The stored key up to which several partitions' pages are all complete, None for the end."""
    ends = [page.last for page in pages if page.more]
    if not ends:
        return None
    return max(ends) if reverse else min(ends)


def window_end(pages: Sequence[ScanPage], *, reverse: bool) -> bytes | None:
    """The same, or one before it up to which there are no more than some thousand items: they are merged within a
    turn of the event loop."""
    most = max(_LEAST_OF_A_PAGE, _MERGED_AT_ONCE // max(1, len(pages)))
    ends = [page.keys[most - 1] for page in pages if len(page.keys) > most]
    end = first_end(pages, reverse=reverse)
    if end is not None:
        ends.append(end)
    if not ends:
        return None
    return max(ends) if reverse else min(ends)


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
