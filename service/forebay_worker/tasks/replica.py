"""A replica: one partition of one store on this worker, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.changelog import Batch
from forebay.lag import EMPTY_PROGRESS, EndOffsets, Progress
from forebay.stores import CommittedOffset, StateStore
from forebay.tasks import TaskId, TopicPartition
from forebay.topology import StoreSpec


@dataclass
class Replica:
    """What reads need of one store partition.

    The applier's thread is the one writer; readers take ``progress`` and ``store`` as they stand.
    """

    spec: StoreSpec
    task: TaskId
    store: StateStore
    log: str | None = None
    """The log's identity, None until known."""
    progress: Progress = EMPTY_PROGRESS
    complete: bool = False
    """Whether an end of the log was ever reached: until then a missing key proves nothing."""
    diverged: bool = False
    """The log is not the one this replica was built from, and the rebuild is not done."""
    misplaced_key: bytes | None = None
    """A key that another partitioner put here: misses then prove nothing."""
    stream_time_ms: int | None = None
    designated_boot_ms: float | None = None
    """Since when the newest known generation designates this replica active; None if it does not."""
    ends: EndOffsets = field(default_factory=EndOffsets)
    records_applied: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """The changelog partition that the replica replays."""
        return TopicPartition(self.spec.topic, self.task.partition)

    def role(self, lease_until_boot_ms: float, now_boot_ms: float) -> str:
        """``active``, ``restoring`` or ``standby``, judged now against the membership lease.

        A running active has once reached an end of the log observed since it was designated; later lag does
        not change the role.
        """
        designated = self.designated_boot_ms
        if designated is None or now_boot_ms >= lease_until_boot_ms:
            return "standby"
        current_until = self.progress.current_until_boot_ms
        return "active" if current_until is not None and current_until >= designated else "restoring"


def advance(
    before: CommittedOffset,
    batch: Batch,
    as_of_epoch_ms: Mapping[str, int | None],
    stream_time_ms: int | None,
    current_until_epoch_ms: float | None,
) -> CommittedOffset:
    """The offset to commit with a batch: where it leaves the replica in the log's history.

    On a compacted log a value may be gone while its successor is not yet read. So a gap freezes the
    consistent position until the position reaches the end that the gap's response showed.
    """
    pending_end = before.pending_end
    if batch.gap:
        pending_end = max(batch.end.offset, pending_end or 0)
    consistent = before.consistent_position
    if pending_end is None or batch.position >= pending_end:
        consistent, pending_end = batch.position, None
    reached = batch.position >= batch.end.offset and consistent == batch.position
    return CommittedOffset(
        batch.position,
        consistent,
        pending_end,
        current_until_epoch_ms,
        as_of_epoch_ms,
        stream_time_ms,
        before.complete or reached,
    )
