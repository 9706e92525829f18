"""Copies of a state whose files Spark deletes before they were read."""

from __future__ import annotations

import logging

from forebay_tap.spark_checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import CheckpointError, VersionPurged

log = logging.getLogger(__name__)

_MOST_LOST = 3
_REMEDY = "raise spark.sql.streaming.minBatchesToRetain of the query"


class CopyAttempts:
    """Which batch's state to copy next. What one copy wrote the next need not write, so each is faster."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint = checkpoint
        self._name = name
        self._lost = 0

    def next_batch(self, batch: int, error: CheckpointError) -> int:
        """The newest batch, once the state of one was lost to an error.

        Raises the error if there is no other batch, and ``VersionPurged`` after the third loss.
        """
        newest = self._checkpoint.newest_batch()
        if newest == batch:
            raise error
        self._lost += 1
        if self._lost == _MOST_LOST:
            raise VersionPurged(
                f"{self._name}: Spark has deleted the state of {_MOST_LOST} batches while it was copied: "
                f"{_REMEDY}. The last was batch {batch}: {error}"
            ) from error
        log.warning(
            "%s: the state of batch %d was deleted while it was copied, and that of batch %d is copied instead. "
            "If that goes on, %s.",
            self._name,
            batch,
            newest,
            _REMEDY,
        )
        return newest
