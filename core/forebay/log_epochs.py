"""Log epochs: who wrote which part of a log, so that a log that was cut and grew again is not taken for the old
one.

On Kafka they are leader epochs (KIP-101, KIP-320), on SQLite the runs of the processes that write to a file. An
epoch is greater than those before it in the same log. A record and its epoch stay together for as long as the log
has them, so a point in the history of a log is an offset and the epoch of the record before it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_EPOCHS = 32
"""Epochs that a replica remembers. Of those before, it knows that they were less than the oldest."""


class EpochStart(NamedTuple):
    """An epoch of a log, and an offset from which on records were written in it, up to the next one's."""

    first_offset: int
    epoch: int


class OffsetAndEpoch(NamedTuple):
    """A point in the history of a log: the offset after a record, and the epoch of that record."""

    offset: int
    epoch: int


def epoch_before(starts: Sequence[EpochStart], offset: int) -> int | None:
    """The epoch of the last record before an offset, None if that is not known."""
    at = bisect.bisect_left(starts, (offset, -1))
    return starts[at - 1].epoch if at else None


def merged_epochs(known: Sequence[EpochStart], found: Iterable[EpochStart], before: int) -> tuple[EpochStart, ...]:
    """The epochs known of a log, the newest ``MAX_EPOCHS``, with those found that start before an offset."""
    merged = list(known)
    for start in found:
        if start.first_offset < before and (not merged or start.epoch > merged[-1].epoch):
            merged.append(start)
    return tuple(merged[-MAX_EPOCHS:])


def is_cut_off(known: Sequence[EpochStart], proof: OffsetAndEpoch | None, point: OffsetAndEpoch) -> bool:
    """Whether a point is of another history than the log of these epochs, of which a reader is at ``proof``.

    Epochs only grow within a log. So a greater epoch that starts before the point has taken the place of what was
    there, and a smaller one at the point or behind it was replaced later (Kafka's ``OffsetsForLeaderEpoch``
    compares in the same way).
    """
    if proof is not None and proof.offset >= point.offset and proof.epoch < point.epoch:
        return True
    return any(start.epoch > point.epoch and start.first_offset < point.offset for start in known)
