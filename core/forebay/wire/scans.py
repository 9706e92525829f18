"""Scans: which stored keys a list route reads, how its items look, and where a page ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from forebay.codecs.keys import from_segment
from forebay.codecs.values import all_to_json
from forebay.errors import BadParameter, WrongStoreKind
from forebay.position import Position, decode_opaque, decode_position, encode_opaque, max_position_characters
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.store_spec import StoreSpec
from forebay.stored_keys import (
    END_OF_USER_KEYS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    USER_TAG,
    stored_time,
    successor,
)
from forebay.unproven import UnprovenRanges
from forebay.wire.parameters import ReadParameters, parse_time

SCAN_HEADER = "forebay-scan"
"""Names the scan that a page in frames is of: neither its store nor its bounds are in the page."""
_MAX_CURSOR_IN_URL = 8 << 10
"""Characters of a cursor that is part of a URL: a longer one, which follows a long key, is posted."""


class ScanRoute(NamedTuple):
    """A list route: the member with its items, the store kind it reads, whether it covers one key."""

    items: str
    kind: str
    keyed: bool

    @property
    def path(self) -> str:
        return "/v1/stores/{store}/" + ("keys/{key}/" if self.keyed else "") + self.items

    @property
    def store_kind(self) -> StoreKind:
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
    def store_kind(self) -> StoreKind:
        """The store's, as far as items show it: orders are not listed, and versions are followed as entries."""
        own = self.spec.store_kind
        return own if own.lists_times and own.items == self.route.items else self.route.store_kind

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
        kind = self.store_kind
        if not kind.lists_by_time:
            return pairs
        first = stored_time(self.first_ms if oldest_ms is None else max(self.first_ms, oldest_ms))
        return kind.selected(pairs, first, stored_time(self.last_ms))

    def unproven(self, ranges: UnprovenRanges) -> UnprovenRanges:
        """Those of some unproven ranges in which this list may lack entries."""
        ends_ms = self.store_kind.ends_selected(self.spec, self.first_ms, self.last_ms)
        return () if ends_ms is None else tuple(one for one in ranges if one.meets(ends_ms))

    def timestamps_ms(self, keys: list[bytes], values: list[bytes]) -> Sequence[int]:
        """The timestamps of the records of some stored keys and their values."""
        return self.store_kind.timestamps_ms(values, self._times_ms(keys))

    def _times_ms(self, keys: list[bytes]) -> list[tuple[int, ...]]:
        return self.spec.stored_keys.times_ms(keys) if self.store_kind.time_names else []

    def items(self, keys: list[bytes], values: list[bytes]) -> list[bytes]:
        """The JSON of each item, of its stored key and its value."""
        spec, kind = self.spec, self.store_kind
        value, texts = kind.values_json(spec.value_codec, values)
        times_ms = self._times_ms(keys)
        times = kind.shown_times_ms(spec, times_ms) if kind.time_names else []
        stamps = kind.timestamps_ms(values, times_ms)
        if self.route.keyed:
            form = item_form(kind, None, value)
            return [form % item for item in zip(*times, texts, stamps, strict=True)]
        key, names = all_to_json(spec.key_codec, spec.stored_keys.plains(keys))
        form = item_form(kind, key, value)
        return [form % item for item in zip(names, *times, texts, stamps, strict=True)]


def item_form(kind: StoreKind, key: bytes | None, value: bytes | None) -> bytes:
    """The form of an item's JSON, from the forms of its key and its value where it has them."""
    members = [] if key is None else [b'"key":' + key]
    members += [b'"%b":%%d' % name.encode() for name in kind.time_names]
    members += [] if value is None else [b'"value":' + value, b'"timestamp_ms":%d']
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
        first_ms, last_ms = time_range(parameters)
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


def time_range(parameters: ReadParameters) -> tuple[int, int]:
    """The epoch milliseconds, half-open, that ``from`` and ``to`` select, where these are times; raises
    ``BadParameter``."""
    first_ms = MIN_TIME_MS if parameters.start is None else parse_time("from", parameters.start)
    last_ms = MAX_TIME_MS if parameters.end is None else parse_time("to", parameters.end)
    _require_order(parameters, first_ms <= last_ms)
    return first_ms, last_ms


def _require_order(parameters: ReadParameters, in_order: bool) -> None:
    """Refuse a range that ends before it begins, which would be taken for one in which there is nothing."""
    if not in_order:
        start, end = (str(bound, "utf-8", "replace") for bound in (parameters.start or b"", parameters.end or b""))
        raise BadParameter(
            f"from={start!r} is after to={end!r}. Exchange them. To list from the end, add reverse=true.",
            parameter="from",
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
    first = start if parameters.start is None else keys.prefix(codec.from_text(parameters.start))
    last = end if parameters.end is None else keys.prefix(codec.from_text(parameters.end))
    _require_order(parameters, None in (parameters.start, parameters.end) or first <= last)
    return max(start, first), min(end, last)


_decode_cursor = msgspec.msgpack.Decoder(tuple[bytes, bytes, str | None, tuple[int, ...]]).decode


@dataclass(frozen=True)
class Cursor:
    """Where a page ended: its scan, the last stored key, the positions read at, and the partitions left out."""

    digest: bytes
    last: bytes
    at: str | None = None
    missing: tuple[int, ...] = ()

    @cached_property
    def position(self) -> Position | None:
        """The position that a later page must at least have reached; raises ``BadParameter``."""
        return None if self.at is None else decode_position(self.at)

    def encode(self) -> str:
        # Packed: it contains a key, and may have to fit into a URL.
        return encode_opaque((self.digest, self.last, self.at, self.missing))

    @classmethod
    def decode(cls, text: str, scan: Scan) -> Cursor:
        """The cursor, which must belong to this scan; raises ``BadParameter``."""
        try:
            digest, last, at, missing = decode_opaque(text, _decode_cursor)
            partitions = scan.spec.partitions
            if len(missing) >= partitions or not all(0 <= partition < partitions for partition in missing):
                raise ValueError("partitions that the store does not have, or all")
            if len(at or "") > max_position_characters(partitions):
                raise ValueError("more offsets than partitions")
            cursor = cls(digest, last, at, missing)
            # Read once: the offsets may be many.
            _ = cursor.position
        except (ValueError, BadParameter):
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
    return json.dumps({"cursor": text}).encode() if len(text) > _MAX_CURSOR_IN_URL else None
