"""Micro-batches in a partition of the SQLite changelog: each is there once, whatever was repeated.

Imports little but the standard library: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from forebay_changelog.sqlite.checksums import with_checksums
from forebay_changelog.sqlite.log_file import (
    INSERT_INTO,
    Proof,
    WriteRefused,
    begin_to_append,
    check_identity,
    connect,
    transaction,
)
from forebay_changelog.sqlite.writers import claim_writer

_BATCHES_KEPT = 64
_CHUNK = 4000
_AT_ONCE = 50
"""Rows of one statement: SQLite takes a quarter less time for them than row by row."""
_PARAMETERS = 5
"""Those of a row in such a statement."""


class WrittenBatch(NamedTuple):
    """What a partition has of a batch, or would have."""

    row_count: int
    next_offset: int
    """The partition's next offset after them."""
    is_new: bool
    """Whether the rows were appended. False if an earlier attempt has written the same ones."""


def append_batch(
    path: str,
    rows: Iterable[tuple[bytes, bytes | None, int]],
    *,
    writer: str,
    query_id: str,
    batch_id: int,
    write_name: str,
    timed: bool = False,
    dry_run: bool = False,
    identity: str | None = None,
    proof: Proof | None = None,
) -> WrittenBatch:
    """Append a micro-batch's rows ``(key, value, timestamp_ms)`` and its marker in one transaction.

    A batch that was already written is compared with its marker and skipped. Different rows take its place if it
    is the query's newest batch and no key of it is missing among them; otherwise they raise ``WriteRefused``, also
    where the first attempt wrote none: they would come after those of newer batches. ``timed`` rows have their own
    timestamps, as versions do; others have that of the attempt, which a repeat need not match. A ``dry_run`` does
    the same and rolls it back. What a fill is refused for, whose query is named as its writer, is said in its own
    words. A log of another ``identity`` is refused. ``proof`` is the one of the writer's last heartbeat, if it
    knows that.
    """
    with contextlib.closing(connect(path)) as connection, transaction(connection, dry_run=dry_run):
        begin_to_append(connection, path, proof)
        check_identity(connection, path, identity)
        claim_writer(connection, writer, query_id)
        marker = connection.execute(
            "SELECT row_count, digest, next_offset FROM batch "
            "WHERE query_id = ? AND write_name = ? AND batch_id = ?",
            (query_id, write_name, batch_id),
        ).fetchone()
        newest = _newest_batch(connection, query_id, write_name)
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        connection.execute("SAVEPOINT before_rows")
        count, digest = _append(connection, offset, rows, timed)
        if marker is not None and (count, digest) == marker[:2]:
            connection.execute("ROLLBACK TO before_rows")
            return WrittenBatch(count, int(marker[2]), is_new=False)
        if marker is None and count and newest is not None and batch_id <= newest - _BATCHES_KEPT:
            raise WriteRefused(
                f"Batch {batch_id} of query {query_id} is older than everything the log remembers of it, so it is "
                "not known whether it was written: its checkpoint is too old. Start again with a new checkpoint."
            )
        if marker is None and count and newest is not None and batch_id < newest:
            raise _differs(path, query_id, write_name, batch_id, 0, count)
        if marker is not None and (batch_id != newest or _misses_a_key(connection, marker, offset, timed)):
            raise _differs(path, query_id, write_name, batch_id, marker[0], count)
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
        return WrittenBatch(count, offset, is_new=True)


def newest_batch(path: str, query_id: str, write_name: str) -> int | None:
    """The newest batch of a query that was written here, None if there is none."""
    with contextlib.closing(connect(path)) as connection:
        return _newest_batch(connection, query_id, write_name)


def _differs(path: str, query_id: str, write_name: str, batch_id: int, before: int, now: int) -> WriteRefused:
    """The refusal of a batch whose rows cannot take the place of those of an earlier attempt."""
    if query_id == write_name:
        return WriteRefused(
            f"An earlier attempt at {write_name!r} has written {before} rows to {path}, among which are keys that "
            "the DataFrame no longer has. Add them, with delete= if they are to go, or give this fill up with "
            f"forebay changelog retire-writer, which leaves them there, and fill under another name."
        )
    return WriteRefused(
        f"Batch {batch_id} of {write_name!r} was written to {path} with {before} rows, and now has {now} others, "
        "among which keys are missing or which are not the newest: either the query changed before this batch was "
        "through, so run it once more as it was, or it is not deterministic (random values, current time, a "
        "changed source), so make it so. Otherwise start it with a new checkpoint."
    )


def append_rows(
    path: str,
    rows: Iterable[tuple[bytes, bytes | None, int]],
    *,
    writer: str | None = None,
    query_id: str = "",
    proof: Proof | None = None,
) -> int:
    """Append rows ``(key, value, timestamp_ms)`` in one transaction, without a marker: repeated, they are there
    twice. They may be of no writer. Returns the next offset."""
    with contextlib.closing(connect(path)) as connection, transaction(connection):
        begin_to_append(connection, path, proof)
        if writer is not None:
            claim_writer(connection, writer, query_id)
        (offset,) = connection.execute("SELECT next_offset FROM state").fetchone()
        count, _ = _append(connection, offset, rows, timed=False)
        connection.execute("UPDATE state SET next_offset = ?", (offset + count,))
        return int(offset) + count


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
        connection.execute(f"{INSERT_INTO}{rows}", parameters)


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
