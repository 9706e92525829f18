"""Decides when a replica cannot follow a log: it is a different one, or tombstones may have been missed."""

from __future__ import annotations

from forebay.changelog import Batch
from forebay.clock import epoch_ms
from forebay.stores import CommittedOffset

_TOMBSTONES_TRUSTED = 0.9
"""A replica trusts tombstones for this fraction of the time that the log keeps them."""
_CLOCK_SLACK_MS = 60_000.0


def replaced_log(topic: str) -> str:
    """The reason if the log has another identity."""
    return f"the log {topic!r} was replaced by another"


def reason_for_distrust(
    log: str | None, before: CommittedOffset, current_until_epoch_ms: float | None, batch: Batch
) -> str | None:
    """Why a batch cannot follow the state of a replica of ``log``, None if it can.

    ``current_until_epoch_ms`` is when the replica last had everything in the log.
    """
    topic = batch.topic_partition.topic
    if log is not None and log != batch.identity:
        return replaced_log(topic)
    if batch.truncated:
        return f"the log {topic!r} has lost records before offset {before.position}, which were applied"
    if batch.end.offset < before.position:
        return f"the log {topic!r} ends at {batch.end.offset}, before offset {before.position}"
    # A replay that began with the floor missed nothing below it: tombstones are removed after what they delete.
    if before.position > 0 and batch.tombstone_floor > max(before.position, before.tombstone_floor):
        return f"tombstones up to offset {batch.tombstone_floor} are gone, and it has applied {before.position}"
    if batch.tombstone_life_ms is not None and before.position > 0:
        now = epoch_ms()
        known = (current_until_epoch_ms or 0.0, before.replay_since_epoch_ms or 0.0)
        # A moment still to come is of a clock that was wrong, and proves nothing.
        away_ms = now - max(moment if moment < now + _CLOCK_SLACK_MS else 0.0 for moment in known)
        if away_ms > _TOMBSTONES_TRUSTED * batch.tombstone_life_ms:
            return (
                f"it was last consistent {away_ms / 1000:.0f} s ago, and the log {topic!r} keeps "
                f"tombstones for {batch.tombstone_life_ms / 1000:.0f} s"
            )
    return None
