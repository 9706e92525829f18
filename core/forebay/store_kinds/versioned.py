"""Versioned stores: every value of a key, and the time from which it is valid (KIP-889)."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.codecs.values import ValueCodec
from forebay.retention import LogRetention, Retention
from forebay.store_kinds.expiry_rules import ExpiryBySuccessor
from forebay.store_kinds.kind import StoreKind
from forebay.stored_keys import LogicalKey, decode_version


@dataclass(frozen=True)
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
        return b"%b", [b"null" if version is None else codec.to_json(version) for version in versions]

    def log_retention(self, store: Retention) -> LogRetention:
        return LogRetention(replaced_ms=store.history_retention_ms)

    def time_to_end_ms(self, store: Retention) -> int | None:
        return 0
