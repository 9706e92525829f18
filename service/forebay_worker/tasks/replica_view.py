"""What reads see of a replica: everything that an answer rests on, as it was at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from forebay.errors import LogDiverged, PartitionerMismatch, Problem
from forebay.lag import EMPTY_PROGRESS, Progress
from forebay.log_epochs import EpochStart, OffsetAndEpoch
from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.state_store import StateStore
from forebay.store_spec import StoreSpec
from forebay.unproven import UnprovenRange, UnprovenRanges, kept
from forebay_worker.tasks.recent_changes import RecentChanges

LostRecords: TypeAlias = Literal["first", "newest"]
"""Which records a log has lost. Others may have taken the place of the newest."""


class Doubt(NamedTuple):
    """Why an answer proves less than it would otherwise.

    The text's first sentence says what is wrong, the others what to do.
    """

    problem: type[Problem]
    text: str
    is_accepted: bool = False
    """Whether the topology says so: then only misses are refused."""


def records_lost(spec: StoreSpec) -> Doubt:
    """Records that were applied are no longer in the log."""
    return Doubt(
        LogDiverged,
        f"The log of {spec.name!r} lost records that were applied, and may have others in their place. The "
        "replica is being rebuilt: ask again, or without bounds.",
    )


def repartitioned(spec: StoreSpec, partitions: int) -> Doubt:
    """The log has another number of partitions than the topology."""
    return Doubt(
        PartitionerMismatch,
        f"The log of {spec.name!r} has {partitions} partitions now, and the topology has {spec.partitions}, so "
        "the newest value of a key may be in another partition. Give the store a new name and a log of that size, "
        "or set accept_misplaced = true.",
        spec.accept_misplaced,
    )


def misplaced(spec: StoreSpec) -> Doubt:
    """Keys are in partitions where the partitioner does not put them."""
    return Doubt(
        PartitionerMismatch,
        f"Keys of {spec.name!r} are not where the partitioner {spec.partitioner!r} puts them, so the newest value "
        "of a key may be in another partition. Set the partitioner to the writer's, or to 'unknown', or delete "
        "the misplaced keys where they are, or set accept_misplaced = true.",
        spec.accept_misplaced,
    )


def found_elsewhere(spec: StoreSpec) -> Doubt:
    """Another replica of the store has found what this one has not."""
    return Doubt(
        PartitionerMismatch,
        f"Another replica of {spec.name!r} has found keys in partitions that are not theirs, so the newest value "
        "of a key may be in another partition. GET /v1/health names that replica and the remedy.",
        spec.accept_misplaced,
    )


class ReplicaView(NamedTuple):
    """A replica at one moment, replaced as a whole: whoever has one reads no figure of another moment.

    What a store contains goes on meanwhile. So what was known before its content was read, and what is known after
    it, are two views.
    """

    progress: Progress
    spec: StoreSpec
    store: StateStore
    log: str | None
    """The log's identity, None until known."""
    recent_changes: RecentChanges
    restored: bool = False
    """Whether an end of the log was ever reached: until then a missing key proves nothing."""
    filling: bool = False
    """Whether its log is being filled with what a writer's source already holds: a missing key proves nothing."""
    unproven: UnprovenRanges = ()
    """The ends of entries whose last values its log may lack, expired ones included."""
    diverged: bool = False
    """Its content was not that of the log, or is lost, and the rebuild is not done."""
    was_checked: bool = False
    """Whether it was ``checked`` before the log could no longer be read."""
    misplaced_keys: tuple[bytes, ...] = ()
    """Keys that another partitioner put here, as in the log: the first ``MAX_MISPLACED_KEYS``."""
    partitions_found: int | None = None
    """How many partitions the log was found to have, None if that cannot change."""
    log_has_lost: LostRecords | None = None
    """Which records that were applied are no longer in the log, None if it has all."""
    epochs: Sequence[EpochStart] = ()
    """The newest epochs of the log, as far as records of them were applied."""
    proof: OffsetAndEpoch | None = None
    """The point after the last record applied, None if unknown."""
    beat_epoch_ms: Mapping[str, int] = {}
    """When each writer's newest heartbeat was appended."""
    stream_time_ms: int | None = None
    swept_to_ms: int | None = None
    """Up to when its store's entries were deleted as expired, by a shorter retention maybe."""

    def at(self, progress: Progress) -> ReplicaView:
        """The same with other progress, at a third of the cost of ``_replace``: each poll of a log has some."""
        return ReplicaView._make((progress, *self[1:]))

    def as_lost(self) -> ReplicaView:
        """The same once its content is not that of the log, or is gone: nothing found out about it holds."""
        return self._replace(
            # Neither a lag nor an active role is learnt of it, even if the rebuild cannot begin.
            progress=EMPTY_PROGRESS,
            # A predecessor that serves meanwhile keeps its own.
            recent_changes=RecentChanges(has_ttl=self.spec.ttl_ms is not None),
            restored=False,
            filling=False,
            unproven=(),
            diverged=True,
            was_checked=False,
            misplaced_keys=(),
            log_has_lost=None,
            epochs=(),
            proof=None,
        )

    @property
    def checked(self) -> bool:
        """Whether the log was seen since the store was opened, and can continue its content."""
        return self.progress.end_offset is not None or self.was_checked

    @property
    def consistent(self) -> bool:
        """Whether it has reached an end of the log, and is not in the middle of a compacted replay."""
        progress = self.progress
        return self.restored and progress.consistent_position == progress.position

    @property
    def knows_all_keys(self) -> bool:
        """Whether an end of the log was reached that had all keys of its source."""
        return self.restored and not self.filling

    @property
    def unwritten(self) -> bool:
        """Whether nobody has ever written to its log: a sink or a tap leaves heartbeats in each partition."""
        return not self.spec.external and self.progress.position == 0

    @property
    def repartitioned(self) -> bool:
        """Whether the log has another number of partitions than the topology."""
        return self.partitions_found not in (None, self.spec.partitions)

    @property
    def doubt(self) -> Doubt | None:
        """What is wrong with its keys or its log, None if nothing is known to be."""
        if self.log_has_lost is not None:
            return records_lost(self.spec)
        if self.repartitioned:
            return repartitioned(self.spec, self.partitions_found or 0)
        return misplaced(self.spec) if self.misplaced_keys else None

    @property
    def point(self) -> OffsetAndEpoch | None:
        """Where in the history of the log an answer is at most; None where its epoch is not known.

        In the middle of a compacted replay, content may be of a later epoch than the last record applied.
        """
        progress, proof = self.progress, self.proof
        if proof is None or progress.consistent_position != progress.position:
            return None
        return OffsetAndEpoch(progress.applying_to, proof.epoch)

    @property
    def oldest_kept_ms(self) -> int | None:
        """The first time of the oldest entry that is kept, as in ``forebay.retention``; None if all are."""
        return self._later(oldest_kept_ms(self.spec, self.stream_time_ms))

    @property
    def history_begins_ms(self) -> int | None:
        """The time since which all versions are kept, as in ``forebay.retention``; None if all ever were."""
        return self._later(history_begins_ms(self.spec, self.stream_time_ms))

    @property
    def still_unproven(self) -> UnprovenRanges:
        """The ends of entries whose last values its log may lack, and which have not expired."""
        # Almost always there are none.
        return kept(self.unproven, self._oldest_end_ms) if self.unproven else ()

    def is_kept(self, unproven: UnprovenRange) -> bool:
        """Whether entries of an unproven range have not expired."""
        return bool(kept((unproven,), self._oldest_end_ms))

    @property
    def _oldest_end_ms(self) -> int | None:
        oldest_ms = self.oldest_kept_ms
        to_end_ms = self.spec.store_kind.time_to_end_ms(self.spec) or 0
        return None if oldest_ms is None else oldest_ms + to_end_ms

    def _later(self, by_retention_ms: int | None) -> int | None:
        if by_retention_ms is None or self.swept_to_ms is None:
            return by_retention_ms
        return max(by_retention_ms, self.swept_to_ms)
