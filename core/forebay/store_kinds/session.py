"""Session stores: a value for each key and session."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.retention import LogRetention, Retention
from forebay.store_kinds.expiry_rules import ExpiryByEnd
from forebay.store_kinds.kind import Columns, Pair, StoreKind
from forebay.store_kinds.windowed_keys import split_windowed
from forebay.stored_keys import MAX_TIME_MS, TIME_SIZE, LogicalKey, StoredKeys


@dataclass(frozen=True)
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
