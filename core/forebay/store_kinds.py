"""The kinds of stores: what a topology must say of each, how its keys are laid out, and which lists it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StoreKind:
    """One kind of store. What else differs between kinds follows from these."""

    name: str
    items: str
    """The member of its lists, and the end of their path."""
    times: int = 0
    """How many timestamps follow a key in the store: 0, 1 or 2. If two, the end comes before the start."""
    keeps_versions: bool = False
    """Whether each record is a version of its key, valid from the record's timestamp (KIP-889), so that the log is
    history. Otherwise times are at the end of a record's key, as Kafka's windowed serializers write it."""
    lists_all_keys: bool = True
    """Whether there is a list of all keys' items."""
    required: tuple[str, ...] = ()
    """Durations in milliseconds that the topology must give."""
    optional: tuple[str, ...] = ()
    """Durations that it may give."""

    @property
    def has_single_values(self) -> bool:
        """Whether a key has one value at a time, so that it can be read and followed without a list."""
        return self.times == 0 or self.keeps_versions

    @property
    def lists_each_key(self) -> bool:
        """Whether there is a list of one key's items."""
        return self.times > 0

    @property
    def stored_by_end(self) -> bool:
        """Whether a key's items are stored in the order of their ends."""
        return self.times == 2

    @property
    def durations(self) -> frozenset[str]:
        """Every duration that the topology may give."""
        return frozenset((*self.required, *self.optional))


STORE_KINDS: Mapping[str, StoreKind] = {
    kind.name: kind
    for kind in (
        StoreKind("key-value", "entries"),
        StoreKind(
            "window",
            "windows",
            times=1,
            required=("window_size_ms", "retention_ms"),
            optional=("timestamp_after_max_ms",),
        ),
        StoreKind(
            "session",
            "sessions",
            times=2,
            required=("gap_ms", "retention_ms"),
            optional=("timestamp_after_max_ms",),
        ),
        StoreKind(
            "versioned",
            "versions",
            times=1,
            keeps_versions=True,
            lists_all_keys=False,
            required=("history_retention_ms",),
        ),
    )
}
"""Every kind, by its name in the topology. The first one is the default."""

SINGLE_VALUE_KINDS = tuple(kind.name for kind in STORE_KINDS.values() if kind.has_single_values)
"""The kinds whose keys have one value at a time."""
