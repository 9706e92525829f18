"""Folds changelog records into their changes to a store: the last value of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.clock import latest_epoch_ms
from forebay.errors import SchemaUnavailable
from forebay.log_epochs import EpochStart, merged_epochs
from forebay.retention import expired_to_ms
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import USER_TAG
from forebay.stored_values import encode_version, stamp
from forebay.unproven import UnprovenRanges
from forebay_changelog import Batch, Heartbeat, Record
from forebay_worker.tasks.record_check import BadRecord, fitting, up_to_bad_record

KEYS_ALL_CHECKED = 1_000
"""Keys of records up to this offset are all checked against the partitioner, then a sample."""
_KEYS_CHECK_EVERY = 61
"""Those at offsets that this divides: a prime, since offsets of transactions come in patterns of two."""
MAX_MISPLACED_KEYS = 16
_HEARTBEAT_PREFIX = len(b"\x00forebay-heartbeat\x00")
_PLAIN_AS_STORED = frozenset({"string", "bytes", "json"})


@dataclass
class Fold:
    """The outcome of some records on top of a store's content.

    ``changes`` maps stored keys to their last value, None to delete. In a store with ``latest_by`` each order of a
    key has a stored key of its own, and reads take the highest, so that the order of the records does not matter.
    ``as_of_epoch_ms``, ``queries``, ``filling``, ``unproven``, ``beat_epoch_ms`` and ``stream_time_ms``
    belong to the offset to commit with them.
    """

    as_of_epoch_ms: dict[str, int | None]
    queries: dict[str, str]
    stream_time_ms: int | None
    filling: set[str]
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    unproven: dict[str, UnprovenRanges] = field(default_factory=dict)
    beat_epoch_ms: dict[str, int] = field(default_factory=dict)
    ahead: int = 0
    """How many records had a time too far after their own timestamp to move stream time."""

    @classmethod
    def after(cls, committed: CommittedOffset) -> Fold:
        """An empty fold on top of a committed offset."""
        return cls(
            dict(committed.as_of_epoch_ms),
            dict(committed.queries),
            committed.stream_time_ms,
            set(committed.filling),
            unproven=dict(committed.unproven),
            beat_epoch_ms=dict(committed.beat_epoch_ms),
        )

    def add(self, spec: StoreSpec, records: Sequence[Record]) -> None:
        """Fold records in, in offset order; heartbeats change no key, and a value that has expired deletes its
        key. Raises any ``ValueError``, ``TypeError`` or ``OverflowError`` of a bad record."""
        self._add_changes(spec, records)
        for record in records:
            if record[4]:
                self._see_heartbeat(record[1], record[2], record[3])

    def _add_changes(self, spec: StoreSpec, records: Sequence[Record]) -> None:
        keys = spec.stored_keys
        expired_ms = expired_to_ms(spec, latest_epoch_ms())
        stamped_ms: int | None = None
        # None if a value of this time has expired.
        stamped: bytes | None = None
        if not keys.times and spec.key in _PLAIN_AS_STORED:
            changes = self.changes
            for _, key, value, timestamp_ms, beat in records:
                if not beat:
                    if timestamp_ms != stamped_ms:
                        stamped_ms, stamped = timestamp_ms, _stamp_unless_expired(timestamp_ms, expired_ms)
                    changes[USER_TAG + key] = None if value is None or stamped is None else stamped + value
        else:
            kind, encode = spec.store_kind, keys.from_changelog
            last_entry_wins, time_to_end_ms = kind.last_entry_wins, kind.time_to_end_ms(spec)
            for _, key, value, timestamp_ms, beat in records:
                if not beat:
                    stored = encode(key, timestamp_ms)
                    if timestamp_ms != stamped_ms:
                        stamped_ms, stamped = timestamp_ms, _stamp_unless_expired(timestamp_ms, expired_ms)
                    content = None if value is None or stamped is None else stamped + value
                    self.changes[stored] = encode_version(content) if last_entry_wins else content
                    if time_to_end_ms is not None:
                        end_ms = keys.parse(stored).times_ms[0] + time_to_end_ms
                        self._advance_stream_time(spec, end_ms, timestamp_ms)

    def _advance_stream_time(self, spec: StoreSpec, end_ms: int, timestamp_ms: int) -> None:
        """One wrong time far in the future must not make everything else look expired.

        A version's time is its record's timestamp, so of versions none is ahead.
        """
        if self.stream_time_ms is not None and end_ms <= self.stream_time_ms:
            return
        if end_ms - timestamp_ms > spec.max_ahead_ms:
            self.ahead += 1
        else:
            self.stream_time_ms = end_ms

    def _see_heartbeat(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        writer = key[_HEARTBEAT_PREFIX:].decode()
        if value is None:
            self.as_of_epoch_ms.pop(writer, None)
            self.queries.pop(writer, None)
            self.filling.discard(writer)
            self.unproven.pop(writer, None)
            self.beat_epoch_ms.pop(writer, None)
            return
        beat = Heartbeat.parse(value)
        as_of_ms = beat.as_of_ms
        if as_of_ms is None and self.queries.get(writer) == beat.query_id:
            # A query that cannot tell for now keeps its previous value; a new query restarts its source.
            as_of_ms = self.as_of_epoch_ms.get(writer)
        self.as_of_epoch_ms[writer] = as_of_ms
        self.queries[writer] = beat.query_id
        self.beat_epoch_ms[writer] = timestamp_ms
        self.unproven.pop(writer, None)
        if beat.unproven:
            self.unproven[writer] = beat.unproven
        if beat.filling:
            self.filling.add(writer)
        else:
            self.filling.discard(writer)


class FoldedBatch(NamedTuple):
    """The part of a batch that could be folded, and its outcome."""

    batch: Batch
    fold: Fold
    skipped: int = 0
    """How many records were skipped."""
    stopped_by: BadRecord | SchemaUnavailable | None = None
    """The record before which the batch was cut, or the schema that it has to wait for."""


def fold_batch(spec: StoreSpec, before: CommittedOffset, batch: Batch) -> FoldedBatch:
    """Fold a batch on top of a committed offset, without bad records or up to the first, as the store demands."""
    skipped, stopped_by = 0, None
    if spec.validated:
        batch, skipped, stopped_by = fitting(spec, batch)
    fold = Fold.after(before)
    try:
        fold.add(spec, batch.records)
    except (TypeError, ValueError, OverflowError):
        # What comes before a bad record is applied all the same.
        batch, _, stopped_by = up_to_bad_record(spec, batch)
        if stopped_by is None:
            raise
        fold = Fold.after(before)
        fold.add(spec, batch.records)
    return FoldedBatch(batch, fold, skipped, stopped_by)


def _stamp_unless_expired(timestamp_ms: int, expired_ms: int | None) -> bytes | None:
    return None if expired_ms is not None and timestamp_ms <= expired_ms else stamp(timestamp_ms)


def advance(
    before: CommittedOffset,
    batch: Batch,
    fold: Fold,
    last_caught_up_epoch_ms: float | None,
    now_epoch_ms: float,
) -> CommittedOffset:
    """The offset to commit with a batch: the replica's place in the log's history after it.

    On a compacted log a value may be gone while its successor is not yet read. So a gap freezes the consistent
    position until the position reaches the end that the gap's response showed, or an offset beyond which a later
    response could not read.
    """
    pending_end, pending_epoch = before.pending_end, before.pending_epoch
    if batch.gap:
        pending_end, pending_epoch = max(batch.end.offset, pending_end or 0), _newest_epoch(before, batch)
    consistent = before.consistent_position
    if pending_end is None or batch.end_reached or batch.position >= pending_end:
        consistent, pending_end, pending_epoch = batch.position, None, None
    reached = batch.position >= batch.end.offset and consistent == batch.position
    return CommittedOffset(
        position=batch.position,
        consistent_position=consistent,
        pending_end=pending_end,
        last_caught_up_epoch_ms=last_caught_up_epoch_ms,
        as_of_epoch_ms=fold.as_of_epoch_ms,
        stream_time_ms=fold.stream_time_ms,
        restored=before.restored or reached,
        replay_since_epoch_ms=before.replay_since_epoch_ms if before.position else now_epoch_ms,
        queries=fold.queries,
        misplaced_keys=before.misplaced_keys,
        partitions_found=before.partitions_found,
        tombstone_floor=max(before.tombstone_floor, batch.tombstone_floor),
        end_reached_epoch_ms=before.end_reached_epoch_ms,
        filling=tuple(sorted(fold.filling)),
        replay_beginning=before.replay_beginning if _has_begun(before) else batch.beginning,
        proof=batch.proof(before.proof),
        epochs=_epochs_after(before, batch),
        unproven=fold.unproven,
        beat_epoch_ms=fold.beat_epoch_ms,
        pending_epoch=pending_epoch,
    )


def _newest_epoch(before: CommittedOffset, batch: Batch) -> int | None:
    """The newest epoch of a log as far as the end that a batch states; None if that is not known."""
    if batch.end.epoch is None:
        return None
    # Records may have come after the end was requested.
    return max(batch.end.epoch, before.pending_epoch or 0, *(start.epoch for start in batch.epochs))


def _has_begun(before: CommittedOffset) -> bool:
    return before.position > 0 and before.replay_beginning is not None


def _epochs_after(before: CommittedOffset, batch: Batch) -> Sequence[EpochStart]:
    return merged_epochs(before.epochs, batch.epochs, batch.read_to)


def misplaced_keys(
    spec: StoreSpec, partition: int, records: Sequence[Record], known: Sequence[bytes]
) -> tuple[bytes, ...]:
    """The keys that the store's partitioner does not put into this partition, as in the log, after some records.

    Those known until a record deletes them, and those found. Which records are checked depends on their offsets
    only, so that all replicas find the same.
    """
    if spec.stream_partitioner is None:
        return ()
    elsewhere = {
        record[0]
        for record in records
        if (record[0] % _KEYS_CHECK_EVERY == 0 or record[0] < KEYS_ALL_CHECKED)
        and _belongs_elsewhere(spec, partition, record)
    }
    if not known and not elsewhere:
        # Almost always: a restore has no time to look at each record twice.
        return ()
    found = dict.fromkeys(known)
    for offset, key, value, _, _ in records:
        if value is None and key in found:
            del found[key]
        elif offset in elsewhere and len(found) < MAX_MISPLACED_KEYS:
            found[key] = None
    return tuple(found)


def _belongs_elsewhere(spec: StoreSpec, partition: int, record: Record) -> bool:
    """Whether a record gives a value to a key that the partitioner does not put into this partition."""
    _, key, value, timestamp_ms, beat = record
    if beat or value is None:
        return False
    return is_misplaced(spec, partition, spec.stored_keys.split_changelog(key, timestamp_ms).plain)


def is_misplaced(spec: StoreSpec, partition: int, plain: bytes) -> bool:
    """Whether the store's partitioner, if there is one, puts a key elsewhere."""
    partitioner = spec.stream_partitioner
    return partitioner is not None and partitioner.partition(plain, spec.partitions) != partition
