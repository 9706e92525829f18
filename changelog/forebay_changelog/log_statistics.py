"""What a partition's log contains, counted as it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay_changelog.base import Batch, Heartbeat
from forebay_changelog.record_headers import writer_of


@dataclass
class LogStatistics:
    """One partition: its offsets, how many records it has of each sort, and each writer's newest heartbeat."""

    partition: int
    beginning: int = 0
    end_offset: int = 0
    records: int = 0
    """Without heartbeats, but with tombstones."""
    tombstones: int = 0
    heartbeats: int = 0
    last_timestamp_ms: int | None = None
    """Of the last record that is no heartbeat."""
    writers: dict[str, Heartbeat | None] = field(default_factory=dict)
    """By name; None if its newest heartbeat cannot be read."""

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.beginning, self.end_offset = batch.beginning, batch.end.offset
        for _, key, value, timestamp_ms, is_heartbeat in batch.records:
            if is_heartbeat:
                self._add_heartbeat(key, value)
                continue
            self.records += 1
            self.tombstones += value is None
            self.last_timestamp_ms = timestamp_ms

    def _add_heartbeat(self, key: bytes, value: bytes | None) -> None:
        self.heartbeats += 1
        writer = writer_of(key) or ""
        if value is None:
            self.writers.pop(writer, None)
            return
        try:
            self.writers[writer] = Heartbeat.parse(value)
        except ValueError:
            self.writers[writer] = None

    def document(self, now_ms: float) -> dict[str, Any]:
        """The figures as JSON values; ages are as of ``now_ms``, in epoch milliseconds."""
        writers = [_writer_document(writer, beat, now_ms) for writer, beat in sorted(self.writers.items())]
        return {**vars(self), "writers": writers}


def _writer_document(writer: str, beat: Heartbeat | None, now_ms: float) -> dict[str, Any]:
    as_of_ms = None if beat is None else beat.as_of_ms
    return {
        "writer": writer,
        "as_of_ms": as_of_ms,
        "age_ms": None if as_of_ms is None else max(0, int(now_ms) - as_of_ms),
        "query_id": None if beat is None else beat.query_id,
        "batch_id": None if beat is None else beat.batch_id,
        "filling": beat is not None and beat.filling,
    }
