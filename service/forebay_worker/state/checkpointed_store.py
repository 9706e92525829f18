"""Stores that do not manage their offsets, which are written to the task's ``.checkpoint`` periodically
(KIP-116)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from forebay.clock import boot_ms, epoch_ms
from forebay.file_access import read_regular
from forebay.state_store import CommittedOffset, StateStore
from forebay.task_ids import TopicPartition
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.fsync import write_durably
from forebay_worker.state.layout import STORES

_BESIDE_NAME = ".offset"
RECORDS_PER_CHECKPOINT = 10_000
"""A checkpoint is written after this many records even before its interval has passed."""


class CheckpointedStore:
    """A user's store, with its offset kept beside it: a ``StateStore``.

    After a crash its content may be ahead of the checkpoint, so until replay passes the end that the log had at
    open, the replica is at no point of history, as ``pending_end`` records.

    A checkpoint has room for a position only. What else belongs to it (who writes, stream time, a misplaced key)
    is in a file in the store's directory, which goes where the store goes, and is written first: after a crash in
    between, it is of a later position, and says less.
    """

    manages_offsets = True

    def __init__(
        self,
        inner: StateStore,
        checkpoint: CheckpointFile,
        topic_partition: TopicPartition,
        end_offset: int,
        interval_ms: int,
        clock: Callable[[], float] = boot_ms,
    ) -> None:
        self.name = inner.name
        self.persistent = inner.persistent
        self.get = inner.get
        self.get_many = inner.get_many
        self._inner = inner
        self._checkpoint = checkpoint
        self._topic_partition = topic_partition
        self._interval_ms = interval_ms
        self._clock = clock
        self._written_boot_ms = clock()
        self._records_since = 0
        self._committed_epoch_ms = checkpoint.moment_epoch_ms() or epoch_ms()
        self._beside = checkpoint.path.parent / STORES / inner.name / _BESIDE_NAME
        position = checkpoint.read().get(topic_partition) if inner.persistent else None
        self._committed = (
            None
            if position is None
            else self._known_beside(position)._replace(
                pending_end=max(end_offset, position),
                replay_since_epoch_ms=checkpoint.moment_epoch_ms(),
            )
        )

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._inner.scan(start, end, reverse=reverse)

    def put(self, key: bytes, value: bytes) -> None:
        self._records_since += 1
        self._inner.put(key, value)

    def delete(self, key: bytes) -> None:
        self._records_since += 1
        self._inner.delete(key)

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit, and write the checkpoint if its interval or its number of records has passed."""
        self._inner.commit(changelog_offsets)
        if self._topic_partition in changelog_offsets:
            self._committed = changelog_offsets[self._topic_partition]
            self._committed_epoch_ms = epoch_ms()
        due = self._clock() - self._written_boot_ms >= self._interval_ms
        if due or self._records_since >= RECORDS_PER_CHECKPOINT:
            self._write()

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """The offset of the last commit; after open, that of the checkpoint."""
        return self._committed if topic_partition == self._topic_partition else None

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        """Write the checkpoint and close, even if the disk refuses the checkpoint."""
        try:
            self._write()
        finally:
            self._inner.close()

    def _known_beside(self, position: int) -> CommittedOffset:
        """The offset at a position, with what is known beside it; of a later one only what holds here too."""
        try:
            found = CommittedOffset.from_document(json.loads(read_regular(self._beside)))
        except (OSError, ValueError, TypeError):
            return CommittedOffset(position)
        known = CommittedOffset(
            position,
            as_of_epoch_ms=dict.fromkeys(found.as_of_epoch_ms),
            stream_time_ms=found.stream_time_ms,
            queries=found.queries,
            filling=found.filling,
            misplaced_keys=found.misplaced_keys,
            unproven=found.unproven,
            beat_epoch_ms=found.beat_epoch_ms,
            partitions_found=found.partitions_found,
        )
        if found.position != position:
            return known
        return known._replace(
            as_of_epoch_ms=found.as_of_epoch_ms,
            tombstone_floor=found.tombstone_floor,
            proof=found.proof,
            epochs=found.epochs,
        )

    def _write(self) -> None:
        if self._committed is None or not self._inner.persistent:
            return
        # The offset never gets ahead of what is durable.
        self._inner.flush()
        write_durably(self._beside, json.dumps(self._committed.document()))
        self._checkpoint.drop_malformed()
        self._checkpoint.add(self._topic_partition, self._committed.position, self._committed_epoch_ms)
        self._written_boot_ms = self._clock()
        self._records_since = 0
