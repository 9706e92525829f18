"""Window stores: a value for each key and window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.retention import LogRetention, Retention
from forebay.store_kinds.expiry_rules import ExpiryByEnd
from forebay.store_kinds.kind import Columns, StoreKind
from forebay.store_kinds.windowed_keys import split_windowed
from forebay.stored_keys import LogicalKey


@dataclass(frozen=True)
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
