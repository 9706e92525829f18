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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from forebay.errors import RecordDamaged
from forebay.record_orders import ORDER_SIZE
from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.store_spec import StoreSpec
from forebay_changelog.base import CompactionLimits
from forebay_changelog.sqlite.checksums import COLUMNS, check
from forebay_changelog.sqlite.log_file import connect, read_state, transaction

_RECORDS_AT_ONCE = 2_000
_DAY_MS = 86_400_000

_ALL_BUT_THE_LAST = """
SELECT offset FROM log WHERE offset < :dirty_to
    AND offset NOT IN (SELECT max(offset) FROM log GROUP BY key, heartbeat)
"""
_ENDED = "SELECT offset FROM log WHERE offset < :old_to AND NOT heartbeat AND time_ms(key) < :oldest"
_EXPIRED = "SELECT offset FROM log WHERE offset < :old_to AND NOT heartbeat AND value IS NOT NULL"
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
    retention by the stream's own time are removed, and so are values that expired by the clock a day ago. Records
    that are too young stay, and so does everything after them; in a versioned store records carry no time of
    writing, so heartbeats show where the young ones begin. Old tombstones are removed, and the tombstone floor
    records up to which offset; that of the newest window or session stays. The last record always stays. Raises
    ``sqlite3.Error``, and ``RecordDamaged`` before it removes a record that is not as it was written.
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
        old_ms = now_ms - spec.store_kind.log_retention(spec).longest_ms - _DAY_MS
        log = _Log(connection, spec, end, young_ms, old_ms)
        replaced, tombstones, values = COMPACTABLE[spec.store_kind.layout_name](log)
        values["dead_ms"] = dead_ms
        gone = _offsets(connection, replaced, values)
        dead = _offsets(connection, tombstones, values)
        # One that was itself replaced prevented nothing from coming back, so the floor need not rise for it.
        return _Compactable(identity, gone, array("q", (offset for offset in dead if not _has(gone, offset))))
    finally:
        connection.execute("COMMIT")


@dataclass(frozen=True)
class _Log:
    """The log of a store at one moment. By the clock, later records than ``young_ms`` are young."""

    connection: sqlite3.Connection
    spec: StoreSpec
    end: int
    young_ms: int
    old_ms: int

    def first_after(self, time_ms: int, of: str = "TRUE") -> int:
        """The offset of the first record of a later time, at most the last one's."""
        query = f"SELECT min(offset) FROM log WHERE {of} AND timestamp_ms > ?"
        (offset,) = self.connection.execute(query, (time_ms,)).fetchone()
        return min(self.end - 1, self.end if offset is None else int(offset))


class _Queries(NamedTuple):
    """What finds the replaced records of a log, and the old tombstones, and the parameters of both."""

    replaced: str
    tombstones: str
    values: dict[str, int | None]


def _all_but_last_values(log: _Log) -> _Queries:
    values: dict[str, int | None] = {"dirty_to": log.first_after(log.young_ms)}
    if log.spec.ttl_ms is None:
        return _Queries(_ALL_BUT_THE_LAST, _TOMBSTONES, values)
    values["old_to"] = log.first_after(min(log.old_ms, log.young_ms))
    return _Queries(f"{_ALL_BUT_THE_LAST} UNION {_EXPIRED}", _TOMBSTONES, values)


def _all_but_highest_orders(log: _Log) -> _Queries:
    return _Queries(
        f"{_ALL_BUT_THE_LAST} AND heartbeat UNION {_SUPERSEDED}",
        f"{_TOMBSTONES} AND heartbeat",
        {"dirty_to": log.first_after(log.young_ms)},
    )


def _all_but_versions_in_force(log: _Log) -> _Queries:
    (newest,) = log.connection.execute("SELECT max(timestamp_ms) FROM log WHERE NOT heartbeat").fetchone()
    begins_ms = history_begins_ms(log.spec, newest)
    return _Queries(
        f"{_ALL_BUT_THE_LAST} AND heartbeat UNION {_NOT_IN_FORCE}",
        # A deletion is a version like any other.
        f"{_TOMBSTONES} AND heartbeat",
        {
            "dirty_to": log.first_after(log.young_ms, of="heartbeat"),
            "begins": None if begins_ms is None else min(begins_ms, log.old_ms),
        },
    )


def _all_but_kept_ends(log: _Log) -> _Queries:
    spec, time_to_end_ms = log.spec, log.spec.store_kind.time_to_end_ms(log.spec) or 0
    # Those too far ahead of their own timestamp do not count, as for workers.
    (newest,) = log.connection.execute(
        "SELECT max(time_ms(key)) FROM log WHERE NOT heartbeat AND time_ms(key) - timestamp_ms <= ?",
        (spec.max_ahead_ms - time_to_end_ms,),
    ).fetchone()
    return _Queries(
        f"{_ALL_BUT_THE_LAST} UNION {_ENDED}",
        # The newest stays, or stream time would go back for readers that start here.
        f"{_TOMBSTONES} AND (heartbeat OR time_ms(key) < :newest)",
        {
            "dirty_to": log.first_after(log.young_ms),
            "old_to": log.first_after(min(log.old_ms, log.young_ms)),
            "newest": newest,
            "oldest": oldest_kept_ms(spec, None if newest is None else newest + time_to_end_ms),
        },
    )


COMPACTABLE: Mapping[str, Callable[[_Log], _Queries]] = {
    "key-value": _all_but_last_values,
    "schema-keys": _all_but_last_values,
    "latest": _all_but_highest_orders,
    "window": _all_but_kept_ends,
    "session": _all_but_kept_ends,
    "versioned": _all_but_versions_in_force,
}
"""What may be removed from the log of a store, by the name of its layout."""


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
            damaged = _damaged(connection, some)
            if damaged is not None:
                raise RecordDamaged(f"the record at offset {damaged} is damaged")
            deleted = connection.executemany("DELETE FROM log WHERE offset = ?", ((offset,) for offset in some))
            removed += deleted.rowcount
            connection.execute("UPDATE state SET removed_to = max(removed_to, ?)", (some[-1] + 1,))
            if raise_floor:
                connection.execute("UPDATE state SET tombstone_floor = max(tombstone_floor, ?)", (some[-1] + 1,))
        # Waiting writers get as much time.
        time.sleep(time.monotonic() - began)
    return removed


def _damaged(connection: sqlite3.Connection, offsets: array[int]) -> int | None:
    """The offset of a damaged one among some records, None if there is none."""
    for offset in offsets:
        rows = connection.execute(f"SELECT {COLUMNS} FROM log WHERE offset = ?", (offset,))
        if (damaged := check(rows).damaged_offset) is not None:
            return damaged
    return None
