"""The embedded changelog: a directory of SQLite databases, one per topic-partition, for one machine."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from forebay.changelog import sqlite_partition
from forebay.changelog.base import Batch, Consumer, Record
from forebay.changelog.file_events import FileEvents
from forebay.changelog.wake import Wake
from forebay.errors import BatchConflict, ChangelogElsewhere, ChangelogError, PartitionCountMismatch, TopicMissing
from forebay.lag import EndOffset, boot_ms
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec

log = logging.getLogger(__name__)

_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "beegfs", "ocfs2"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs"}
)
DEFAULT_MIN_COMPACTION_LAG_MS = 3_600_000
DEFAULT_DELETE_RETENTION_MS = 86_400_000
_PATIENCE = "PRAGMA busy_timeout=30000"
_LOOK_AT_EACH_MS = 5_000.0
_LEAST_PAUSE_MS = 1.0
_PAUSE_BY_LOOK = 10
"""By what a look at logs that are being written to takes, until the next."""
_CACHE_KIB_PER_PARTITION = 64
"""What a consumer keeps of each log; SQLite's own 2 MB, times thousands of partitions, would bound nothing."""


class SqliteChangelog:
    """Topics in ``<directory>/<topic>/<partition>.db``; ``<directory>/topics.db`` names them.

    Raises ``ChangelogElsewhere`` on a network file system, where SQLite's locks do not hold.
    """

    def __init__(self, directory: str | Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        self.directory = Path(directory).absolute()
        self.url = f"sqlite://{quote(str(self.directory))}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ChangelogError(
                f"The changelog directory {self.directory} cannot be made: {error.strerror}."
            ) from None
        file_system = _file_system(self.directory.resolve(), mounts)
        if file_system in _NETWORK_FILE_SYSTEMS:
            raise ChangelogElsewhere(
                f"The changelog {self.directory} is on a network file system ({file_system}), where SQLite's "
                "locks do not hold. Use a local disk, or a kafka:// changelog."
            )
        self.directory_id = self._directory_id()
        with self._topics() as connection:
            sqlite_partition.enable_wal(connection)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, "
                "identity TEXT NOT NULL)"
            )

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        """Create a store's topic unless it is there; see ``Changelog``."""
        if not create:
            self.partitions(spec.topic)
        self.ensure_topic(spec.topic, spec.partitions)

    def ensure_group(self, application_id: str) -> str | None:
        """A group over SQLite has a file of its own."""
        return None

    def ensure_topic(self, topic: str, partitions: int) -> None:
        """Create a topic unless it is there; raises ``PartitionCountMismatch`` if its count differs."""
        with self._topics() as connection, sqlite_partition.transaction(connection):
            row = connection.execute("SELECT partitions FROM topic WHERE name = ?", (topic,)).fetchone()
            if row is None:
                identity = self._create_partitions(topic, partitions)
                connection.execute("INSERT INTO topic VALUES (?, ?, ?)", (topic, partitions, identity))
            elif row[0] != partitions:
                raise PartitionCountMismatch(
                    f"The log {topic!r} in {self.directory} has {row[0]} partitions, the topology says "
                    f"{partitions}. Another count moves keys: set partitions = {row[0]}, or give the store a "
                    "new name."
                )
            else:
                self._restore_partitions(topic, partitions)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; raises ``TopicMissing``."""
        return int(self._topic(topic)[0])

    def identity(self, topic: str, partition: int | None = None) -> str:
        """The identity of a topic, or of one partition's log; raises ``TopicMissing``.

        They differ only where a partition's file was lost, or while a reset is under way.
        """
        identity = str(self._topic(topic)[1])
        if partition is None:
            return identity
        try:
            with _closing(self.path(TopicPartition(topic, partition))) as connection:
                return str(connection.execute("SELECT identity FROM state").fetchone()[0])
        except sqlite3.Error as error:
            raise TopicMissing(f"Partition {partition} of the log {topic!r} cannot be read: {error}.") from None

    def topics(self) -> list[str]:
        """The names of all topics."""
        with self._topics() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM topic ORDER BY name")]

    def path(self, topic_partition: TopicPartition) -> str:
        """The partition's database."""
        return sqlite_partition.partition_path(str(self.directory), *topic_partition)

    def consumer(self, *, replay: bool = False) -> Consumer:
        """A new reader."""
        return SqliteConsumer(self, replay=replay)

    def end_offsets(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The current ends; partitions that cannot be reached are left out."""
        ends = {}
        for tp in topic_partitions:
            with contextlib.suppress(sqlite3.Error), _closing(self.path(tp)) as connection:
                ends[tp] = connection.execute("SELECT next_offset FROM state").fetchone()[0]
        return ends

    def append_heartbeat(self, topic: str, *, writer: str, query_id: str, value: bytes) -> dict[int, int]:
        """Append a heartbeat to every partition; see ``Changelog``."""
        try:
            return {
                partition: sqlite_partition.append_heartbeat(
                    self.path(TopicPartition(topic, partition)), writer=writer, query_id=query_id, value=value
                )
                for partition in range(self.partitions(topic))
            }
        except sqlite_partition.WriteRefused as error:
            raise BatchConflict(str(error)) from None

    def retire_writer(self, topic: str, writer: str) -> None:
        """Take a writer that is gone for good out of the store's age."""
        for partition in range(self.partitions(topic)):
            sqlite_partition.retire_writer(self.path(TopicPartition(topic, partition)), writer)

    def reset(self, spec: StoreSpec) -> str:
        """Empty a store's topic and give it a new identity; every replica is rebuilt. Returns the identity."""
        topic = spec.topic
        identity = sqlite_partition.new_identity()
        for partition in range(self.partitions(topic)):
            sqlite_partition.reset(self.path(TopicPartition(topic, partition)), identity)
        with self._topics() as connection:
            connection.execute("UPDATE topic SET identity = ? WHERE name = ?", (identity, topic))
        return identity

    def compact(
        self,
        topic: str,
        *,
        min_compaction_lag_ms: int = DEFAULT_MIN_COMPACTION_LAG_MS,
        delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS,
    ) -> int:
        """Keep the last record of each key in every partition; returns how many records went."""
        return sum(
            sqlite_partition.compact(
                self.path(TopicPartition(topic, partition)),
                now_ms=int(time.time() * 1000),
                min_compaction_lag_ms=min_compaction_lag_ms,
                delete_retention_ms=delete_retention_ms,
            )
            for partition in range(self.partitions(topic))
        )

    @contextlib.contextmanager
    def _topics(self):  # type: ignore[no-untyped-def]
        try:
            connection = sqlite_partition.connect(str(self.directory / "topics.db"), create=True)
        except sqlite3.Error as error:
            raise ChangelogError(f"The changelog {self.directory} cannot be opened: {error}.") from None
        try:
            yield connection
        finally:
            connection.close()

    def _topic(self, topic: str) -> tuple[int, str]:
        with self._topics() as connection:
            row: tuple[int, str] | None = connection.execute(
                "SELECT partitions, identity FROM topic WHERE name = ?", (topic,)
            ).fetchone()
        if row is None:
            raise TopicMissing(f"The changelog {self.directory} has no log {topic!r}.")
        return row

    def _create_partitions(self, topic: str, partitions: int) -> str:
        # Files may be left from a creation that was cut short: the first one's identity goes for all.
        (self.directory / topic).mkdir(exist_ok=True)
        identity = sqlite_partition.new_identity()
        for partition in range(partitions):
            found = sqlite_partition.create(self.path(TopicPartition(topic, partition)), identity)
            if partition == 0:
                identity = found
        return identity

    def _restore_partitions(self, topic: str, partitions: int) -> None:
        """Make deleted files anew: empty logs of another identity, so that old state is not trusted."""
        (self.directory / topic).mkdir(exist_ok=True)
        for partition in range(partitions):
            path = self.path(TopicPartition(topic, partition))
            if not os.path.exists(path):
                log.error("the log %s of partition %d was gone; it begins anew, empty", path, partition)
                sqlite_partition.create(path, sqlite_partition.new_identity())

    def _directory_id(self) -> str:
        path = self.directory / sqlite_partition.DIRECTORY_ID_FILE
        if not path.exists():
            mine = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
            mine.write_text(f"{sqlite_partition.new_identity()} {socket.gethostname()}\n")
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)
            mine.unlink()
        return path.read_text().strip()


@dataclass
class _Assigned:
    path: str
    connection: sqlite3.Connection
    cursor: sqlite3.Cursor
    """The one that all is read by: the connection keeps a reference to each that was made of it."""
    inode: int
    data_version: int = -1
    end: int = 0
    beginning: int = 0
    tombstone_floor: int = 0
    identity: str = ""


class SqliteConsumer:
    """Reads partitions, each over a connection of its own, once the kernel says that their files were written to.

    Where it cannot, and for a ``replay``, every one is looked at each time.
    """

    def __init__(self, changelog: SqliteChangelog, *, replay: bool = False) -> None:
        self._changelog = changelog
        self._positions: dict[TopicPartition, int] = {}
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._failing: dict[TopicPartition, str] = {}
        """Why partitions cannot be read, as it was logged."""
        self._unread: set[TopicPartition] = set()
        """Those that may hold more than was read of them."""
        self._unsettled: set[TopicPartition] = set()
        """Those that were read while somebody was about to write: the kernel may have told of it already."""
        self._look_took_ms = 0.0
        self._events = None if replay else _file_events()
        self._files: dict[str, TopicPartition] = {}
        self._looked_again_boot_ms = boot_ms()
        self._to_look_at_again: list[TopicPartition] = []

    def assign(self, topic_partition: TopicPartition, position: int) -> None:
        """Read a partition from this position on."""
        self.unassign(topic_partition)
        self._positions[topic_partition] = position
        self._unread.add(topic_partition)
        path = self._changelog.path(topic_partition)
        self._files |= {path: topic_partition, f"{path}-wal": topic_partition}

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition."""
        if self._positions.pop(topic_partition, None) is None:
            return
        self._failing.pop(topic_partition, None)
        self._unread.discard(topic_partition)
        self._unsettled.discard(topic_partition)
        path = self._changelog.path(topic_partition)
        del self._files[path], self._files[f"{path}-wal"]
        self._disconnect(topic_partition)

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return once a file is written to, when ``wake`` is set, or after the time-out."""
        if self._events is None:
            wake.wait(timeout_s)
        elif self._unread <= self._failing.keys():
            if self._unsettled:
                timeout_s = min(timeout_s, max(_LEAST_PAUSE_MS, _PAUSE_BY_LOOK * self._look_took_ms) / 1000)
            wake.wait(timeout_s, self._events.fileno())

    def close(self) -> None:
        """Close every connection."""
        for topic_partition in list(self._positions):
            self.unassign(topic_partition)
        if self._events is not None:
            self._events.close()

    def poll(self, max_records: int) -> Iterator[Batch]:
        """What is new in each partition; those that cannot be read are left out."""
        begun_boot_ms = boot_ms()
        self._take_events()
        # One by one: so many new objects at once would have Python look through all that it has for garbage,
        # which holds everything up for a tenth of a second where there are a thousand partitions.
        for tp in self._unread | self._unsettled:
            if tp not in self._positions:
                continue
            self._unread.discard(tp)
            self._unsettled.discard(tp)
            try:
                source = self._source(tp)
                if self._events is not None and _is_written_to(source.cursor):
                    self._unsettled.add(tp)
                batch = self._read(tp, source, max_records)
            except (sqlite3.Error, OSError, sqlite_partition.WriteRefused) as error:
                self._disconnect(tp)
                self._unread.add(tp)
                if self._failing.get(tp) != str(error):
                    self._failing[tp] = str(error)
                    log.error("%s cannot be read; it is tried again: %s", tp, error)
            else:
                self._failing.pop(tp, None)
                if batch.position < batch.end.offset:
                    self._unread.add(tp)
                yield batch
        self._look_took_ms = boot_ms() - begun_boot_ms

    def current(self) -> tuple[float, list[TopicPartition]]:
        """A time, and the partitions whose files were not written to between their last look and then."""
        asked = boot_ms()
        self._take_events()
        return asked, [tp for tp in self._positions if tp not in self._unread and tp not in self._unsettled]

    def _take_events(self) -> None:
        changed = None if self._events is None else self._events.changed()
        if changed is None:
            self._unread.update(self._positions)
        else:
            self._unread.update(self._files[path] for path in changed & self._files.keys())
            self._look_again()

    def _look_again(self) -> None:
        """Look at each now and then regardless: nobody tells that the whole changelog was replaced."""
        now = boot_ms()
        due = int(len(self._positions) * (now - self._looked_again_boot_ms) / _LOOK_AT_EACH_MS)
        if due:
            self._looked_again_boot_ms = now
            self._to_look_at_again = self._to_look_at_again or list(self._positions)
            self._unread.update(tp for tp in self._to_look_at_again[:due] if tp in self._positions)
            del self._to_look_at_again[:due]

    def _read(self, tp: TopicPartition, source: _Assigned, max_records: int) -> Batch:
        sent = boot_ms()
        cursor = source.cursor
        (data_version,) = cursor.execute("PRAGMA data_version").fetchone()
        records: list[Record] = []
        position = self._positions[tp]
        if data_version != source.data_version or position < source.end:
            # One read transaction, so that records and end are of one moment.
            cursor.execute("BEGIN")
            try:
                state = cursor.execute("SELECT identity, next_offset, tombstone_floor FROM state").fetchone()
                first = cursor.execute("SELECT min(offset) FROM log").fetchone()[0]
                rows = cursor.execute(
                    "SELECT offset, key, value, timestamp_ms, heartbeat FROM log "
                    "WHERE offset >= ? ORDER BY offset LIMIT ?",
                    (position, max_records),
                ).fetchall()
            finally:
                cursor.execute("COMMIT")
            source.identity, source.end, source.tombstone_floor = state
            source.beginning = source.end if first is None else first
            source.data_version = data_version
            records = rows
        after = records[-1][0] + 1 if len(records) == max_records else max(position, source.end)
        self._positions[tp] = after
        return Batch(
            tp,
            records,
            after,
            after - position != len(records),
            EndOffset(source.end, sent),
            source.beginning,
            source.tombstone_floor,
            source.identity,
        )

    def _source(self, tp: TopicPartition) -> _Assigned:
        source = self._assigned.get(tp)
        path = self._changelog.path(tp) if source is None else source.path
        # What is written from now on is told, so that it must be watched before it is read.
        self._watch(os.path.dirname(path))
        # A log that was deleted and made anew is another file under the same name.
        if source is not None and os.stat(source.path).st_ino != source.inode:
            self._disconnect(tp)
            source = None
        if source is None:
            inode = os.stat(path).st_ino
            connection = sqlite_partition.connect(path)
            source = self._assigned[tp] = _Assigned(path, connection, connection.cursor(), inode)
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB_PER_PARTITION}")
            sqlite_partition.check_format(connection, path)
        return source

    def _watch(self, directory: str) -> None:
        if self._events is not None:
            try:
                self._events.watch(directory)
            except FileNotFoundError:
                raise
            except OSError as error:
                _warn_of_no_events(error)
                self._events.close()
                self._events = None

    def _disconnect(self, tp: TopicPartition) -> None:
        source = self._assigned.pop(tp, None)
        if source is not None:
            source.connection.close()


def _is_written_to(cursor: sqlite3.Cursor) -> bool:
    """Whether somebody has the log's write lock: what its file holds by now may become visible any time."""
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("ROLLBACK")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        cursor.execute(_PATIENCE)


def _file_events() -> FileEvents | None:
    try:
        return FileEvents()
    except OSError as error:
        _warn_of_no_events(error)
        return None


def _warn_of_no_events(error: OSError) -> None:
    log.warning(
        "The kernel will not say which logs are written to (%s), so all are looked at again and again, which "
        "takes a part of a core where they are many. Raise fs.inotify.max_user_instances or max_user_watches.",
        error.strerror,
    )


@contextlib.contextmanager
def _closing(path: str):  # type: ignore[no-untyped-def]
    connection = sqlite_partition.connect(path)
    try:
        yield connection
    finally:
        connection.close()


def _file_system(directory: Path, mounts: Path) -> str:
    """The type of the file system that holds a directory, '' where it cannot be told."""
    found, longest = "", -1
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount_point = Path(fields.split()[4].replace("\\040", " "))
        if directory.is_relative_to(mount_point) and len(mount_point.parts) >= longest:
            found, longest = rest.split()[0], len(mount_point.parts)
    return found
