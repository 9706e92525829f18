"""Session stores: a value for each key and session."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.retention import Retention
from forebay.store_kinds.expiry_rules import ExpiryByEnd
from forebay.store_kinds.kind import StoreKind
from forebay.store_kinds.windowed_keys import split_windowed
from forebay.stored_keys import LogicalKey


@dataclass(frozen=True)
class Session(StoreKind):
    """A key is followed by its session's end, then its start."""

    name = "session"
    layout_name = "session"
    times = 2
    items = "sessions"
    stored_by_end = True
    expiry = ExpiryByEnd()
    required = ("gap_ms", "retention_ms")
    optional = ("timestamp_after_max_ms",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return split_windowed(self, key)

    def time_to_end_ms(self, store: Retention) -> int | None:
        return 0
