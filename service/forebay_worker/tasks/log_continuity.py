"""Decides when a replica cannot follow a log: it is a different one, or tombstones may have been missed."""

from __future__ import annotations

from forebay.clock import epoch_ms
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay_changelog import Batch

TOMBSTONES_TRUSTED = 0.9
"""A replica trusts tombstones for this fraction of the time that the log keeps them."""
_CLOCK_SLACK_MS = 60_000.0


class NotContinued(StoreCorrupted):
    """A store is as its log once was, but cannot become what a replay of the log gives now: it can be served."""


class TombstonesMissed(NotContinued):
    """Tombstones that were written since are gone."""


class RecordsLost(NotContinued):
    """A store has records that its log has lost: it can be served, with a lag that nobody knows."""


class BeginningMoved(RecordsLost):
    """They are those before the log's present beginning, and in no store that is built from now on."""


class LogCut(RecordsLost):
    """They were the newest, and others may have taken their place."""


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
    if batch.end.offset < before.position:
        return LogCut(f"the log {topic!r} ends at {batch.end.offset}, before offset {before.position}")
    if _replaces_what_compaction_followed(before, batch):
        return LogCut(
            f"the log {topic!r} has lost records before offset {before.pending_end}, by which it was compacted"
        )
    if batch.truncated:
        return LogCut(f"the log {topic!r} has lost records before offset {before.position}, which were applied")
    began, may_begin_later = before.replay_beginning, spec.accept_uncompacted or not batch.is_beginning_fixed
    if began is not None and before.position > 0 and batch.beginning > began and not may_begin_later:
        return BeginningMoved(
            f"the log {topic!r} begins at {batch.beginning}, and began at {began} when it was read"
        )
    if batch.end.offset == before.position and before.pending_end is None:
        # Nothing was written since, so nothing can have been missed.
        return None
    # A replay that began with the floor missed nothing below it: tombstones are removed after what they delete.
    if before.position > 0 and batch.tombstone_floor > max(before.position, before.tombstone_floor):
        return TombstonesMissed(
            f"tombstones up to offset {batch.tombstone_floor} are gone, and it has applied {before.position}"
        )
    if batch.tombstone_life_ms is not None and before.position > 0:
        now = epoch_ms()
        known = (end_reached_epoch_ms or 0.0, before.replay_since_epoch_ms or 0.0)
        # A moment still to come is of a clock that was wrong, and proves nothing.
        away_ms = now - max(moment if moment < now + _CLOCK_SLACK_MS else 0.0 for moment in known)
        if away_ms > TOMBSTONES_TRUSTED * batch.tombstone_life_ms:
            return TombstonesMissed(
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
