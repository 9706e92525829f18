"""What a kind of store is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from forebay.codecs.bulk_json import all_to_json
from forebay.codecs.values import ValueCodec
from forebay.retention import LogRetention, Retention
from forebay.store_kinds.expiry_rules import ExpiryRule
from forebay.stored_keys import MAX_TIME_MS, MIN_TIME_MS, TIME_SIZE, KeyLayout, StoredKeys, successor

Pair: TypeAlias = tuple[bytes, bytes]
"""A stored key and its value."""
Columns: TypeAlias = list[tuple[int, ...]]
"""Of each of several times that of every entry, in epoch milliseconds."""


class StoreKind(KeyLayout, Protocol):
    """All that differs between kinds of stores, except what their layers' own tables have.

    A kind is a frozen object. What it does not define is as stated here. Those that ask it in a loop take its
    functions out of the loop.
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
    lists_each_key: bool = True
    """Whether there is a list of one key's items."""
    lists_all_keys: bool = True
    """Whether there is a list of all keys' items."""
    lists_by_time: bool = True
    """Whether the range of a list is of times. Otherwise it is of keys."""
    time_names: tuple[str, ...] = ()
    """The names of an entry's times in documents, in their order there."""
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

    def values_json(self, codec: ValueCodec, values: list[bytes]) -> tuple[bytes, list[bytes]]:
        """The JSON of stored values, as of ``all_to_json``."""
        return all_to_json(codec, values)

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
