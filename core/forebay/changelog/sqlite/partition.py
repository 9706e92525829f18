"""One partition of the SQLite changelog: a WAL database of its own.

Imports little but the standard library: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from forebay.changelog.heartbeat_keys import heartbeat_key
from forebay.changelog.sqlite.checksums import Row, checksum, with_checksums

_FORMAT = 3
_CHECKSUMS_SINCE = 2
_REMOVALS_SINCE = 3
_BATCHES_KEPT = 64
_WAL_ATTEMPTS = 250
_PATIENCE_S = 120
"""How long to wait for another holder of a log's write lock: another query may have millions of rows to write."""
_CHUNK = 4000
DIRECTORY_ID_FILE = "directory.id"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    offset INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB, timestamp_ms INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL, checksum INTEGER);
CREATE TABLE IF NOT EXISTS state (
    id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL, identity TEXT NOT NULL,
    next_offset INTEGER NOT NULL, tombstone_floor INTEGER NOT NULL, checked_from INTEGER NOT NULL DEFAULT 0,
    removed_to INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS batch (
    query_id TEXT NOT NULL, write_name TEXT NOT NULL, batch_id INTEGER NOT NULL,
    row_count INTEGER NOT NULL, digest BLOB NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (query_id, write_name, batch_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writer (
    writer TEXT NOT NULL, query_id TEXT NOT NULL, superseded INTEGER NOT NULL,
    PRIMARY KEY (writer, query_id)) WITHOUT ROWID;
"""


_INSERT_INTO = "INSERT INTO log (offset, key, value, timestamp_ms, heartbeat, checksum) VALUES "
_INSERT = f"{_INSERT_INTO}(?, ?, ?, ?, ?, ?)"
_AT_ONCE = 50
"""Rows of one statement: SQLite takes a quarter less time for them than row by row."""
_PARAMETERS = 5
"""Those of a row in such a statement."""


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
    checked_from: int
    """Records from this offset on have checksums."""
    removed_to: int
    """Compaction has removed records before this offset only: of those from it on none may be missing."""
    columns: str
    """The columns of a record with its checksum, to be selected."""


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
        timeout=_PATIENCE_S,
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


def check_format(connection: sqlite3.Connection | sqlite3.Cursor, path: str) -> int:
    """The log's format; raises ``WriteRefused`` if it is newer than this version."""
    (found,) = connection.execute("SELECT format FROM state").fetchone()
    if found > _FORMAT:
        raise WriteRefused(
            f"{path} has log format {found}; this version supports formats up to {_FORMAT}. Upgrade forebay."
        )
    return int(found)


def read_state(connection: sqlite3.Connection | sqlite3.Cursor, path: str) -> LogState:
    """The log's state; raises ``WriteRefused`` as ``check_format`` does. Call within a transaction."""
    found = check_format(connection, path)
    # Of an older log it is not known what has no checksum, or was removed.
    checked_from = "checked_from" if found >= _CHECKSUMS_SINCE else "next_offset"
    removed_to = "removed_to" if found >= _REMOVALS_SINCE else "next_offset"
    expected = "checksum" if found >= _CHECKSUMS_SINCE else "NULL"
    return LogState._make(
        connection.execute(
            f"SELECT identity, next_offset, tombstone_floor, {checked_from}, {removed_to}, "
            f"'offset, key, value, timestamp_ms, heartbeat, {expected}' FROM state"
        ).fetchone()
    )


def prepare_to_write(connection: sqlite3.Connection, path: str) -> None:
    """Give a log of an older format the present one, within a transaction; what it contains stays as it is.

    Raises ``WriteRefused`` if its format is newer than this version.
    """
    found = check_format(connection, path)
    if found < _CHECKSUMS_SINCE:
        connection.execute("ALTER TABLE log ADD COLUMN checksum INTEGER")
        connection.execute("ALTER TABLE state ADD COLUMN checked_from INTEGER NOT NULL DEFAULT 0")
        connection.execute("UPDATE state SET checked_from = next_offset")
    if found < _REMOVALS_SINCE:
        connection.execute("ALTER TABLE state ADD COLUMN removed_to INTEGER NOT NULL DEFAULT 0")
        connection.execute("UPDATE state SET format = ?, removed_to = next_offset", (_FORMAT,))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A write transaction, rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def is_written_to(cursor: sqlite3.Cursor) -> bool:
    """Whether the log's write lock is taken: what its file already contains may become visible any time."""
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("ROLLBACK")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        cursor.execute(f"PRAGMA busy_timeout={1000 * _PATIENCE_S}")


def create(path: str, identity: str) -> str:
    """Create the partition unless it exists; returns its identity."""
    with contextlib.closing(connect(path, create=True)) as connection:
        enable_wal(connection)
        with transaction(connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            known = connection.execute("SELECT count(*) FROM state").fetchone()[0]
            if not known:
                connection.execute("INSERT INTO state VALUES (0, ?, ?, 0, 0, 0, 0)", (_FORMAT, identity))
            prepare_to_write(connection, path)
            (found,) = connection.execute("SELECT identity FROM state").fetchone()
    return str(found)


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


def claim_writer(connection: sqlite3.Connection, writer: str, query_id: str) -> None:
    """Make a query the one that writes as ``writer``; call within a transaction.

    A query that another superseded must not write again; raises ``WriteRefused``.
    """
    row = connection.execute(
        "SELECT superseded FROM writer WHERE writer = ? AND query_id = ?", (writer, query_id)
    ).fetchone()
    if row is None:
        connection.execute("UPDATE writer SET superseded = 1 WHERE writer = ?", (writer,))
        connection.execute("INSERT INTO writer VALUES (?, ?, 0)", (writer, query_id))
    elif row[0]:
        raise WriteRefused(
            f"Two queries write as {writer!r}: query {query_id} was superseded by another. Stop one of them, or "
            "give each its own writer=. If the other is gone for good: forebay changelog retire-writer."
        )


def append_batch(
    path: str,
    rows: Iterable[tuple[bytes, bytes | None, int]],
    *,
    writer: str,
    query_id: str,
    batch_id: int,
    write_name: str,
    timed: bool = False,
) -> tuple[int, int]:
    """Append a micro-batch's rows ``(key, value, timestamp_ms)`` and its marker in one transaction.

    A batch that was already written is compared with its marker and skipped. Different rows take its place if it
    is the query's newest batch and no key of it is missing among them; otherwise they raise ``WriteRefused``, also
    where the first attempt wrote none: they would come after those of newer batches.
    Returns the number of rows and the partition's next offset after them. ``timed`` rows have their own
    timestamps, as versions do; others have that of the attempt, which a repeat need not match.
    """
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        prepare_to_write(connection, path)
        claim_writer(connection, writer, query_id)
        marker = connection.execute(
            "SELECT row_count, digest, next_offset FROM batch "
            "WHERE query_id = ? AND write_name = ? AND batch_id = ?",
            (query_id, write_name, batch_id),
        ).fetchone()
        newest = _newest_batch(connection, query_id, write_name)
        if marker is None and newest is not None and batch_id <= newest - _BATCHES_KEPT:
            raise WriteRefused(
                f"Batch {batch_id} of query {query_id} is older than everything the log remembers of it, so it is "
                "not known whether it was written: its checkpoint is too old. Start again with a new checkpoint."
            )
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        connection.execute("SAVEPOINT before_rows")
        count, digest = _append(connection, offset, rows, timed)
        if marker is not None and (count, digest) == marker[:2]:
            connection.execute("ROLLBACK TO before_rows")
            return count, int(marker[2])
        if marker is None and count and newest is not None and batch_id < newest:
            raise differs(path, write_name, batch_id, 0, count)
        if marker is not None and (batch_id != newest or _misses_a_key(connection, marker, offset, timed)):
            raise differs(path, write_name, batch_id, marker[0], count)
        offset += count
        connection.execute(
            "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?)",
            (query_id, write_name, batch_id, count, digest, offset),
        )
        connection.execute(
            "DELETE FROM batch WHERE query_id = ? AND write_name = ? AND batch_id <= ?",
            (query_id, write_name, batch_id - _BATCHES_KEPT),
        )
        connection.execute("UPDATE state SET next_offset = ?", (offset,))
        return count, offset


def newest_batch(path: str, query_id: str, write_name: str) -> int | None:
    """The newest batch of a query that was written here, None if there is none."""
    with contextlib.closing(connect(path)) as connection:
        return _newest_batch(connection, query_id, write_name)


def rows_of_batch(path: str, query_id: str, write_name: str, batch_id: int) -> int:
    """How many rows an earlier attempt at a batch has written here."""
    with contextlib.closing(connect(path)) as connection:
        found = connection.execute(
            "SELECT row_count FROM batch WHERE query_id = ? AND write_name = ? AND batch_id = ?",
            (query_id, write_name, batch_id),
        ).fetchone()
        return 0 if found is None else int(found[0])


def differs(path: str, write_name: str, batch_id: int, before: int, now: int) -> WriteRefused:
    """The refusal of a batch whose rows cannot take the place of those of an earlier attempt."""
    return WriteRefused(
        f"Batch {batch_id} of {write_name!r} was written to {path} with {before} rows, and now has {now} others, "
        "among which keys are missing or which are not the newest: either the query changed before this batch was "
        "through, so run it once more as it was, or it is not deterministic (random values, current time, a "
        "changed source), so make it so. Otherwise start it with a new checkpoint."
    )


def append_heartbeat(path: str, *, writer: str, query_id: str, value: bytes) -> tuple[str, int]:
    """Append a heartbeat; returns the partition's identity, and its next offset after it."""
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        prepare_to_write(connection, path)
        claim_writer(connection, writer, query_id)
        identity, offset = connection.execute("SELECT identity, next_offset FROM state").fetchone()
        connection.execute(_INSERT, _row(offset, heartbeat_key(writer), value, int(time.time() * 1000), 1))
        connection.execute("UPDATE state SET next_offset = ?", (offset + 1,))
        return str(identity), int(offset) + 1


def append_rows(path: str, rows: Iterable[tuple[bytes, bytes | None, int]], *, writer: str, query_id: str) -> None:
    """Append rows ``(key, value, timestamp_ms)`` in one transaction, without a marker: repeated, they are there
    twice."""
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        prepare_to_write(connection, path)
        claim_writer(connection, writer, query_id)
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        count, _ = _append(connection, offset, rows, timed=False)
        connection.execute("UPDATE state SET next_offset = ?", (offset + count,))


def last_heartbeat(path: str, writer: str) -> bytes | None:
    """The value of a writer's newest heartbeat; None if it has written none, or was retired."""
    with contextlib.closing(connect(path)) as connection:
        found = connection.execute(
            "SELECT value FROM log WHERE key = ? AND heartbeat = 1 ORDER BY offset DESC LIMIT 1",
            (heartbeat_key(writer),),
        ).fetchone()
        return None if found is None else found[0]


def has_written(path: str, writer: str, query_id: str) -> tuple[str, bool]:
    """The partition's identity, and whether a batch or a heartbeat of a query was written here under a name."""
    with contextlib.closing(connect(path)) as connection:
        identity, found = connection.execute(
            "SELECT identity, EXISTS (SELECT 1 FROM writer WHERE writer = :writer AND query_id = :query_id) "
            "OR EXISTS (SELECT 1 FROM batch WHERE write_name = :writer AND query_id = :query_id) FROM state",
            {"writer": writer, "query_id": query_id},
        ).fetchone()
        return str(identity), bool(found)


def writers(path: str) -> set[str]:
    """The names of all writers so far."""
    with contextlib.closing(connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT DISTINCT writer FROM writer")}


def retire_writer(path: str, writer: str) -> None:
    """Append a tombstone to a writer's heartbeats: it no longer counts in the store's age."""
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        prepare_to_write(connection, path)
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        connection.execute(_INSERT, _row(offset, heartbeat_key(writer), None, int(time.time() * 1000), 1))
        connection.execute("UPDATE state SET next_offset = ?", (offset + 1,))
        connection.execute("DELETE FROM writer WHERE writer = ?", (writer,))


def has_retired(path: str, writer: str) -> bool:
    """Whether the last heartbeat of a writer that the log has is its tombstone."""
    with contextlib.closing(connect(path)) as connection:
        last = connection.execute(
            "SELECT value IS NULL FROM log WHERE heartbeat AND key = ? ORDER BY offset DESC LIMIT 1",
            (heartbeat_key(writer),),
        ).fetchone()
        return last is not None and bool(last[0])


def reset(path: str, identity: str) -> None:
    """Empty the partition and give it a new identity, in place: open readers see it at their next poll."""
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        prepare_to_write(connection, path)
        for table in ("log", "batch", "writer"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute(
            "UPDATE state SET identity = ?, "
            "next_offset = 0, tombstone_floor = 0, checked_from = 0, removed_to = 0",
            (identity,),
        )


def new_identity() -> str:
    """A fresh log identity."""
    return str(uuid.uuid4())


def _newest_batch(connection: sqlite3.Connection, query_id: str, write_name: str) -> int | None:
    (newest,) = connection.execute(
        "SELECT max(batch_id) FROM batch WHERE query_id = ? AND write_name = ?", (query_id, write_name)
    ).fetchone()
    return None if newest is None else int(newest)


def _append(
    connection: sqlite3.Connection, offset: int, rows: Iterable[tuple[bytes, bytes | None, int]], timed: bool
) -> tuple[int, bytes]:
    """Append rows from an offset on; returns their number and digest."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for chunk in _chunks(rows):
        _add_to_digest(digest, chunk, timed)
        _insert(connection, with_checksums(offset + count, chunk))
        count += len(chunk)
    return count, digest.digest()


def _insert(connection: sqlite3.Connection, flat: list[Any]) -> None:
    """Insert what ``with_checksums`` returned."""
    for at in range(0, len(flat), _AT_ONCE * _PARAMETERS):
        parameters = flat[at : at + _AT_ONCE * _PARAMETERS]
        rows = ",".join(["(?, ?, ?, ?, 0, ?)"] * (len(parameters) // _PARAMETERS))
        connection.execute(f"{_INSERT_INTO}{rows}", parameters)


def _row(offset: int, key: bytes, value: bytes | None, timestamp_ms: int, heartbeat: int) -> Row:
    return offset, key, value, timestamp_ms, heartbeat, checksum(offset, key, value, timestamp_ms, heartbeat)


def _misses_a_key(
    connection: sqlite3.Connection, marker: tuple[int, bytes, int], offset: int, timed: bool
) -> bool:
    """Whether a key of the attempt with this marker is missing among the rows from an offset on."""
    keys, (count, _, end) = "key, timestamp_ms" if timed else "key", marker
    found = connection.execute(
        f"SELECT {keys} FROM log WHERE offset >= ? AND offset < ? AND heartbeat = 0 "
        f"EXCEPT SELECT {keys} FROM log WHERE offset >= ?",
        (end - count, end, offset),
    )
    return found.fetchone() is not None


def _chunks(
    rows: Iterable[tuple[bytes, bytes | None, int]],
) -> Iterator[list[tuple[bytes, bytes | None, int]]]:
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, _CHUNK)):
        yield chunk


def _add_to_digest(digest: hashlib.blake2b, chunk: list[tuple[bytes, bytes | None, int]], timed: bool) -> None:
    if timed:
        digest.update(b"".join(b"%d;" % timestamp_ms for _, _, timestamp_ms in chunk))
    digest.update(
        b"".join(
            [
                b"%d,%d,%b%b" % (len(key), -1 if value is None else len(value), key, value or b"")
                for key, value, _ in chunk
            ]
        )
    )
