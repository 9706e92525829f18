"""Who writes to a partition of the SQLite changelog, and the heartbeats of each writer.

Imports little but the standard library: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time

from forebay_changelog.record_headers import heartbeat_key, superseded
from forebay_changelog.sqlite.checksums import Row, checksum
from forebay_changelog.sqlite.log_file import (
    INSERT_INTO,
    Proof,
    WriteRefused,
    begin_to_append,
    check_identity,
    connect,
    transaction,
)

_INSERT = f"{INSERT_INTO}(?, ?, ?, ?, ?, ?)"
_COMPLETED = -1
"""No batch has this number. A marker with it, under the writer's name, says that the writer has completed."""


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
        raise WriteRefused(superseded(writer, query_id))


def append_heartbeat(
    path: str, *, writer: str, query_id: str, value: bytes, identity: str | None = None, proof: Proof | None = None
) -> tuple[str, Proof]:
    """Append a heartbeat; returns the partition's identity, and the proof of the heartbeat.

    ``proof`` is the one of the writer's last heartbeat. Raises ``WriteRefused`` as ``claim_writer`` does, and for
    another ``identity``.
    """
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        epoch = begin_to_append(connection, path, proof)
        check_identity(connection, path, identity)
        claim_writer(connection, writer, query_id)
        identity, offset = connection.execute("SELECT identity, next_offset FROM state").fetchone()
        connection.execute(_INSERT, _row(offset, heartbeat_key(writer), value, int(time.time() * 1000), 1))
        connection.execute("UPDATE state SET next_offset = ?", (offset + 1,))
        return str(identity), (int(offset) + 1, epoch)


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


def retire_writer(path: str, writer: str, *, completed: bool = False) -> None:
    """Append a tombstone to a writer's heartbeats: it no longer counts in the store's age.

    ``completed`` notes that it has written all that it had to.
    """
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        begin_to_append(connection, path)
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        connection.execute(_INSERT, _row(offset, heartbeat_key(writer), None, int(time.time() * 1000), 1))
        connection.execute("UPDATE state SET next_offset = ?", (offset + 1,))
        connection.execute("DELETE FROM writer WHERE writer = ?", (writer,))
        if completed:
            connection.execute(
                "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, 0, x'', ?)",
                (writer, writer, _COMPLETED, offset + 1),
            )


def has_completed(path: str, writer: str) -> bool:
    """Whether a writer was retired as completed."""
    with contextlib.closing(connect(path)) as connection:
        found = connection.execute(
            "SELECT 1 FROM batch WHERE query_id = ? AND write_name = ? AND batch_id = ?",
            (writer, writer, _COMPLETED),
        ).fetchone()
        return found is not None


def _row(offset: int, key: bytes, value: bytes | None, timestamp_ms: int, heartbeat: int) -> Row:
    return offset, key, value, timestamp_ms, heartbeat, checksum(offset, key, value, timestamp_ms, heartbeat)
