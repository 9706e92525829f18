"""Decides when a replica cannot follow a log: it is a different one, or tombstones may have been missed."""

from __future__ import annotations

from forebay.clock import epoch_ms
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay_changelog import Batch
from forebay_worker.tasks.replica_view import LostRecords

TOMBSTONES_TRUSTED = 0.9
"""A replica trusts tombstones for this fraction of the time that the log keeps them."""
_CLOCK_SLACK_MS = 60_000.0


class NotContinued(StoreCorrupted):
    """A store is as its log once was, but cannot become what a replay of the log gives now: it can be served.

    If the log ``has_lost`` records that the store has, nobody knows the lag. No store that is built from now on
    has the first ones. Others may have taken the place of the newest.
    """

    def __init__(self, reason: str, has_lost: LostRecords | None = None) -> None:
        super().__init__(reason)
        self.has_lost = has_lost


def replaced_log(topic: str) -> str:
    """The reason if the log has another identity."""
    return f"the log {topic!r} was replaced by another"


def continuity_fault(
    spec: StoreSpec, log: str | None, before: CommittedOffset, end_reached_epoch_ms: float | None, batch: Batch
) -> StoreCorrupted | None:
    """Why a batch cannot follow the state of a replica of ``log``, None if it can.

    ``end_reached_epoch_ms`` is when the replica last had everything that could be read: compaction removes nothing
    that an open transaction holds back.
    """
    topic = batch.topic_partition.topic
    if log is not None and log != batch.identity:
        return StoreCorrupted(replaced_log(topic))
    cut = None
    if batch.end.offset < before.position:
        cut = f"ends at {batch.end.offset}, before offset {before.position}"
    elif _replaces_what_compaction_followed(before, batch):
        cut = f"has lost records before offset {before.pending_end}, by which it was compacted"
    elif batch.truncated:
        cut = f"has lost records before offset {before.position}, which were applied"
    if cut is not None:
        return NotContinued(f"the log {topic!r} {cut}", "newest")
    began, may_begin_later = before.replay_beginning, spec.accept_uncompacted or not batch.is_beginning_fixed
    if began is not None and before.position > 0 and batch.beginning > began and not may_begin_later:
        return NotContinued(
            f"the log {topic!r} begins at {batch.beginning}, and began at {began} when it was read", "first"
        )
    if batch.end.offset == before.position and before.pending_end is None:
        # Nothing was written since, so nothing can have been missed.
        return None
    # A replay that began with the floor missed nothing below it: tombstones are removed after what they delete.
    if before.position > 0 and batch.tombstone_floor > max(before.position, before.tombstone_floor):
        return NotContinued(
            f"tombstones up to offset {batch.tombstone_floor} are gone, and it has applied {before.position}"
        )
    if batch.tombstone_life_ms is not None and before.position > 0:
        now = epoch_ms()
        known = (end_reached_epoch_ms or 0.0, before.replay_since_epoch_ms or 0.0)
        # A moment still to come is of a clock that was wrong, and proves nothing.
        away_ms = now - max(moment if moment < now + _CLOCK_SLACK_MS else 0.0 for moment in known)
        if away_ms > TOMBSTONES_TRUSTED * batch.tombstone_life_ms:
            return NotContinued(
                f"it was last consistent {away_ms / 1000:.0f} s ago, and the log {topic!r} keeps "
                f"tombstones for {batch.tombstone_life_ms / 1000:.0f} s"
            )
    return None


def _replaces_what_compaction_followed(before: CommittedOffset, batch: Batch) -> bool:
    """Whether a batch has other records than those that were there when a gap was met.

    What the gap left out was gone because of them: with others in their place it may be back, and was not read.
    """
    pending_end, epoch = before.pending_end, before.pending_epoch
    if pending_end is None or epoch is None:
        return False
    return any(start.epoch > epoch and start.first_offset < pending_end for start in batch.epochs)
