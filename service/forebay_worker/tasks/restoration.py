"""One replica that is restored in bulk: how much is done, and how fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay.clock import boot_ms
from forebay.task_ids import TopicPartition
from forebay_worker.tasks.replica import Replica

_RETRY_S = 1.0
_MAX_DOUBLINGS = 4
_MAX_ATTEMPTS = 5


@dataclass
class CopyProgress:
    """A replica's log and position, and to which position the copy leads that is on its way, 0 without one."""

    log: str | None
    position: int
    leads_to: int = 0


CopyStore = Callable[[str, TopicPartition, Path, Callable[[], bool], CopyProgress], str | None]
"""Copies a partition of a store into a new directory until that is stopped; returns what was copied, None if
nobody gives one. Raises ``OSError`` if the disk refuses."""


@dataclass
class Restoration:
    """One restore in progress or waiting."""

    replica: Replica
    number: int
    begun_boot_ms: float
    records: int = 0
    cancelled: bool = False
    may_copy: bool = False
    """Whether another worker's store is worth more than what there is."""
    copy: CopyProgress | None = None
    """That of the store that is or was copied for it."""
    begun_position: int = 0
    fruitless: int = 0
    """Attempts, one after the other, whose processes ended or failed for good without having done anything, or
    could not be started."""
    refused: int = 0
    """Attempts, one after the other, that the machine refused."""

    @property
    def given_up(self) -> bool:
        """Whether its processes failed too often, as where memory is short: it needs another way."""
        return self.fruitless >= _MAX_ATTEMPTS

    @property
    def retry_s(self) -> float:
        """The pause before the next attempt: one that takes up the last space would leave none to others."""
        return _RETRY_S * 2.0 ** min(self.refused, _MAX_DOUBLINGS)

    @property
    def records_per_second(self) -> float:
        """Records folded a second since the beginning."""
        return self.records / max(0.001, (boot_ms() - self.begun_boot_ms) / 1000)

    @property
    def seconds_left(self) -> int | None:
        """Seconds until the end of the log, at the pace so far; None before the first file, or if no end is known.

        Based on offsets: a compacted log has fewer records left than that.
        """
        progress = self.replica.view.progress
        done = progress.position - self.begun_position
        if done <= 0 or progress.end_offset is None:
            return None
        took_s = (boot_ms() - self.begun_boot_ms) / 1000
        return math.ceil(max(0, progress.end_offset - progress.position) * took_s / done)
