"""The kinds of stores. A kind is one class here, and one entry of ``STORE_KINDS``.

What needs a layer that may not be imported here, such as Spark's, is in a table of that layer: ``KIND_COLUMNS`` in
``forebay_spark.kind_columns``, ``COMPACTABLE`` in ``forebay_changelog.sqlite.compaction``, ``CONVERSIONS`` in
``forebay_tap.conversion`` and ``ITEM_TYPES`` in ``forebay_client.results``. A test holds that each has every
kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias
from zlib import crc32

from forebay.clock import latest_epoch_ms
from forebay.codecs.values import ValueCodec, all_to_json, decoded_key
from forebay.record_orders import split_order, split_order_bytes
from forebay.retention import LogRetention, Retention, expired_to_ms, history_begins_ms, oldest_kept_ms
from forebay.stored_keys import (
    MAX_TIME_MS,
    MIN_TIME_MS,
    TIME_SIZE,
    USER_TAG,
    KeyLayout,
    LogicalKey,
    StoredKeys,
    successor,
)
from forebay.stored_values import STAMP_SIZE, contents, decode_version, timestamp_ms_of, timestamps_ms

_PASSES_PER_HISTORY = 16
"""How much (as a fraction of its retention) a versioned store may exceed its minimum size."""


_PASSES_PER_TTL = 16
_LONGEST_BETWEEN_PASSES_MS = 5_000

Pair: TypeAlias = tuple[bytes, bytes]
"""A stored key and its value."""


class ExpiryRule(Protocol):
    """Which entries of a store expire, and how often it is worth searching for them."""

    by_successor: bool
    """Whether only the next entry shows that one has expired, so that each part searched begins with the last
    entry of the one before."""

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        """The oldest time, or moment of history, that a store keeps; None if it keeps all."""

    def step_ms(self, store: Retention) -> int:
        """By how much that must have grown before the store is searched again."""

    def expired(self, keys: StoredKeys, pairs: Sequence[Pair], oldest_ms: int) -> list[bytes]:
        """The stored keys of those of some successive entries that have expired."""


class ExpiryByEnd:
    """A window or session expires a time after its end."""

    by_successor = False

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        return oldest_kept_ms(store, stream_time_ms)

    def step_ms(self, store: Retention) -> int:
        return store.window_size_ms or store.gap_ms or 1

    def expired(self, keys: StoredKeys, pairs: Sequence[Pair], oldest_ms: int) -> list[bytes]:
        parse = keys.parse
        return [key for key, _ in pairs if parse(key).times_ms[0] < oldest_ms]


class ExpiryBySuccessor:
    """A version expires once its successor was already in force when history begins."""

    by_successor = True

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        return history_begins_ms(store, stream_time_ms)

    def step_ms(self, store: Retention) -> int:
        return max(1, (store.history_retention_ms or 0) // _PASSES_PER_HISTORY)

    def expired(self, keys: StoredKeys, pairs: Sequence[Pair], oldest_ms: int) -> list[bytes]:
        return [
            version
            for (version, _), (following, _) in pairwise(pairs)
            if keys.prefix_of(version) == keys.prefix_of(following)
            and keys.parse(following).times_ms[0] <= oldest_ms
        ]


class ExpiryByAge:
    """A value expires a time after its record's timestamp, by the clock."""

    by_successor = False

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        expired_ms = expired_to_ms(store, latest_epoch_ms())
        return None if expired_ms is None else expired_ms + 1

    def step_ms(self, store: Retention) -> int:
        return min(_LONGEST_BETWEEN_PASSES_MS, max(1, (store.ttl_ms or 0) // _PASSES_PER_TTL))

    def expired(self, keys: StoredKeys, pairs: Sequence[Pair], oldest_ms: int) -> list[bytes]:
        return [key for key, value in pairs if timestamp_ms_of(value) < oldest_ms]


Columns: TypeAlias = list[tuple[int, ...]]
"""Of each of several times that of every entry, in epoch milliseconds."""


class StoreKind(KeyLayout, Protocol):
    """All that differs between kinds of stores, except what their layers' own tables have.

    A kind has no state. What it does not define is as stated here. Those that ask it in a loop take its functions
    out of the loop.
    """

    items: str
    """The member of its lists, and the end of their path."""
    keeps_versions: bool = False
    """Whether each record is a version of its key, valid from the record's timestamp (KIP-889), so that the log is
    history. Otherwise times are at the end of a record's key, as Kafka's windowed serializers write it."""
    last_entry_wins: bool = False
    """Whether a key has entries of which the last is its value. Deletions are entries too (``encode_version``):
    what they prevail over may still come."""
    with_latest_by: StoreKind | None = None
    """What it is with ``latest_by``; None if it cannot have that."""
    has_forms: bool = False
    """Whether one key may be several to the log, each perhaps in another partition, of which the newest counts."""
    with_schema_keys: StoreKind | None = None
    """What it is if keys carry the id of a schema; None if they cannot."""
    lists_each_key: bool = True
    """Whether there is a list of one key's items."""
    lists_all_keys: bool = True
    """Whether there is a list of all keys' items."""
    lists_by_time: bool = True
    """Whether the range of a list is of times. Otherwise it is of keys."""
    time_names: tuple[str, ...] = ()
    """The names of an entry's times in documents, in their order there."""
    lists_times: bool = True
    """Whether lists show them."""
    expiry: ExpiryRule | None = None
    """What expires in it, None if nothing does."""
    required: tuple[str, ...] = ()
    """Durations in milliseconds that the topology must give."""
    optional: tuple[str, ...] = ()
    """Durations that it may give."""

    def durations_fault(self, durations: Mapping[str, int]) -> str | None:
        """What is wrong with durations that a topology gives, with the remedy; None if nothing is."""
        return None

    def shown_times_ms(self, store: Retention, times_ms: Columns) -> Columns:
        """The times of ``time_names`` of some entries, from those of their stored keys; a column of each time."""
        return times_ms

    def key_range(self, keys: StoredKeys, plain: bytes, first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
        """The stored keys, half-open, in which those of one key's entries are that times select."""
        prefix = keys.prefix(plain)
        start = prefix if first_ms == MIN_TIME_MS else keys.stored(plain, first_ms)
        return start, successor(prefix) if last_ms == MAX_TIME_MS else keys.stored(plain, last_ms)

    def selected(self, pairs: list[Pair], first: bytes, last: bytes) -> list[Pair]:
        """Those stored keys and values whose times are in a half-open range of stored times."""
        # Times sort as they are stored, so keys need not be parsed.
        return [pair for pair in pairs if first <= pair[0][-TIME_SIZE:] < last]

    def newest(self, pairs: Iterable[Pair]) -> Pair | None:
        """The one that is the key's value, of all its entries from the last to the first; None without any."""
        return next(iter(pairs), None)

    def values_json(self, codec: ValueCodec, values: list[bytes]) -> tuple[bytes, list[bytes]]:
        """The JSON of stored values, as of ``all_to_json``."""
        return all_to_json(codec, contents(values))

    def timestamps_ms(self, values: list[bytes], times_ms: Columns) -> Sequence[int]:
        """The timestamps of the records of stored values, whose keys have some times."""
        return timestamps_ms(values)

    def log_retention(self, store: Retention) -> LogRetention:
        """What the log of such a store has to keep."""
        return LogRetention()

    def time_to_end_ms(self, store: Retention) -> int | None:
        """How long after the first time of its stored key an entry ends; None if ends do not move stream time."""
        return None

    def ends_selected(self, store: Retention, first_ms: int, last_ms: int) -> tuple[int, int] | None:
        """The ends, half-open, that entries may have which these times select; None if entries have no end."""
        return None

    @property
    def has_single_values(self) -> bool:
        """Whether a key has one value at a time, so that it can be read and followed without a list."""
        return self.times == 0 or self.last_entry_wins

    @property
    def durations(self) -> frozenset[str]:
        """Every duration that the topology may give."""
        return frozenset((*self.required, *self.optional))


def split_windowed(layout: KeyLayout, key: bytes) -> LogicalKey:
    """User key and timestamps; raises ``ValueError`` if the key is too short for them."""
    cut = len(key) - TIME_SIZE * layout.times
    if cut < 0:
        raise ValueError(f"a {layout.name} changelog key of {len(key)} bytes has no room for its timestamps")
    return LogicalKey(key[:cut], struct.unpack(f">{layout.times}q", key[cut:]))


class LatestKind(StoreKind):
    """The layout is that of versions, with the order in place of the timestamp."""

    name = "key-value"
    layout_name = "latest"
    times = 1
    items = "entries"
    last_entry_wins = True
    lists_each_key = False
    lists_by_time = False
    time_names = ("order",)
    lists_times = False

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        plain, order = split_order(key)
        return LogicalKey(plain, (order,))

    def encoder(self, keys: StoredKeys) -> Callable[[bytes, int], bytes]:
        prefix = keys.prefix

        def encode(key: bytes, timestamp_ms: int) -> bytes:
            plain, order = split_order_bytes(key)
            return prefix(plain) + order

        return encode


class SchemaKeyKind(StoreKind):
    """A key is followed by the id of the schema that it was written with, and a check sum of what was written.

    Why an entry for each: to the log they are different keys. A deletion of one leaves the others, in every replay
    of a compacted log. Of one schema two may be equal as JSON, such as maps, and branches of a union.
    """

    name = "key-value"
    layout_name = "schema-keys"
    times = 1
    items = "entries"
    has_single_values = True
    has_forms = True
    lists_each_key = False
    lists_by_time = False
    time_names = ("key_schema_id",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        plain, schema_id = decoded_key(key)
        return LogicalKey(plain, ((schema_id << 32 | crc32(key)) + MIN_TIME_MS,))

    def shown_times_ms(self, store: Retention, times_ms: Columns) -> Columns:
        [forms] = times_ms
        return [tuple(form - MIN_TIME_MS >> 32 for form in forms)]

    def newest(self, pairs: Iterable[Pair]) -> Pair | None:
        # A schema that is gone back to has a lower id.
        return max(pairs, key=lambda pair: timestamp_ms_of(pair[1]), default=None)


class KeyValueKind(StoreKind):
    """A key is stored as its codec orders it, and nothing follows."""

    name = "key-value"
    layout_name = "key-value"
    times = 0
    items = "entries"
    lists_each_key = False
    lists_by_time = False
    with_latest_by = LatestKind()
    with_schema_keys = SchemaKeyKind()
    expiry = ExpiryByAge()
    optional = ("ttl_ms",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return LogicalKey(key, ())

    def encoder(self, keys: StoredKeys) -> Callable[[bytes, int], bytes]:
        ordered = keys.codec.ordered
        return lambda key, _: USER_TAG + ordered(key)

    def log_retention(self, store: Retention) -> LogRetention:
        return LogRetention(records_ms=store.ttl_ms)


class WindowKind(StoreKind):
    """A key is followed by its window's start."""

    name = "window"
    layout_name = "window"
    times = 1
    items = "windows"
    time_names = ("start_ms", "end_ms")
    expiry = ExpiryByEnd()
    required = ("window_size_ms", "retention_ms")
    optional = ("timestamp_after_max_ms",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return split_windowed(self, key)

    def durations_fault(self, durations: Mapping[str, int]) -> str | None:
        if durations["retention_ms"] < durations["window_size_ms"]:
            return "keeps windows for less than their own length; raise retention_ms"
        return None

    def shown_times_ms(self, store: Retention, times_ms: Columns) -> Columns:
        [starts] = times_ms
        size_ms = store.window_size_ms or 0
        return [starts, tuple(start_ms + size_ms for start_ms in starts)]

    def log_retention(self, store: Retention) -> LogRetention:
        return LogRetention(records_ms=store.retention_ms)

    def ends_selected(self, store: Retention, first_ms: int, last_ms: int) -> tuple[int, int] | None:
        size_ms = store.window_size_ms or 0
        return first_ms + size_ms, last_ms + size_ms

    def time_to_end_ms(self, store: Retention) -> int | None:
        return store.window_size_ms or 0


class SessionKind(StoreKind):
    """A key is followed by its session's end, then its start."""

    name = "session"
    layout_name = "session"
    times = 2
    items = "sessions"
    time_names = ("start_ms", "end_ms")
    expiry = ExpiryByEnd()
    required = ("gap_ms", "retention_ms")
    optional = ("timestamp_after_max_ms",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return split_windowed(self, key)

    def shown_times_ms(self, store: Retention, times_ms: Columns) -> Columns:
        ends, starts = times_ms
        return [starts, ends]

    def key_range(self, keys: StoredKeys, plain: bytes, first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
        # Stored by end: sessions that end at or after the first time, wherever they begin.
        return super().key_range(keys, plain, first_ms, MAX_TIME_MS)

    def selected(self, pairs: list[Pair], first: bytes, last: bytes) -> list[Pair]:
        """Those that overlap the range."""
        size = TIME_SIZE
        return [pair for pair in pairs if pair[0][-2 * size : -size] >= first and pair[0][-size:] < last]

    def log_retention(self, store: Retention) -> LogRetention:
        return LogRetention(records_ms=store.retention_ms)

    def ends_selected(self, store: Retention, first_ms: int, last_ms: int) -> tuple[int, int] | None:
        # However early one has begun, it may have ended at any later time.
        return first_ms, MAX_TIME_MS

    def time_to_end_ms(self, store: Retention) -> int | None:
        return 0


class VersionedKind(StoreKind):
    """A key is followed by its record's timestamp."""

    name = "versioned"
    layout_name = "versioned"
    times = 1
    items = "versions"
    time_names = ("valid_from_ms",)
    keeps_versions = True
    last_entry_wins = True
    lists_all_keys = False
    expiry = ExpiryBySuccessor()
    required = ("history_retention_ms",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return LogicalKey(key, (timestamp_ms,))

    def values_json(self, codec: ValueCodec, values: list[bytes]) -> tuple[bytes, list[bytes]]:
        versions = map(decode_version, values)
        return b"%b", [b"null" if version is None else codec.to_json(version[STAMP_SIZE:]) for version in versions]

    def timestamps_ms(self, values: list[bytes], times_ms: Columns) -> Sequence[int]:
        # A deletion has no value that could be stamped.
        [valid_from_ms] = times_ms
        return valid_from_ms

    def log_retention(self, store: Retention) -> LogRetention:
        return LogRetention(replaced_ms=store.history_retention_ms)

    def time_to_end_ms(self, store: Retention) -> int | None:
        return 0


STORE_KINDS: Mapping[str, StoreKind] = {
    kind.name: kind for kind in (KeyValueKind(), WindowKind(), SessionKind(), VersionedKind())
}
"""Every kind, by its name in the topology. The first one is the default."""

DEFAULT_KIND = next(iter(STORE_KINDS))
"""The kind of a store that names none."""

SINGLE_VALUE_KINDS = tuple(kind.name for kind in STORE_KINDS.values() if kind.has_single_values)
"""The kinds whose keys have one value at a time."""
