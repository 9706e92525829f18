"""What a stream of a store's changes follows: some keys, a range of them, or all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from forebay.codecs.values import all_to_json
from forebay.errors import BadParameter, BadRequest
from forebay.store_spec import StoreSpec
from forebay.stored_keys import MAX_TIME_MS, MIN_TIME_MS, TIME_SIZE, successor
from forebay.wire.batches import MAX_KEYS, read_batch_keys
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import SCAN_ROUTES, Scan, entry_range, item_form, prefix_range, time_range

_ROUTES = {route.kind: route for route in SCAN_ROUTES if not route.keyed}
_ENTRIES = _ROUTES["key-value"]
"""Single values are followed as entries."""
_NO_TIME = bytes(TIME_SIZE)


@dataclass(frozen=True)
class KeySelection:
    """The followed part of a store; ``keys`` are plain, None for all within the scan's range."""

    scan: Scan
    keys: tuple[bytes, ...] | None

    @property
    def spec(self) -> StoreSpec:
        return self.scan.spec

    @property
    def items(self) -> str:
        """The member of an event that holds the items: that of the store's lists."""
        return self.scan.route.items

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that identify the selection, for ids."""
        return hashlib.sha256(self.scan.digest + repr(self.keys).encode()).digest()[:8]

    @cached_property
    def partitions(self) -> Sequence[int]:
        """The partitions where what is followed may be, in order."""
        spec = self.spec
        if self.keys is None or spec.stream_partitioner is None:
            return range(spec.partitions)
        return sorted({spec.partition_of(plain) for plain in self.keys})

    def ranges(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The ranges of stored keys to read, in order, each half-open."""
        scan = self.scan
        if self.keys is None:
            yield scan.start, scan.end
            return
        spec = self.spec
        anywhere, single = spec.stream_partitioner is None, not spec.stored_keys.times
        here = [plain for plain in self.keys if anywhere or spec.partition_of(plain) == partition]
        for prefix in sorted(map(spec.stored_keys.prefix, here)):
            if scan.start <= prefix < scan.end:
                yield prefix, prefix + b"\x00" if single else successor(prefix)

    def has(self, stored: bytes) -> bool:
        """Whether a stored key, or a versioned one without its time, is followed, whatever its times."""
        if not self.scan.start <= stored < self.scan.end:
            return False
        keys = self.spec.stored_keys
        return self.keys is None or (stored if self.versioned else keys.prefix_of(stored)) in self._all_prefixes

    @property
    def versioned(self) -> bool:
        """Whether a key has versions, or orders, of which the newest, or highest, is followed."""
        return self.spec.store_kind.last_entry_wins

    def names(self, stored: list[bytes]) -> list[bytes]:
        """The JSON of items that are gone: as they are listed, but without value."""
        spec, keys = self.spec, self.spec.stored_keys
        plains = keys.plains([key + _NO_TIME for key in stored] if self.versioned else stored)
        form, texts = all_to_json(spec.key_codec, plains)
        kind = self.scan.store_kind
        times = kind.shown_times_ms(spec, keys.times_ms(stored)) if kind.time_names else []
        named = item_form(kind, form, None)
        return [named % item for item in zip(texts, *times, strict=True)]

    @cached_property
    def _all_prefixes(self) -> frozenset[bytes]:
        return frozenset(map(self.spec.stored_keys.prefix, self.keys or ()))


def make_selection(spec: StoreSpec, parameters: ReadParameters) -> KeySelection:
    """What a request follows; raises ``BadParameter`` or ``BadKey``."""
    first_ms, last_ms = MIN_TIME_MS, MAX_TIME_MS
    route = _ENTRIES if spec.store_kind.has_single_values else _ROUTES[spec.kind]
    if route.store_kind.lists_by_time:
        start, end = prefix_range(spec, parameters.prefix)
        first_ms, last_ms = time_range(parameters)
    else:
        start, end = entry_range(spec, parameters)
    scan = Scan(route, spec, None, start, max(start, end), first_ms, last_ms, reverse=False)
    return KeySelection(scan, None if parameters.keys is None else _keys(spec, parameters.keys))


def _keys(spec: StoreSpec, text: bytes) -> tuple[bytes, ...]:
    try:
        keys = read_batch_keys(b'{"keys":%b}' % text).values
    except BadRequest:
        # Its detail is about a body.
        raise BadParameter(
            f'keys must be a JSON array of at most {MAX_KEYS} keys, such as ["UA","AA"].', parameter="keys"
        ) from None
    if not keys:
        raise BadParameter("keys is empty; leave it out to follow the whole store.", parameter="keys")
    return tuple(sorted({spec.key_codec.from_json(key) for key in keys}))
