"""Doubts about where keys are: while one stands, no lag is stated, no miss is proven, and no list complete."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.availability import single_faults
from tests.chaos.fold import Fold
from tests.chaos.history import Doubt, History, Portion, Read
from tests.chaos.promises import ANSWERED, DOUBT_LASTS_MS, DOUBT_WITHIN_MS, Violation


def unstated_doubts(fold: Fold, history: History) -> Iterator[Violation]:
    """Answers that claim to prove something of a store while that is in doubt, and doubts without a reason."""
    alone = [fault for fault in single_faults(history) if fault.kind == "misplace-keys"]
    known = [
        doubt
        for doubt in history.doubts
        if doubt.partition is None or any(fault.began_ms <= doubt.began_ms < fault.ended_ms for fault in alone)
    ]
    for read in history.reads:
        doubts = [doubt for doubt in history.doubts if doubt.store == read.store]
        if read.problem == "partitioner-mismatch" and not any(_may_be_known(doubt, read) for doubt in doubts):
            yield Violation("undocumented-status", "503 partitioner-mismatch, though all keys are theirs", read)
        if read.status in ANSWERED:
            for partition, portion in read.portions.items():
                if not _proves(read, portion):
                    continue
                for doubt in doubts:
                    if _has_applied(fold, doubt, read, partition, portion) or (
                        doubt in known and _was_known(doubt, read, portion)
                    ):
                        yield Violation("doubt-unstated", f"partition {partition}, under {doubt}", read)


def _proves(read: Read, portion: Portion) -> bool:
    is_lag_stated = any(figure is not None for figure in portion.figures.values())
    return is_lag_stated or read.status == 404 or read.scope is not None


def _may_be_known(doubt: Doubt, read: Read) -> bool:
    return doubt.began_ms - DOUBT_WITHIN_MS <= read.received_ms and read.sent_ms <= doubt.ended_ms + DOUBT_LASTS_MS


def _has_applied(fold: Fold, doubt: Doubt, read: Read, partition: int, portion: Portion) -> bool:
    """Whether who answered had itself a key that is misplaced, by its position."""
    eras = fold.partition(read.store, partition)
    is_same_log = eras.at(doubt.began_ms) == eras.at(read.received_ms)
    return partition == doubt.partition and is_same_log and doubt.begin <= portion.position <= doubt.end


def _was_known(doubt: Doubt, read: Read, portion: Portion) -> bool:
    """Whether each replica, or each router, must have known of it at the time that the answer's lag names."""
    if doubt.partition is not None and read.tier != "router":
        return False
    time_lag_ms = 0 if portion.time_lag_ms is None else portion.time_lag_ms
    return doubt.began_ms + DOUBT_WITHIN_MS <= read.sent_ms - time_lag_ms and read.received_ms <= doubt.ended_ms
