"""The embedded changelog: a directory of SQLite databases, one per topic-partition, for one machine."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from forebay.errors import (
    BatchConflict,
    ChangelogElsewhere,
    ChangelogError,
    ChangelogUnusable,
    PartitionCountMismatch,
    RecordDamaged,
    SettingError,
    TopicMissing,
)
from forebay.file_access import cause, denial
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import (
    CompactionLimits,
    Consumer,
    Heartbeat,
    Rows,
    missing_external,
    unknown_writer,
)
from forebay_changelog.sqlite import batches, log_file, writers
from forebay_changelog.sqlite.compaction import compact
from forebay_changelog.sqlite.consumer import SqliteConsumer

log = logging.getLogger(__name__)
T = TypeVar("T")

_NOT_COMPACTED: tuple[type[Exception], ...] = (*log_file.UNREADABLE, RecordDamaged)
_LIMITS = CompactionLimits()
_THREADS = 4
_TOPICS_FILE = "topics.db"
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_SCHEMA = """
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, identity TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS compaction (topic TEXT PRIMARY KEY, ended_ms INTEGER NOT NULL)
"""
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "beegfs", "ocfs2"}
    | {"gpfs", "gfs2", "orangefs", "9p", "virtiofs", "vboxsf", "prl_fs"}
)
_LOCAL_IN_USER_SPACE = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.mergerfs", "fuse.lxcfs"})
"""Any other ``fuse.`` file system counts as a network one: there are too many to list."""


class SqliteChangelog:
    """Topics in ``<directory>/<topic>/<partition>.db``; ``<directory>/topics.db`` names them. The interface is
    ``Changelog``.

    ``create`` makes the directory if it does not exist. Raises ``ChangelogElsewhere`` on a network file system,
    where SQLite's locks do not work, and ``ChangelogUnusable`` if the disk does not let it be opened.
    """

    compacted = "removed"

    def __init__(
        self, directory: str | Path, *, create: bool = True, mounts: Path = Path("/proc/self/mountinfo")
    ) -> None:
        self.directory = Path(directory).absolute()
        self.url = f"sqlite://{quote(str(self.directory))}"
        self._proofs: dict[TopicPartition, log_file.Proof] = {}
        if not create and not (self.directory / _TOPICS_FILE).exists():
            raise ChangelogError(
                f"There is no changelog in {self.directory}: no sink and no worker has created one. Check the URL."
            )
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            kind = ChangelogUnusable if error.errno in _OF_THE_DISK else ChangelogError
            reason = cause(error, self.directory)
            raise kind(f"The changelog directory {self.directory} cannot be created: {reason}.") from None
        file_system = _file_system(self.directory.resolve(), mounts)
        if _is_shared(file_system):
            raise ChangelogElsewhere(
                f"The changelog {self.directory} is on a network file system ({file_system}), where SQLite's "
                "locks do not work. Use a local disk, or a kafka:// changelog."
            )
        try:
            self.directory_id = self._directory_id()
        except OSError as error:
            raise _unusable(self.directory, error) from None
        with self._topics() as connection:
            log_file.enable_wal(connection)
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)

    def compactor(self, spec: StoreSpec) -> SqliteChangelog:
        return self

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        if spec.record_headers:
            raise ChangelogError(
                f"The store {spec.name!r} has record_headers = true, but records on SQLite have none: remove it."
            )
        if create and not spec.external:
            self.ensure_topic(spec.topic, spec.partitions)
            return
        try:
            found = self.partitions(spec.topic)
        except TopicMissing:
            if spec.external:
                raise missing_external(spec) from None
            raise
        self._require_count(spec.topic, found, spec.partitions)

    def forget_expired(self, spec: StoreSpec) -> bool:
        """No server does; ``compact`` does."""
        return False

    def ensure_group(self, application_id: str) -> str | None:
        """A group over SQLite has a file of its own."""
        return None

    def ensure_topic(self, topic: str, partitions: int) -> None:
        """Create a topic unless it is there; raises ``PartitionCountMismatch`` if its count differs."""
        with self._topics() as connection, log_file.transaction(connection):
            row = connection.execute("SELECT partitions FROM topic WHERE name = ?", (topic,)).fetchone()
            if row is None:
                identity = self._create_partitions(topic, partitions)
                connection.execute("INSERT INTO topic VALUES (?, ?, ?)", (topic, partitions, identity))
            else:
                self._require_count(topic, row[0], partitions)
                self._restore_partitions(topic, partitions)

    def _require_count(self, topic: str, found: int, partitions: int) -> None:
        if found != partitions:
            raise PartitionCountMismatch(
                f"The log {topic!r} in {self.directory} has {found} partitions, the topology has {partitions}. "
                f"A different count moves keys: set partitions = {found}, or give the store a new name."
            )

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; raises ``TopicMissing``."""
        return int(self._topic(topic)[0])

    def identity(self, topic: str, partition: int | None = None) -> str:
        """The identity of a topic, or of one partition's log; raises ``TopicMissing``.

        They differ only if a partition's file was lost, or while a reset is under way.
        """
        identity = str(self._topic(topic)[1])
        if partition is None:
            return identity
        try:
            return _identity(self.path(TopicPartition(topic, partition)))
        except log_file.UNREADABLE as error:
            raise TopicMissing(f"Partition {partition} of the log {topic!r} cannot be read: {error}.") from None

    def identities(self, topic: str) -> dict[int, str]:
        return dict(enumerate(self._of_each(topic, _identity)))

    def path(self, topic_partition: TopicPartition) -> str:
        """The partition's database."""
        return log_file.partition_path(str(self.directory), *topic_partition)

    def consumer(self, *, replay: bool = False, headed: Collection[str] = ()) -> Consumer:
        return SqliteConsumer(self.path, replay=replay)

    def end_offsets(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        ends = {}
        for tp in topic_partitions:
            with (
                contextlib.suppress(*log_file.UNREADABLE),
                contextlib.closing(log_file.connect(self.path(tp))) as connection,
            ):
                ends[tp] = connection.execute("SELECT next_offset FROM state").fetchone()[0]
        return ends

    def append_heartbeat(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        value: bytes,
        identities: Mapping[int, str] | None = None,
    ) -> dict[int, int]:
        log, expected = self.identity(topic), identities or {}

        def append(partition: int) -> tuple[int, str, int]:
            tp = TopicPartition(topic, partition)
            with naming(path := self.path(tp)):
                names, proof = {"writer": writer, "query_id": query_id}, self._proofs.get(tp)
                found, proof = writers.append_heartbeat(
                    path, **names, value=value, identity=expected.get(partition), proof=proof
                )
            self._proofs[tp] = proof
            return partition, found, proof[0]

        try:
            # Most of it is waiting for the disk.
            with ThreadPoolExecutor(_THREADS) as pool:
                ends = list(pool.map(append, range(self.partitions(topic))))
        except log_file.WriteRefused as error:
            raise BatchConflict(str(error)) from None
        # A partition that was lost and recreated is not part of the topic's positions.
        return {partition: offset for partition, identity, offset in ends if identity == log}

    def append_batch(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        batch_id: int | None,
        rows: Rows,
        heartbeat: bytes,
    ) -> dict[int, int]:
        now_ms = _now_ms()
        try:
            for partition, pairs in sorted(rows.items()):
                timed = ((key, value, now_ms) for key, value in pairs)
                tp = TopicPartition(topic, partition)
                proof = self._proofs.get(tp)
                with naming(path := self.path(tp)):
                    if batch_id is None:
                        batches.append_rows(path, timed, writer=writer, query_id=query_id, proof=proof)
                        continue
                    batches.append_batch(
                        path,
                        timed,
                        writer=writer,
                        query_id=query_id,
                        batch_id=batch_id,
                        write_name=writer,
                        proof=proof,
                    )
        except log_file.WriteRefused as error:
            raise BatchConflict(str(error)) from None
        return self.append_heartbeat(topic, writer=writer, query_id=query_id, value=heartbeat)

    def append_deletions(self, topic_partition: TopicPartition, keys: Sequence[tuple[bytes, int]]) -> int:
        now_ms = _now_ms()
        with naming(path := self.path(topic_partition)):
            return batches.append_rows(path, [(key, None, timestamp_ms or now_ms) for key, timestamp_ms in keys])

    def proofs(self, topic: str) -> dict[int, log_file.Proof]:
        """By partition, the proof of the last heartbeat that was appended here: whoever has it goes on in that
        log."""
        return {tp.partition: proof for tp, proof in self._proofs.items() if tp.topic == topic}

    def last_heartbeat(self, topic: str, writer: str) -> Heartbeat | None:
        # A partition that was lost and recreated has none of before.
        return next((beat for beat in self.last_heartbeats(topic, writer) if beat is not None), None)

    def last_heartbeats(self, topic: str, writer: str) -> list[Heartbeat | None]:
        values = self._of_each(topic, lambda path: writers.last_heartbeat(path, writer))
        return [None if value is None else Heartbeat.parse(value) for value in values]

    def has_written(self, topic: str, *, writer: str, query_id: str) -> bool:
        log, found = self.identity(topic), False
        for identity, here in self._of_each(topic, lambda path: writers.has_written(path, writer, query_id)):
            # It was lost and recreated. What the query goes on in with the operator's consent has its heartbeats.
            if not here and identity != log:
                return False
            found = found or here
        return found

    def writers(self, topic: str) -> set[str]:
        return set().union(*self._of_each(topic, writers.writers))

    def retire_writer(self, topic: str, writer: str, *, completed: bool = False) -> None:
        known = self.writers(topic)
        if writer not in known:
            raise unknown_writer(topic, writer, known)
        for _ in self._of_each(topic, lambda path: writers.retire_writer(path, writer, completed=completed)):
            pass

    def has_completed(self, topic: str, writer: str) -> bool:
        """Whether every partition shows that a writer was retired as completed; see ``Changelog``."""
        return all(self._of_each(topic, lambda path: writers.has_completed(path, writer)))

    def reset(self, spec: StoreSpec) -> str:
        topic = spec.topic
        identity = log_file.new_identity()
        # Lost partitions must be recreated before they can be emptied.
        self._restore_partitions(topic, self.partitions(topic))
        for _ in self._of_each(topic, lambda path: log_file.reset(path, identity)):
            pass
        with self._topics() as connection:
            connection.execute("UPDATE topic SET identity = ? WHERE name = ?", (identity, topic))
        return identity

    def compact(
        self, spec: StoreSpec, limits: CompactionLimits = _LIMITS, on_partition: Callable[[], None] = lambda: None
    ) -> int:
        """Remove from a store's log what is no longer needed; returns the number of records removed.

        ``on_partition`` is called after each partition. Raises ``ChangelogError`` if a partition could not be
        compacted, after compacting all others.
        """
        removed, failures = 0, []
        for partition in range(self.partitions(spec.topic)):
            path = self.path(TopicPartition(spec.topic, partition))
            try:
                removed += compact(path, spec, limits, _now_ms())
            except _NOT_COMPACTED as error:
                failures.append(f"{path}: {denial(path) or error}")
            on_partition()
        if failures:
            raise ChangelogError(
                f"{len(failures)} of the partitions of {spec.topic!r} could not be compacted; try again later. "
                f"{removed} records of the others were removed. {'; '.join(failures)}."
            )
        with self._topics() as connection:
            connection.execute("INSERT OR REPLACE INTO compaction VALUES (?, ?)", (spec.topic, _now_ms()))
        return removed

    def compacted_ms(self, topic: str) -> int | None:
        with self._topics() as connection:
            row = connection.execute("SELECT ended_ms FROM compaction WHERE topic = ?", (topic,)).fetchone()
        return None if row is None else int(row[0])

    @contextlib.contextmanager
    def _topics(self) -> Iterator[sqlite3.Connection]:
        path = str(self.directory / _TOPICS_FILE)
        try:
            with contextlib.closing(log_file.connect(path, create=True)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise _unusable(self.directory, error) from None

    def _topic(self, topic: str) -> tuple[int, str]:
        with self._topics() as connection:
            row: tuple[int, str] | None = connection.execute(
                "SELECT partitions, identity FROM topic WHERE name = ?", (topic,)
            ).fetchone()
        if row is None:
            raise TopicMissing(f"The changelog {self.directory} has no log {topic!r}.")
        return row

    def _of_each(self, topic: str, function: Callable[[str], T]) -> Iterator[T]:
        """What a function returns for the database of each partition; raises ``ChangelogUnusable``."""
        for partition in range(self.partitions(topic)):
            with naming(path := self.path(TopicPartition(topic, partition))):
                found = function(path)
            yield found

    def _create_partitions(self, topic: str, partitions: int) -> str:
        # Files may be left over from an interrupted creation: the first one's identity applies to all.
        (self.directory / topic).mkdir(mode=self.directory.stat().st_mode & 0o777, exist_ok=True)
        identity = log_file.new_identity()
        for partition in range(partitions):
            found = log_file.create(self.path(TopicPartition(topic, partition)), identity)
            if partition == 0:
                identity = found
        return identity

    def _restore_partitions(self, topic: str, partitions: int) -> None:
        """Recreate deleted files as empty logs with a new identity, so that old state is not trusted."""
        (self.directory / topic).mkdir(mode=self.directory.stat().st_mode & 0o777, exist_ok=True)
        for partition in range(partitions):
            path = self.path(TopicPartition(topic, partition))
            if not os.path.exists(path):
                log.error("the log %s of partition %d was missing; it was recreated, empty", path, partition)
            elif os.path.getsize(path):
                continue
            # Of one that was being recreated when that was interrupted, an empty file is left.
            log_file.create(path, log_file.new_identity())

    def _directory_id(self) -> str:
        path = self.directory / log_file.DIRECTORY_ID_FILE
        if not path.exists():
            mine = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
            mine.write_text(f"{log_file.new_identity()} {socket.gethostname()}\n")
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)
            mine.unlink()
        return path.read_text().strip()


def open_sqlite(url: str, *, create: bool) -> SqliteChangelog:
    """The changelog in the directory that a URL names; raises ``SettingError``."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingError(f"The changelog {url.partition('?')[0]!r} is not a URL: {error}.") from None
    if parts.query or parts.fragment:
        raise SettingError(f"The changelog {url!r}: write '?' as '%3F' and '#' as '%23' in a directory's name.")
    if parts.netloc or len(parts.path) < 2:
        raise SettingError(
            f"The changelog {url!r} is not of the form sqlite:///DIR (three slashes, then the path)."
        )
    # A fourth slash, as in other tools' URLs, means nothing here.
    return SqliteChangelog("/" + unquote(parts.path).lstrip("/"), create=create)


def _identity(path: str) -> str:
    with contextlib.closing(log_file.connect(path)) as connection:
        return str(connection.execute("SELECT identity FROM state").fetchone()[0])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Give errors of a partition's database its path, as ``ChangelogUnusable``."""
    try:
        yield
    except sqlite3.Error as error:
        raise _unusable(path, error) from None


def _unusable(path: str | Path, error: Exception) -> ChangelogUnusable:
    denied = denial(path) or denial(Path(path, _TOPICS_FILE))
    if denied is None:
        return ChangelogUnusable(
            f"The changelog {path} cannot be used: {error}. Is its disk full or read-only, or the file gone?"
        )
    unusable = ChangelogUnusable(f"The changelog {path} cannot be used: {denied}.")
    # Trying again helps no more than with other wrong settings.
    unusable.exit_status = 2
    return unusable


def _is_shared(file_system: str) -> bool:
    user_space = file_system.startswith("fuse.") and file_system not in _LOCAL_IN_USER_SPACE
    return user_space or file_system in _NETWORK_FILE_SYSTEMS


def _file_system(directory: Path, mounts: Path) -> str:
    """The type of a directory's file system, '' if it cannot be determined."""
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
