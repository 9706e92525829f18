"""Reads partitions of the SQLite changelog, each once a check finds that it was written to."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from forebay.clock import boot_ms
from forebay.file_access import denial
from forebay.lag import EndOffset
from forebay.log_epochs import EpochStart, OffsetAndEpoch
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import Batch, ReadFailure, Wake
from forebay_changelog.sqlite import log_file
from forebay_changelog.sqlite.checksums import COLUMNS, Checked, Row, check, without_holes

log = logging.getLogger(__name__)

_FAILURES: tuple[type[Exception], ...] = (*log_file.UNREADABLE, OSError, log_file.WriteRefused)
_MAX_BYTES_AT_ONCE = 8 << 20
"""Limit for the values that one poll of a partition returns, not counting the last few."""
_SIZED_AT_ONCE = 32
_RETRY_MS = 1_000.0
_NS_PER_S = 1_000_000_000
_COMPARE_FILES_EVERY_MS = 5_000.0
_WAIT_MS = 10.0
"""How long to wait for a write at least: the time between two checks of a few logs."""
_PAUSE_BY_CHECK = 39
"""Pause between checks for polls, as a multiple of the processor time that one takes: a fortieth of a core."""
_IF_GONE = (
    "What was applied is served, with growing lag. Put it back; if it is lost, the next start of a worker or a "
    "sink creates it, empty, and workers are rebuilt from that: fill the store again."
)
_IF_DAMAGED = (
    "Nothing from there on is applied. Restore the changelog from a backup, or run 'forebay changelog reset' and "
    "fill the store again."
)
_CACHE_KIB_PER_PARTITION = 64
"""Cache per log; SQLite's default of 2 MB, times thousands of partitions, would not be a bound."""


@dataclass
class _Assigned:
    path: str
    connection: sqlite3.Connection
    cursor: sqlite3.Cursor
    """The one cursor for all reads: the connection keeps a reference to every cursor made from it."""
    directory: str
    inode: int
    wal_inode: int | None
    data_version: int = -1
    end: int = 0
    end_epoch: int | None = None
    beginning: int = 0
    tombstone_floor: int = 0
    identity: str = ""

    def has_its_files(self) -> bool:
        """Whether its paths still name the files that it reads; raises ``OSError``."""
        return os.stat(self.path).st_ino == self.inode and _wal_inode(self.path) == self.wal_inode


class SqliteConsumer:
    """The ``Consumer`` of a SQLite changelog: each partition has a connection of its own, and is read once it was
    written to.

    A check of all logs finds that, and says up to when there was nothing new in the others. ``current`` makes one
    each time, ``poll`` unless one was made shortly before. For a ``replay`` every partition is polled each time.
    """

    def __init__(self, path: Callable[[TopicPartition], str], *, replay: bool = False) -> None:
        self._path = path
        self._replay = replay
        self._positions: dict[TopicPartition, int] = {}
        self._proofs: dict[TopicPartition, OffsetAndEpoch | None] = {}
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._failing: dict[TopicPartition, ReadFailure] = {}
        self._retry_boot_ms: dict[TopicPartition, float] = {}
        """When those whose failure lasts are polled again."""
        self._unread: set[TopicPartition] = set()
        """Those that may contain more than was read."""
        self._check_due_boot_ms = 0.0
        self._directories: dict[str, tuple[int, ...] | None] = {}
        """The state of each directory at the last check; None if it does not tell replaced files."""

    def assign(self, topic_partition: TopicPartition, position: int, proof: OffsetAndEpoch | None = None) -> None:
        self.unassign(topic_partition)
        self._positions[topic_partition], self._proofs[topic_partition] = position, proof
        self._unread.add(topic_partition)

    def unassign(self, topic_partition: TopicPartition) -> None:
        if self._positions.pop(topic_partition, None) is None:
            return
        del self._proofs[topic_partition]
        self._fail(topic_partition, None)
        self._unread.discard(topic_partition)
        self._disconnect(topic_partition)

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return when the next check is due, at once if a log is unread, when ``wake`` is set, or after the
        time-out."""
        if self._unread <= self._failing.keys():
            pause_ms = max(self._check_due_boot_ms - boot_ms(), _WAIT_MS)
            wake.wait(min(timeout_s, pause_ms / 1000))

    def close(self) -> None:
        for topic_partition in list(self._positions):
            self.unassign(topic_partition)

    def poll(self, max_records: int) -> Iterator[Batch]:
        """What is new in each partition; those that cannot be read are left out."""
        if self._replay:
            self._unread.update(self._positions)
        elif boot_ms() >= self._check_due_boot_ms:
            self._check()
        begun_boot_ms = boot_ms()
        # One by one: so many new objects at once would trigger a full garbage collection, which holds everything
        # up for a tenth of a second with a thousand partitions.
        for tp in [tp for tp in self._positions if tp in self._unread]:
            if tp not in self._positions or self._retry_boot_ms.get(tp, 0.0) > begun_boot_ms:
                continue
            self._unread.discard(tp)
            try:
                batch, failure = self._read(tp, self._source(tp), max_records)
            except _FAILURES as error:
                self._disconnect(tp)
                self._unread.add(tp)
                self._fail(tp, _failure(self._path(tp), error))
            else:
                self._fail(tp, failure)
                if batch.position < batch.end.offset:
                    self._unread.add(tp)
                yield batch

    def _fail(self, tp: TopicPartition, failure: ReadFailure | None) -> None:
        if failure is None:
            self._failing.pop(tp, None)
            self._retry_boot_ms.pop(tp, None)
        else:
            self._failing[tp] = failure
            if failure.lasting:
                self._retry_boot_ms[tp] = boot_ms() + _RETRY_MS

    def failures(self) -> dict[TopicPartition, ReadFailure]:
        """Why partitions could not be read when they were polled last."""
        return dict(self._failing)

    def current(self) -> tuple[float, list[TopicPartition]]:
        """A time, and the partitions to which nothing was written between their last poll and then.

        Each is checked, after that time.
        """
        sent_boot_ms = boot_ms()
        self._check()
        return sent_boot_ms, [tp for tp in self._positions if tp not in self._unread]

    def notices(self, specs: Mapping[str, StoreSpec]) -> dict[TopicPartition, dict[str, str]]:
        """Nothing: a log that can be read has no faults."""
        return {}

    def _check(self) -> None:
        """Find the logs that were written to since their last poll, or replaced."""
        took_s = -time.thread_time()
        before = self._directories
        self._directories = {
            name: _state(name) for name in {source.directory for source in self._assigned.values()}
        }
        kept = {name for name, state in self._directories.items() if state and before.get(name) == state}
        self._unread.update(
            tp for tp in self._positions if tp not in self._unread and not self._is_unchanged(tp, kept)
        )
        took_s += time.thread_time()
        self._check_due_boot_ms = boot_ms() + _PAUSE_BY_CHECK * took_s * 1000

    def _is_unchanged(self, tp: TopicPartition, kept: set[str]) -> bool:
        """Whether a log was not written to, and is the same if its directory is not among those ``kept``."""
        source = self._assigned.get(tp)
        try:
            return (
                source is not None
                and (source.directory in kept or source.has_its_files())
                and _data_version(source) == source.data_version
            )
        except (OSError, sqlite3.Error):
            # A poll says why.
            return False

    def _read(self, tp: TopicPartition, source: _Assigned, max_records: int) -> tuple[Batch, ReadFailure | None]:
        """What is new, and why there is no more of it if the next record is damaged."""
        sent = boot_ms()
        cursor = source.cursor
        data_version = _data_version(source)
        checked, is_cut, failure = Checked([], None), False, None
        position, proof = self._positions[tp], self._proofs[tp]
        epochs, truncated = [], False
        if data_version != source.data_version or position < source.end:
            # One read transaction, so that records and end are consistent.
            cursor.execute("BEGIN")
            try:
                state = log_file.read_state(cursor, source.path)
                source.end_epoch = log_file.read_newest_epoch(cursor)
                truncated = proof is not None and not log_file.is_proven(cursor, proof)
                first = cursor.execute("SELECT min(offset) FROM log").fetchone()[0]
                cursor.execute(
                    f"SELECT {COLUMNS} FROM log WHERE offset >= ? ORDER BY offset LIMIT ?",
                    (position, max_records),
                )
                rows, is_cut = _within_bounds(cursor, max_records)
                checked = without_holes(
                    check(rows),
                    max(position, state.removed_to),
                    state.next_offset,
                    are_all=not is_cut,
                )
                if not rows or rows[0][0] != position:
                    checked = _stepped_over(cursor, position) or checked
                if checked.records:
                    epochs = log_file.read_epochs(cursor, checked.records[0][0], checked.records[-1][0])
            finally:
                cursor.execute("COMMIT")
            if checked.damaged_offset is not None:
                is_cut = True
                failure = _damaged(tp, source.path, checked.damaged_offset)
            source.identity, source.end, source.tombstone_floor = state[:3]
            source.beginning = source.end if first is None else first
            source.data_version = data_version
        # Records after others than those that were read before belong to another history.
        records = [] if truncated else checked.records
        after = max(position, source.end)
        if is_cut or truncated:
            after = records[-1][0] + 1 if records else position
        self._positions[tp] = after
        batch = Batch(
            tp,
            records,
            after,
            after - position != len(records),
            EndOffset(source.end, sent, epoch=source.end_epoch),
            source.beginning,
            source.tombstone_floor,
            source.identity,
            truncated=truncated,
            epochs=tuple(EpochStart(*start) for start in epochs),
        )
        self._proofs[tp] = batch.proof(proof)
        return batch, failure

    def _source(self, tp: TopicPartition) -> _Assigned:
        source = self._assigned.get(tp)
        path = self._path(tp) if source is None else source.path
        # A log that was deleted and recreated is a new file under the same name.
        if source is not None and os.stat(source.path).st_ino != source.inode:
            self._disconnect(tp)
            source = None
        # While a connection is open, SQLite neither removes this file nor makes another.
        if source is not None and _wal_inode(source.path) != source.wal_inode:
            log.error(
                "%s: %s-wal is not the file that it was when the log was opened. It was removed or replaced while "
                "in use, so what was written last may be lost. Leave the files of a log to SQLite, and back it up "
                "as docs/backup.md says.",
                tp,
                source.path,
            )
            self._disconnect(tp)
            source = None
        if source is None:
            inode = os.stat(path).st_ino
            connection = log_file.connect(path)
            source = self._assigned[tp] = _Assigned(
                path, connection, connection.cursor(), os.path.dirname(path), inode, None
            )
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB_PER_PARTITION}")
            # Reading it makes the file where there is none yet.
            log_file.check_format(connection, path)
            source.wal_inode = _wal_inode(path)
        return source

    def _disconnect(self, tp: TopicPartition) -> None:
        source = self._assigned.pop(tp, None)
        if source is not None:
            source.connection.close()


def _data_version(source: _Assigned) -> int:
    """A number that changes with each commit of another connection."""
    return int(source.cursor.execute("PRAGMA data_version").fetchone()[0])


def _stepped_over(cursor: sqlite3.Cursor, position: int) -> Checked | None:
    """Nothing but the damage, if the record before those from a position on is one that belongs after it.

    Offsets are in the file's order. One that the disk has changed misleads the search for the next records past
    it, to where compaction might have removed those between.
    """
    cursor.execute(f"SELECT {COLUMNS} FROM log WHERE offset < ? ORDER BY offset DESC LIMIT 1", (position,))
    before = check(cursor.fetchall())
    if before.damaged_offset is None and all(record[0] < position for record in before.records):
        return None
    return Checked([], position)


def _state(directory: str) -> tuple[int, ...] | None:
    """What differs once a file in a directory was created, renamed or deleted, or the directory was replaced.

    It differs every few seconds regardless: a link may lead to another file now, of which its directory knows
    nothing. None within a second of a change, as the next one may have the same time. Why ``ctime``: programs that
    copy directories set ``mtime``.
    """
    try:
        found = os.stat(directory)
    except OSError:
        return None
    if time.time_ns() - found.st_ctime_ns < _NS_PER_S:
        return None
    return found.st_ino, found.st_ctime_ns, int(boot_ms() // _COMPARE_FILES_EVERY_MS)


def _failure(path: str, error: Exception) -> ReadFailure:
    if isinstance(error, log_file.WriteRefused):
        return ReadFailure(str(error), lasting=True)
    if not isinstance(error, sqlite3.Error | OSError):
        return ReadFailure(f"The log {path} is damaged: {error}. {_IF_DAMAGED}", lasting=True)
    denied = denial(path)
    if denied is not None:
        return ReadFailure(f"The log {path} cannot be read: {denied}.", lasting=True)
    topic = os.path.dirname(path)
    for directory in (os.path.dirname(topic), topic):
        if not os.path.isdir(directory):
            return ReadFailure(f"The log's directory {directory} is gone. {_IF_GONE}", lasting=False)
    why = error.strerror if isinstance(error, OSError) else str(error)
    remedy = "Is its disk full or away?" if os.path.exists(path) else _IF_GONE
    return ReadFailure(f"The log {path} cannot be read: {why}. {remedy}", lasting=False)


def _wal_inode(path: str) -> int | None:
    """Which file a log's write-ahead log is now, None if there is none."""
    try:
        return os.stat(f"{path}-wal").st_ino
    except FileNotFoundError:
        return None


def _damaged(tp: TopicPartition, path: str, offset: int) -> ReadFailure:
    return ReadFailure(
        f"The record at offset {offset} of {tp.topic!r}, partition {tp.partition}, is damaged in {path}: it is "
        f"missing, or does not match its checksum. {_IF_DAMAGED}",
        lasting=True,
    )


def _within_bounds(cursor: sqlite3.Cursor, max_records: int) -> tuple[list[Row], bool]:
    """The rows that one poll returns, and whether more may follow: large values are read a few at a time."""
    rows: list[Row] = []
    held_bytes = 0
    while some := cursor.fetchmany(_SIZED_AT_ONCE):
        rows += some
        held_bytes += sum([len(row[2]) for row in some if row[2]])
        if held_bytes > _MAX_BYTES_AT_ONCE:
            return rows, True
    return rows, len(rows) == max_records
