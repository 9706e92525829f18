"""Compaction of one partition of the SQLite changelog: removes what is no longer needed, without changing offsets.

A record that may be removed stays removable, whatever is written later. So the search takes no lock, and records
are deleted a few thousand at a time, so that others can write in between.
"""

from __future__ import annotations

import bisect
import contextlib
import sqlite3
import time
from array import array
from dataclasses import dataclass

from forebay.changelog.base import CompactionLimits
from forebay.changelog.sqlite.checksums import check
from forebay.changelog.sqlite.partition import connect, read_state, transaction
from forebay.errors import RecordDamaged
from forebay.record_orders import ORDER_SIZE
from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.topology import StoreSpec

_RECORDS_AT_ONCE = 2_000
_DAY_MS = 86_400_000

_ALL_BUT_THE_LAST = """
SELECT offset FROM log WHERE offset < :dirty_to
    AND offset NOT IN (SELECT max(offset) FROM log GROUP BY key, heartbeat)
"""
_ENDED = "SELECT offset FROM log WHERE offset < :old_to AND NOT heartbeat AND time_ms(key) < :oldest"
_NOT_IN_FORCE = """
SELECT offset FROM (
    SELECT offset, timestamp_ms,
        lead(timestamp_ms) OVER (PARTITION BY key ORDER BY timestamp_ms, offset) AS next_ms
    FROM log WHERE NOT heartbeat
) WHERE offset < :dirty_to AND (next_ms = timestamp_ms OR next_ms <= :begins)
"""
_SUPERSEDED = f"""
SELECT offset FROM (
    SELECT offset, row_number() OVER (
        PARTITION BY substr(key, 1, length(key) - {ORDER_SIZE})
        ORDER BY substr(key, -{ORDER_SIZE}) DESC, offset DESC
    ) AS place
    FROM log WHERE NOT heartbeat AND length(key) >= {ORDER_SIZE}
) WHERE offset < :dirty_to AND place > 1
"""
_TOMBSTONES = "SELECT offset FROM log WHERE value IS NULL AND offset < :dirty_to AND timestamp_ms <= :dead_ms"


def compact(path: str, spec: StoreSpec, limits: CompactionLimits, now_ms: int) -> int:
    """Remove what the log of a store no longer needs; returns the number of records removed.

    The last record of each key stays; in a versioned store, all versions that were in force since history begins;
    with ``latest_by`` the one of the highest order, even if it is a deletion. Windows and sessions past their
    retention by the stream's own time are removed. Records that are too young stay, and so does everything after
    them; in a versioned store records carry no time of writing, so heartbeats show where the young ones begin. Old
    tombstones are removed, and the tombstone floor records up to which offset; that of the newest window or
    session stays. The last record always stays. Raises ``sqlite3.Error``, and ``RecordDamaged`` before it removes
    a record that is not as it was written.
    """
    with contextlib.closing(connect(path)) as connection:
        found = _find_compactable(connection, spec, limits, now_ms)
        removed = _delete(connection, path, found.identity, found.replaced)
        # Only now that what they delete is gone.
        removed += _delete(connection, path, found.identity, found.tombstones, raise_floor=True)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return removed


@dataclass(frozen=True)
class _Compactable:
    """Offsets of removable records, each list in ascending order, and the identity of their log."""

    identity: str
    replaced: array[int]
    tombstones: array[int]


def _find_compactable(
    connection: sqlite3.Connection, spec: StoreSpec, limits: CompactionLimits, now_ms: int
) -> _Compactable:
    connection.create_function("time_ms", 1, lambda key: _time_ms(spec, key), deterministic=True)
    # A read transaction, for a consistent view.
    connection.execute("BEGIN")
    try:
        identity, end = connection.execute("SELECT identity, next_offset FROM state").fetchone()
        young_ms, dead_ms = now_ms - limits.min_compaction_lag_ms, now_ms - limits.delete_retention_ms
        # A wrong record may put stream time far ahead, so the clock must agree.
        old_ms = now_ms - (spec.history_retention_ms or spec.retention_ms or 0) - _DAY_MS
        values: dict[str, int | None] = {"dead_ms": dead_ms}
        if spec.store_kind.keeps_versions:
            values["dirty_to"] = _first_after(connection, young_ms, end, of="heartbeat")
            (newest,) = connection.execute("SELECT max(timestamp_ms) FROM log WHERE NOT heartbeat").fetchone()
            begins_ms = history_begins_ms(spec, newest)
            values["begins"] = None if begins_ms is None else min(begins_ms, old_ms)
            replaced = f"{_ALL_BUT_THE_LAST} AND heartbeat UNION {_NOT_IN_FORCE}"
            # A deletion is a version like any other.
            tombstones = f"{_TOMBSTONES} AND heartbeat"
        elif spec.latest_by is not None:
            values["dirty_to"] = _first_after(connection, young_ms, end)
            replaced = f"{_ALL_BUT_THE_LAST} AND heartbeat UNION {_SUPERSEDED}"
            tombstones = f"{_TOMBSTONES} AND heartbeat"
        else:
            values["dirty_to"] = _first_after(connection, young_ms, end)
            replaced, tombstones = _ALL_BUT_THE_LAST, _TOMBSTONES
            if spec.retention_ms is not None:
                # Those too far ahead of their own timestamp do not count, as for workers.
                (newest,) = connection.execute(
                    "SELECT max(time_ms(key)) FROM log WHERE NOT heartbeat AND time_ms(key) - timestamp_ms <= ?",
                    (spec.most_ahead_ms - (spec.window_size_ms or 0),),
                ).fetchone()
                stream_time_ms = None if newest is None else newest + (spec.window_size_ms or 0)
                values |= {
                    "old_to": _first_after(connection, min(old_ms, young_ms), end),
                    "newest": newest,
                    "oldest": oldest_kept_ms(spec, stream_time_ms),
                }
                replaced = f"{_ALL_BUT_THE_LAST} UNION {_ENDED}"
                # The newest stays, or stream time would go back for readers that start here.
                tombstones = f"{_TOMBSTONES} AND (heartbeat OR time_ms(key) < :newest)"
        gone = _offsets(connection, replaced, values)
        dead = _offsets(connection, tombstones, values)
        # One that was itself replaced prevented nothing from coming back, so the floor need not rise for it.
        return _Compactable(identity, gone, array("q", (offset for offset in dead if not _has(gone, offset))))
    finally:
        connection.execute("COMMIT")


def _first_after(connection: sqlite3.Connection, time_ms: int, end: int, of: str = "TRUE") -> int:
    """The offset of the first record of a later time, at most the last one's."""
    query = f"SELECT min(offset) FROM log WHERE {of} AND timestamp_ms > ?"
    (offset,) = connection.execute(query, (time_ms,)).fetchone()
    return min(end - 1, end if offset is None else int(offset))


def _has(offsets: array[int], offset: int) -> bool:
    at = bisect.bisect_left(offsets, offset)
    return at < len(offsets) and offsets[at] == offset


def _time_ms(spec: StoreSpec, key: bytes) -> int | None:
    try:
        return spec.stored_keys.split_changelog(key, 0).times_ms[0]
    except ValueError:
        # Not a key of this store: workers refuse it.
        return None


def _offsets(connection: sqlite3.Connection, query: str, values: dict[str, int | None]) -> array[int]:
    return array("q", (offset for (offset,) in connection.execute(f"{query} ORDER BY offset", values)))


def _delete(
    connection: sqlite3.Connection, path: str, identity: str, offsets: array[int], *, raise_floor: bool = False
) -> int:
    """Delete records of a log; returns how many still existed. Stops if the log was replaced meanwhile.

    A damaged one stays for its readers to find: its key may be another's, and the key's last value in it.
    """
    removed = 0
    for begin in range(0, len(offsets), _RECORDS_AT_ONCE):
        some = offsets[begin : begin + _RECORDS_AT_ONCE]
        began = time.monotonic()
        with transaction(connection):
            state = read_state(connection, path)
            if state.identity != identity:
                return removed
            damaged = _damaged(connection, state.columns, state.checked_from, some)
            if damaged is not None:
                raise RecordDamaged(f"the record at offset {damaged} is damaged")
            deleted = connection.executemany("DELETE FROM log WHERE offset = ?", ((offset,) for offset in some))
            removed += deleted.rowcount
            if raise_floor:
                connection.execute("UPDATE state SET tombstone_floor = max(tombstone_floor, ?)", (some[-1] + 1,))
        # Waiting writers get as much time.
        time.sleep(time.monotonic() - began)
    return removed


def _damaged(connection: sqlite3.Connection, columns: str, checked_from: int, offsets: array[int]) -> int | None:
    """The offset of a damaged one among some records, None if there is none."""
    for offset in offsets:
        rows = connection.execute(f"SELECT {columns} FROM log WHERE offset = ?", (offset,))
        if (damaged := check(rows, checked_from).damaged_offset) is not None:
            return damaged
    return None
