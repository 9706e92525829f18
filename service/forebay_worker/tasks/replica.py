"""A replica: one partition of one store on this worker, and how far it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.lag import EMPTY_PROGRESS, EndOffsets, Progress
from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.state_store import StateStore
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import StoreSpec
from forebay_worker.tasks.key_watchers import KeyWatchers
from forebay_worker.tasks.phases import ReplicaPhase, check_transition
from forebay_worker.tasks.recent_changes import RecentChanges

log = logging.getLogger(__name__)

_CHECKPOINT_INTERVAL_MS = 60_000.0
_CHECKPOINT_BY_TOMBSTONE_LIFE = 0.1
_END_KNOWN_FOR_MS = 2_000.0
"""An end observed more recently is known, though the records before it cannot be read."""


def _note_nothing(log: str) -> None:
    """A store that keeps no identity."""


def _ignore_damage(replica: Replica, store: StateStore, reason: str) -> None:
    """A store that nothing could rebuild."""


@dataclass
class Replica:
    """The state of one store partition that reads need.

    The applier's thread is the one writer; readers use ``progress`` and ``store`` as they are.
    """

    spec: StoreSpec
    task: TaskId
    store: StateStore
    log: str | None = None
    """The log's identity, None until known."""
    progress: Progress = EMPTY_PROGRESS
    restored: bool = False
    """Whether an end of the log was ever reached: until then a missing key proves nothing."""
    filling: bool = False
    """Whether its log is being filled with what a writer's source already holds: a missing key proves nothing."""
    diverged: bool = False
    """Its content was not that of the log, or is lost, and the rebuild is not done."""
    misplaced_key: bytes | None = None
    """A key that another partitioner put here: misses then prove nothing."""
    partitions_found: int | None = None
    """How many partitions the log was found to have, None if that cannot change."""
    stream_time_ms: int | None = None
    swept_to_ms: int | None = None
    """Up to when its store's entries were deleted as expired, by a shorter retention maybe."""
    designated_boot_ms: float | None = None
    """Since when the newest known generation designates this replica active; None if it does not."""
    phase: ReplicaPhase = ReplicaPhase.CREATED
    """What brings it forward."""
    retry_boot_ms: float = 0.0
    """When that is tried again, while it is suspended or its rebuild cannot begin."""
    in_place: bool = False
    """Whether a store that is not trusted still has to be set aside before its rebuild can begin."""
    not_in_bulk_until_boot_ms: float = 0.0
    """Until when it is not restored in bulk, because restore processes failed."""
    ends: EndOffsets = field(default_factory=EndOffsets)
    last_checkpoint_boot_ms: float = 0.0
    """When a commit last recorded up to when the log was read."""
    checkpoint_interval_ms: float = _CHECKPOINT_INTERVAL_MS
    records_applied: int = 0
    records_skipped: int = 0
    """Records of an external store that its codecs could not read."""
    records_unchecked: int = 0
    """Records applied of a SQLite log of an earlier version, which have no checksum."""
    records_ahead: int = 0
    """Records whose time was too far after their own timestamp to move stream time."""
    failure: str | None = None
    """Why the last attempt to apply records failed; None after a success."""
    storage_fault: str | None = None
    """What the machine refuses, and the remedy, if that is why."""
    read_failure: str | None = None
    """Why its log cannot be read; None while it can."""
    was_checked: bool = False
    """Whether it was ``checked`` before the log could no longer be read."""
    key_watchers: KeyWatchers = field(default_factory=KeyWatchers)
    recent_changes: RecentChanges = field(default_factory=RecentChanges)
    identify: Callable[[str], None] = _note_nothing
    """Makes the store record, from its next commit on, which log it was built from."""

    on_corrupted: Callable[[Replica, StateStore, str], None] = _ignore_damage
    """Has this replica's store rebuilt, which was found damaged, and why; any thread may call it, repeatedly."""

    predecessor: Replica | None = None
    """What is served until an end of the log is reached: the store as it was before, which cannot be continued."""

    admitted: Any = None
    """The replica's state as found by the last read, cached by the queries while valid."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The changelog partition that the replica replays."""
        return TopicPartition(self.spec.topic, self.task.partition)

    def enter(self, phase: ReplicaPhase) -> None:
        """Change the phase; raises ``PhaseError`` if it cannot follow the present one."""
        check_transition(self.phase, phase)
        self.phase = phase

    @property
    def writable(self) -> bool:
        """Whether its store is open and accepts writes, as far as is known."""
        return self.storage_fault is None and self.phase not in (ReplicaPhase.REBUILDING, ReplicaPhase.CLOSED)

    @property
    def served(self) -> Replica:
        """The one that answers reads."""
        return self if self.predecessor is None else self.predecessor

    @property
    def stopped_by(self) -> str | None:
        """Why records are not applied, None if they are."""
        return self.failure if self.read_failure is None else self.read_failure

    def note_read_failure(self, reason: str | None, now_boot_ms: float) -> None:
        """Take over whether the log can be read; if its end is not learnt either, it is not known."""
        self.read_failure = reason
        if reason is None or now_boot_ms - self.progress.end_sent_boot_ms < _END_KNOWN_FOR_MS:
            return
        self.was_checked = self.checked
        self.ends.clear()
        self.progress = self.progress._replace(end_offset=None, high_watermark=None)
        if self.predecessor is not None:
            self.predecessor.note_read_failure(reason, now_boot_ms)

    @property
    def checked(self) -> bool:
        """Whether the log was seen since the store was opened, and can continue its content."""
        return self.progress.end_offset is not None or self.was_checked

    @property
    def consistent(self) -> bool:
        """Whether it has reached an end of the log, and is not in the middle of a compacted replay now."""
        progress = self.progress
        return self.restored and progress.consistent_position == progress.position

    @property
    def knows_all_keys(self) -> bool:
        """Whether an end of the log was reached that had all keys of its source."""
        return self.restored and not self.filling

    @property
    def oldest_kept_ms(self) -> int | None:
        """The first time of the oldest entry that is kept, as in ``forebay.retention``; None if all are."""
        return self._later(oldest_kept_ms(self.spec, self.stream_time_ms))

    @property
    def history_begins_ms(self) -> int | None:
        """The time since which all versions are kept, as in ``forebay.retention``; None if all ever were."""
        return self._later(history_begins_ms(self.spec, self.stream_time_ms))

    def _later(self, by_retention_ms: int | None) -> int | None:
        if by_retention_ms is None or self.swept_to_ms is None:
            return by_retention_ms
        return max(by_retention_ms, self.swept_to_ms)

    def designate(self, since_boot_ms: float | None) -> None:
        """Note since when it is designated active, None if it is not."""
        self.designated_boot_ms = since_boot_ms
        if self.predecessor is not None:
            self.predecessor.designated_boot_ms = since_boot_ms

    def serve_predecessor(self, former: Replica) -> None:
        """Have a former state of this replica answer its reads, in this one's role."""
        self.predecessor = former
        while former.designated_boot_ms != self.designated_boot_ms:
            # It may have changed since the copy was made. Whoever changes it from now on knows of both.
            former.designated_boot_ms = self.designated_boot_ms

    def learn_log(self, log: str) -> None:
        """Record its log's identity with the next commit, if that was not known when it was opened."""
        if self.log is None:
            # First: if that fails, it is done again.
            self.identify(log)
            self.log = log

    def learn_tombstone_life(self, life_ms: float | None) -> None:
        """Record how long the log keeps tombstones: a start must find a moment well within that time."""
        every_ms = _CHECKPOINT_INTERVAL_MS if life_ms is None else life_ms * _CHECKPOINT_BY_TOMBSTONE_LIFE
        self.checkpoint_interval_ms = min(_CHECKPOINT_INTERVAL_MS, every_ms)

    def open_transaction_ms(self, now_boot_ms: float) -> float:
        """For how long at least a transaction has been open at the log's end; 0 if none is."""
        since = self.ends.open_since_boot_ms
        return 0.0 if since is None else max(0.0, now_boot_ms - since)

    def is_checkpoint_due(self, now_boot_ms: float) -> bool:
        """Whether a commit is due only to record up to when the log was read."""
        return now_boot_ms - self.last_checkpoint_boot_ms > self.checkpoint_interval_ms

    def learn_partitions(self, found: int | None) -> None:
        """Record how many partitions the log has: once there are more, keys go to different ones."""
        if found is not None and found != self.partitions_found:
            self.partitions_found = found
            if self.repartitioned:
                log.error(
                    "%s now has %d partitions, but the topology has %d: new records of a key may be in "
                    "another partition, so misses are refused. Give the store a new name and a log of that size.",
                    self.spec.topic,
                    found,
                    self.spec.partitions,
                )

    @property
    def repartitioned(self) -> bool:
        """Whether the log has another number of partitions than the topology."""
        return self.partitions_found not in (None, self.spec.partitions)

    def invalidate(self) -> None:
        """Its content is not that of the log, or is lost: nothing found out about it holds any more."""
        self.diverged = True
        self.restored = self.filling = self.was_checked = False
        self.misplaced_key = None
        # Neither a lag nor an active role is told of it, even if the rebuild cannot begin.
        self.progress = EMPTY_PROGRESS
        # A predecessor that serves meanwhile keeps its own.
        self.recent_changes = RecentChanges()
        self.records_applied = self.records_skipped = self.records_unchecked = self.records_ahead = 0

    def note_ahead(self, records: int) -> None:
        """Count records whose time is too far after their own timestamp; the first are logged."""
        if records and not self.records_ahead:
            log.warning(
                "%s: a record's time is more than %d ms after its own timestamp in the log. It is kept and "
                "served, but nothing expires by it. If such times are meant, raise timestamp_after_max_ms of the "
                "store %r.",
                self.topic_partition,
                self.spec.most_ahead_ms,
                self.spec.name,
            )
        self.records_ahead += records

    def refuse_misses(self, misplaced_key: bytes) -> None:
        """Stop reporting misses: keys, such as this one, are not where the partitioner puts them."""
        self.misplaced_key = misplaced_key
        log.error(
            "%s: the key %r is in partition %d, where the partitioner %r does not put it; misses are refused. Set "
            "the store's partitioner to the writer's, or to 'unknown'.",
            self.spec.name,
            misplaced_key,
            self.task.partition,
            self.spec.partitioner,
        )

    def role(self, lease_until_boot_ms: float, now_boot_ms: float) -> str:
        """``active``, ``restoring`` or ``standby``, judged now against the membership lease.

        A running active has once reached an end of the log observed since it was designated; later lag does
        not change the role.
        """
        designated = self.designated_boot_ms
        if designated is None or now_boot_ms >= lease_until_boot_ms:
            return "standby"
        end_reached = self.progress.end_reached_boot_ms
        return "active" if end_reached is not None and end_reached >= designated else "restoring"
