"""The database of one partition of the SQLite changelog: its format, its state, and how it is opened.

Imports the standard library only: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

_FORMAT = 4
_MAX_EPOCHS = 256
"""Epochs of a log that are kept. A reader that was away for longer than so many runs of writers begins anew."""
_WAL_ATTEMPTS = 250
PATIENCE_S = 120
"""How long to wait for another holder of a log's write lock: another query may have millions of rows to write."""
DIRECTORY_ID_FILE = "directory.id"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    offset INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB, timestamp_ms INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS state (
    id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL, identity TEXT NOT NULL,
    next_offset INTEGER NOT NULL, tombstone_floor INTEGER NOT NULL, removed_to INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS batch (
    query_id TEXT NOT NULL, write_name TEXT NOT NULL, batch_id INTEGER NOT NULL,
    row_count INTEGER NOT NULL, digest BLOB NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (query_id, write_name, batch_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writer (
    writer TEXT NOT NULL, query_id TEXT NOT NULL, superseded INTEGER NOT NULL,
    PRIMARY KEY (writer, query_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epoch (first_offset INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
"""

Proof = tuple[int, int]
"""The offset after a record, and the epoch of that record: ``forebay.log_epochs.OffsetAndEpoch``."""


INSERT_INTO = "INSERT INTO log (offset, key, value, timestamp_ms, heartbeat, checksum) VALUES "


UNREADABLE: tuple[type[Exception], ...] = (sqlite3.Error, TypeError, ValueError, OverflowError)
"""Raised by ``sqlite3``, and where its values are used, if a file cannot be read or is damaged. Values may have
another type then, and texts be no UTF-8."""


class WriteRefused(Exception):
    """A batch that must not be written; none of it was."""


class LogState(NamedTuple):
    """What a partition's log says of itself."""

    identity: str
    next_offset: int
    tombstone_floor: int
    removed_to: int
    """Compaction has removed records before this offset only: of those from it on none may be missing."""


def partition_path(directory: str, topic: str, partition: int) -> str:
    """The database of a partition."""
    return os.path.join(directory, topic, f"{partition}.db")


def connect(path: str, *, create: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode; raises ``sqlite3.OperationalError`` if the file is missing."""
    mode = "rwc" if create else "rw"
    if create:
        create_private(path)
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def create_private(path: str) -> None:
    """Create an empty file unless there is one: for its user only, or as open as its directory.

    An operator who shares a log between users makes its directory for them beforehand.
    """
    # Where that fails, SQLite says why.
    with contextlib.suppress(OSError):
        mode = os.stat(os.path.dirname(path)).st_mode & 0o666
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))


def enable_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log; SQLite refuses at once, without waiting, while another process does so."""
    for attempts_left in range(_WAL_ATTEMPTS, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if not attempts_left:
                raise
            time.sleep(0.02)


def check_format(connection: sqlite3.Connection | sqlite3.Cursor, path: str) -> None:
    """Raise ``WriteRefused`` if the log's format is not that of this version."""
    (found,) = connection.execute("SELECT format FROM state").fetchone()
    if found == _FORMAT:
        return
    remedy = (
        "Upgrade forebay."
        if found > _FORMAT
        else "Empty the store's log with 'forebay changelog reset', and fill it again."
    )
    raise WriteRefused(f"{path} has log format {found}; this version reads and writes format {_FORMAT}. {remedy}")


def read_state(connection: sqlite3.Connection | sqlite3.Cursor, path: str) -> LogState:
    """The log's state; raises ``WriteRefused`` as ``check_format`` does. Call within a transaction."""
    check_format(connection, path)
    return LogState._make(
        connection.execute("SELECT identity, next_offset, tombstone_floor, removed_to FROM state").fetchone()
    )


def check_identity(connection: sqlite3.Connection, path: str, expected: str | None) -> None:
    """Raise ``WriteRefused`` if the log is another than the one that its writer goes on in, None for any."""
    (found,) = connection.execute("SELECT identity FROM state").fetchone()
    if expected is not None and found != expected:
        raise WriteRefused(
            f"The log {path} was lost and recreated, or reset, while it was written, and has nothing of what its "
            "writer wrote before. Start the query again: it says what can be done."
        )


def begin_to_append(connection: sqlite3.Connection, path: str, proof: Proof | None = None) -> int:
    """Prepare to append records, within a transaction; returns the epoch that they belong to.

    It is the log's last one if the writer's ``proof`` is in the log, so that it goes on in the log that it left.
    Else an epoch begins: the file may be a copy of what the log once was. Raises ``WriteRefused`` as
    ``check_format`` does.
    """
    check_format(connection, path)
    last = connection.execute("SELECT epoch FROM epoch ORDER BY first_offset DESC LIMIT 1").fetchone()
    if proof is not None and is_proven(connection, proof):
        return int(last[0])
    epoch = max(time.time_ns() // 1000, 0 if last is None else last[0] + 1)
    # One in which nothing was written gives way.
    connection.execute("INSERT OR REPLACE INTO epoch SELECT next_offset, ? FROM state", (epoch,))
    connection.execute(
        "DELETE FROM epoch WHERE first_offset <= "
        "(SELECT first_offset FROM epoch ORDER BY first_offset DESC LIMIT 1 OFFSET ?)",
        (_MAX_EPOCHS,),
    )
    return epoch


def is_proven(connection: sqlite3.Connection | sqlite3.Cursor, proof: Proof) -> bool:
    """Whether the log has the record before a proof's offset, of the same epoch. Call within a transaction."""
    offset, epoch = proof
    found = connection.execute(
        "SELECT epoch FROM epoch WHERE first_offset < ? AND ? <= (SELECT next_offset FROM state) "
        "ORDER BY first_offset DESC LIMIT 1",
        (offset, offset),
    ).fetchone()
    return found is not None and int(found[0]) == epoch


def read_epochs(cursor: sqlite3.Cursor, first: int, last: int) -> list[tuple[int, int]]:
    """The epochs of the records between two offsets, each with its first offset. Call within a transaction."""
    cursor.execute(
        "SELECT first_offset, epoch FROM epoch WHERE first_offset <= :last AND first_offset >= "
        "coalesce((SELECT max(first_offset) FROM epoch WHERE first_offset <= :first), :first) "
        "ORDER BY first_offset",
        {"first": first, "last": last},
    )
    return cursor.fetchall()


def read_newest_epoch(cursor: sqlite3.Cursor) -> int | None:
    """The newest epoch, in which records may have been written or not; None if nobody has written yet."""
    cursor.execute("SELECT epoch FROM epoch ORDER BY first_offset DESC LIMIT 1")
    newest = cursor.fetchone()
    return None if newest is None else int(newest[0])


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, *, dry_run: bool = False) -> Iterator[sqlite3.Connection]:
    """A write transaction, rolled back on any error, and at the end of a ``dry_run``."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("ROLLBACK" if dry_run else "COMMIT")


def create(path: str, identity: str) -> str:
    """Create the partition unless it exists; returns its identity."""
    with contextlib.closing(connect(path, create=True)) as connection:
        enable_wal(connection)
        with transaction(connection):
            _create_tables(connection, identity)
            check_format(connection, path)
            (found,) = connection.execute("SELECT identity FROM state").fetchone()
    return str(found)


def _create_tables(connection: sqlite3.Connection, identity: str) -> None:
    """Create those that are missing, within a transaction, and the state of an empty log if it has none."""
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO state VALUES (0, ?, ?, 0, 0, 0)", (_FORMAT, identity))


def check_directory(directory: str, directory_id: str, driver_host: str, host: str) -> None:
    """Refuse to write if the driver's directory is not here: SQLite serves one machine."""
    try:
        with open(os.path.join(directory, DIRECTORY_ID_FILE)) as file:
            found = file.read().strip()
    except OSError:
        found = None
    if found != directory_id:
        raise WriteRefused(
            f"The SQLite changelog {directory} of the Spark driver on {driver_host} is not the one that the "
            f"executor on {host} sees. SQLite serves one machine: run Spark in local mode, or use a kafka:// "
            "changelog."
        )


def reset(path: str, identity: str) -> None:
    """Make the partition an empty log of a new identity, in place, whatever its format was.

    Open readers see that at their next poll.
    """
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        for table in ("log", "state", "batch", "writer", "epoch"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        _create_tables(connection, identity)


def new_identity() -> str:
    """A fresh log identity."""
    return str(uuid.uuid4())
