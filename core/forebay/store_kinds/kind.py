"""What a kind of store is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from forebay.retention import Retention
from forebay.store_kinds.expiry_rules import ExpiryRule
from forebay.stored_keys import KeyLayout


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
    stored_by_end: bool = False
    """Whether a key's items are stored in the order of their ends."""
    expiry: ExpiryRule | None = None
    """What expires in it, None if nothing does."""
    required: tuple[str, ...] = ()
    """Durations in milliseconds that the topology must give."""
    optional: tuple[str, ...] = ()
    """Durations that it may give."""

    def durations_fault(self, durations: Mapping[str, int]) -> str | None:
        """What is wrong with durations that a topology gives, with the remedy; None if nothing is."""
        return None

    def time_to_end_ms(self, store: Retention) -> int | None:
        """How long after the first time of its stored key an entry ends; None if ends do not move stream time."""
        return None

    @property
    def has_single_values(self) -> bool:
        """Whether a key has one value at a time, so that it can be read and followed without a list."""
        return self.times == 0 or self.last_entry_wins

    @property
    def durations(self) -> frozenset[str]:
        """Every duration that the topology may give."""
        return frozenset((*self.required, *self.optional))
