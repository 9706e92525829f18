"""The database of an embedded worker group: its members, their leases, its leader and the assignment.

Leases use the boot-time clock, which all processes of a machine share and which is never stepped; a database from
before a reboot contains no valid lease.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from forebay.errors import ConfigurationError
from forebay.streams_metadata import Generation
from forebay_changelog.sqlite.log_file import create_private, enable_wal, transaction
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo

_FORMAT = 2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS grp (
    id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL, application_id TEXT NOT NULL,
    boot_id TEXT NOT NULL, incarnation INTEGER NOT NULL, generation INTEGER NOT NULL,
    leader TEXT, leader_until REAL NOT NULL, assignment BLOB);
CREATE TABLE IF NOT EXISTS member (
    id TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, host TEXT NOT NULL, fingerprint TEXT NOT NULL,
    subscription BLOB NOT NULL, lease_until REAL NOT NULL);
"""


T = TypeVar("T")


class GroupRow(NamedTuple):
    """The group's row: the newest generation with its assignment, the leader, and the end of its lease."""

    generation: Generation
    assignment: bytes | None
    leader: str | None
    leader_until: float


class MemberRow(NamedTuple):
    """A member: its last message, encoded, and the end of its lease.

    A process that was started later has the larger incarnation.
    """

    process_id: str
    incarnation: int
    host: str
    fingerprint: str
    subscription: bytes
    lease_until: float


@dataclass(frozen=True)
class GroupTransaction:
    """Reads and changes under the database's write lock; all changes become visible at once."""

    connection: sqlite3.Connection

    def group(self) -> GroupRow:
        """The group's row."""
        columns = "incarnation, generation, assignment, leader, leader_until"
        incarnation, number, assignment, leader, leader_until = _typed(
            tuple[int, int, bytes | None, str | None, float],
            self.connection.execute(f"SELECT {columns} FROM grp").fetchone(),
        )
        return GroupRow(Generation(incarnation, number), assignment, leader, leader_until)

    def members(self, *, with_lease_at: float = -math.inf) -> list[MemberRow]:
        """All members that are alive or have not been away for long; only those with a lease at some time."""
        columns = "id, incarnation, host, fingerprint, subscription, lease_until"
        rows = self.connection.execute(f"SELECT {columns} FROM member WHERE lease_until > ?", (with_lease_at,))
        return [_typed(MemberRow, row) for row in rows]

    def put_member(self, mine: SubscriptionInfo, lease_until: float) -> None:
        """Join, or renew the lease."""
        self.connection.execute(
            "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?)",
            (mine.process_id, mine.incarnation, str(mine.host), mine.fingerprint, mine.encode(), lease_until),
        )

    def put_lease(self, mine: SubscriptionInfo, until: float) -> bool:
        """Extend or end a member's lease; False, without effect, if another process has its id by now."""
        changed = self.connection.execute(
            "UPDATE member SET lease_until = ? WHERE id = ? AND incarnation = ?",
            (until, mine.process_id, mine.incarnation),
        )
        return changed.rowcount > 0

    def forget_members(self, gone_since: float) -> None:
        """Delete members whose lease ended by then."""
        self.connection.execute("DELETE FROM member WHERE lease_until <= ?", (gone_since,))

    def put_leader(self, process_id: str, until: float) -> None:
        """Give a member the leader's lease."""
        self.connection.execute("UPDATE grp SET leader = ?, leader_until = ?", (process_id, until))

    def end_leadership(self, process_id: str) -> None:
        """Vacate the leader's lease if it is that member's."""
        self.connection.execute("UPDATE grp SET leader = NULL, leader_until = 0 WHERE leader = ?", (process_id,))

    def begin_incarnation(self, incarnation: int) -> None:
        """Start again above the generations that members know, without an assignment."""
        self.connection.execute(
            "UPDATE grp SET incarnation = ?, generation = 0, assignment = NULL", (incarnation,)
        )

    def put_assignment(self, info: AssignmentInfo, leader: str, now: float, read: Generation) -> bool:
        """Write a generation if that member still leads and nothing was written since ``read``."""
        written = self.connection.execute(
            "UPDATE grp SET generation = ?, assignment = ? "
            "WHERE leader = ? AND leader_until > ? AND incarnation = ? AND generation = ?",
            (info.generation.number, info.encode(), leader, now, *read),
        )
        return written.rowcount == 1

    def void_leases_of_another_boot(self, boot_id: str, now: float) -> None:
        """End the leases from before a reboot: those members count as absent and expected back, not as gone."""
        (of,) = _typed(tuple[str], self.connection.execute("SELECT boot_id FROM grp").fetchone())
        if of != boot_id:
            self.connection.execute("UPDATE member SET lease_until = ?", (now,))
            self.connection.execute("UPDATE grp SET boot_id = ?, leader = NULL, leader_until = 0", (boot_id,))


def _typed(kind: type[T], row: Any) -> T:
    """A row with the types that its columns have; in a damaged database any may have another, or be missing.

    Raises ``sqlite3.DatabaseError``, as for other damage.
    """
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise sqlite3.DatabaseError(f"it is damaged: {error}") from None


_FileId = tuple[int, int] | None


class GroupDatabase:
    """The database file, created if missing; used by one thread at a time."""

    def __init__(self, path: Path, application_id: str) -> None:
        self.path = path
        self._application_id = application_id
        self._boot_id = _BOOT_ID.read_text().strip()
        self._connection: sqlite3.Connection | None = None
        self._files: tuple[_FileId, ...] = ()

    @contextlib.contextmanager
    def transaction(self, now: float, first_incarnation: int) -> Iterator[GroupTransaction]:
        """A write transaction; a database created for it starts with that incarnation. Raises
        ``ConfigurationError`` if it belongs to another application or cannot be created, and ``sqlite3.Error``.
        """
        try:
            with transaction(self._connect(first_incarnation)) as connection:
                group = GroupTransaction(connection)
                group.void_leases_of_another_boot(self._boot_id, now)
                yield group
        except UnicodeDecodeError as error:
            # Of a damaged database, even SQLite's own messages may be no text.
            raise sqlite3.DatabaseError(f"it is damaged: {error}") from None

    def close(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, first_incarnation: int) -> sqlite3.Connection:
        if self._connection is not None:
            # One that another member removed and recreated is a new file under the same name. Without the others,
            # members that open it later have another log of writes.
            if self._files == tuple(map(_file_id, self._paths())):
                return self._connection
            self.close()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(str(self.path))
        except OSError as error:
            raise ConfigurationError(
                f"The directory of the group {self.path} cannot be created: {error.strerror}. "
                "Name another --group."
            ) from None
        file = _file_id(self.path)
        connection = sqlite3.connect(self.path, timeout=5, isolation_level=None, check_same_thread=False)
        try:
            file = file or _file_id(self.path)
            self._prepare(connection, first_incarnation)
            self._files = (file, *map(_file_id, self._paths()[1:]))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _paths(self) -> tuple[Path, ...]:
        """The database's files while it is open: itself, its log and the index of that."""
        return tuple(self.path.with_name(self.path.name + suffix) for suffix in ("", "-wal", "-shm"))

    def _prepare(self, connection: sqlite3.Connection, first_incarnation: int) -> None:
        # Leases are meaningless after a crash of the machine, so they need not survive one.
        enable_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        with transaction(connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(
                "INSERT OR IGNORE INTO grp VALUES (0, ?, ?, ?, ?, 0, NULL, 0, NULL)",
                (_FORMAT, self._application_id, self._boot_id, first_incarnation),
            )
            found = connection.execute("SELECT format, application_id FROM grp").fetchone()
            format_, application_id = _typed(tuple[int, str], found)
        if (format_, application_id) != (_FORMAT, self._application_id):
            raise ConfigurationError(
                f"The group {self.path} belongs to application {application_id!r} (format {format_}), this worker "
                f"to {self._application_id!r} (format {_FORMAT}). Give each application its own "
                "--group. With all workers stopped, one of an earlier format may be removed."
            )


def _file_id(path: Path) -> _FileId:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
