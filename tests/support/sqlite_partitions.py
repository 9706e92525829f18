"""Writes to and reads from one partition of a SQLite changelog."""

from collections.abc import Sequence
from contextlib import closing

from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite import writers as sqlite_writers

Row = tuple[bytes, bytes | None, int]
Logged = tuple[int, bytes, bytes | None, int, int]


def append(
    path: str,
    rows: Sequence[Row],
    batch_id: int = 0,
    *,
    query: str = "q",
    writer: str = "w",
    write_name: str = "s",
) -> tuple[int, int]:
    """How many rows there are, and the next offset."""
    return sqlite_batches.append_batch(
        path, rows, writer=writer, query_id=query, batch_id=batch_id, write_name=write_name
    )[:2]


def beat(path: str, value: bytes = b"{}", *, query: str = "q", writer: str = "w") -> int:
    return sqlite_writers.append_heartbeat(path, writer=writer, query_id=query, value=value)[1][0]


def logged(path: str) -> list[Logged]:
    with closing(sqlite_log_file.connect(path)) as connection:
        return connection.execute(
            "SELECT offset, key, value, timestamp_ms, heartbeat FROM log ORDER BY offset"
        ).fetchall()


def state(path: str) -> tuple[str, int, int]:
    with closing(sqlite_log_file.connect(path)) as connection:
        found: tuple[str, int, int] = connection.execute(
            "SELECT identity, next_offset, tombstone_floor FROM state"
        ).fetchone()
    return found


def rows_of(text: str, timestamp_ms: int = 1) -> list[Row]:
    """One row a word: ``k=v``, or ``k`` alone for a tombstone."""
    return [
        (key.encode(), value.encode() if equals else None, timestamp_ms)
        for key, equals, value in (word.partition("=") for word in text.split())
    ]


def fold(records: list[Logged]) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for _, key, value, _, _ in records:
        content.pop(key, None)
        if value is not None:
            content[key] = value
    return content
