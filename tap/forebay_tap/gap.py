"""What a copy of a state cannot tell: the last values of what Spark has evicted since the log had the state.

Batch *n* evicts the windows and sessions that ended by its watermark. A log that had the state of batch *a*, and
gets a copy of that of batch *b*, lacks what became of those that ended between the two watermarks.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.store_spec import StoreSpec
from forebay.unproven import UnprovenRange, UnprovenRanges, united
from forebay_tap.lineage import TapPosition, ended_ms, is_planned_alike
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class Gap:
    """What a copy leaves ``unproven``.

    The log has the last values of entries that ended by ``proven_ms``, as far as they were not unproven before.
    None if that is not known.
    """

    proven_ms: int | None = None
    unproven: UnprovenRanges = ()
    withdraws: bool = False
    """Whether later entries that the log has and the state has not are deleted: their last values are unknown."""

    def is_withdrawn(self, spec: StoreSpec, key: bytes) -> bool:
        """Whether the entry of a key in the log, which the state has not, is deleted."""
        if not self.withdraws or self.proven_ms is None:
            return False
        return _end_ms(spec, key) > self.proven_ms


def gap_before(
    checkpoint: Checkpoint,
    spec: StoreSpec,
    position: TapPosition | None,
    batch: int,
    *,
    has_all: bool,
    withdraws: bool,
) -> Gap:
    """The gap between the position of a log and the copy of a batch's state.

    ``has_all`` tells whether the log ever had all of this query's state, ``withdraws`` whether entries of the log
    may be deleted. Raises ``CheckpointError``.
    """
    to_ms = checkpoint.ended_offsets(batch).watermark_ms
    proven_ms = None if position is None else _proven_ms(checkpoint, position)
    ranges = [] if position is None else [*position.unproven]
    from_ms = proven_ms if has_all else None
    # Without a watermark nothing is evicted.
    if to_ms > 0 and (from_ms is None or from_ms < to_ms):
        ranges.append(UnprovenRange(from_ms, to_ms))
    return Gap(proven_ms, still_unproven(united(ranges), spec, to_ms), withdraws)


def still_unproven(ranges: UnprovenRanges, spec: StoreSpec, watermark_ms: int) -> UnprovenRanges:
    """The ranges that have not expired at a watermark: stream time, by which workers judge, is no earlier."""
    return tuple(one for one in ranges if one.to_ms > watermark_ms - (spec.retention_ms or 0))


def _end_ms(spec: StoreSpec, key: bytes) -> int:
    """When the entry of a key in the log ends."""
    return spec.stored_keys.split_changelog(key, 0).times_ms[0] + (spec.store_kind.time_to_end_ms(spec) or 0)


def _proven_ms(checkpoint: Checkpoint, position: TapPosition) -> int | None:
    """Up to which end the log has the last values of entries of the checkpoint's present history."""
    is_of_batch = position.checkpoint_id == checkpoint.id and position.batch >= 0 and position.lineage is not None
    if position.watermark_ms is None or not is_of_batch:
        return position.watermark_ms
    retained = checkpoint.batches()
    if position.batch < min(retained, default=0) or is_planned_alike(checkpoint, position):
        return position.watermark_ms
    return _watermark_before_set_back(checkpoint, position, retained)


def _watermark_before_set_back(checkpoint: Checkpoint, position: TapPosition, retained: list[int]) -> int | None:
    """The watermark of the last batch that both histories of a query have; None if none is retained.

    A batch that ended no later than the one that the log has is not of the time since the query was set back.
    """
    until_ms = ended_ms(position)
    if until_ms is None:
        return None
    for batch in reversed(retained):
        if _ended_by(checkpoint, batch, until_ms):
            return checkpoint.ended_offsets(batch).watermark_ms
    return None


def _ended_by(checkpoint: Checkpoint, batch: int, time_ms: int) -> bool:
    try:
        modified_ms = checkpoint.files.stat(f"commits/{batch}").modified_ms
    except FileNotFoundError:
        return False
    return modified_ms is not None and modified_ms <= time_ms
