"""Checksums of the SQLite changelog's records: SQLite itself has none, and serves what a disk has damaged.

Imports only the standard library: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

Row = tuple[int, bytes, bytes | None, int, int, int]
"""A record as it is stored: offset, key, value, timestamp in epoch ms, whether it is a heartbeat, and checksum."""
COLUMNS = "offset, key, value, timestamp_ms, heartbeat, checksum"
"""Those of a ``Row``."""

_MASK = 0xFFFFFFFF


class Checked(NamedTuple):
    """Records in the order in which they were read, up to the first that is damaged or missing."""

    records: list[tuple[int, bytes, bytes | None, int, bool]]
    damaged_offset: int | None
    """The offset of the damaged or missing record, None if there is none."""


def checksum(offset: int, key: bytes, value: bytes | None, timestamp_ms: int, heartbeat: int) -> int:
    """The CRC-32 of a record's key and value, begun with its numbers: all bits of these count."""
    numbers = offset + timestamp_ms + heartbeat + (0 if value is not None else 2)
    return crc32(value or b"", crc32(key, (numbers + (numbers >> 31)) & _MASK))


def with_checksums(offset: int, rows: Sequence[tuple[bytes, bytes | None, int]]) -> list[Any]:
    """Offset, key, value, timestamp and checksum of rows from an offset on, one after another in one list."""
    keys, values, timestamps_ms = zip(*rows, strict=True)
    # As in ``checksum``, whose call for each row would cost a tenth of a batch's speed.
    numbers = [at + row[2] + (0 if row[1] is not None else 2) for at, row in enumerate(rows, offset)]
    seeds = [(number + (number >> 31)) & _MASK for number in numbers]
    flat: list[Any] = [None] * (5 * len(rows))
    flat[0::5] = range(offset, offset + len(rows))
    flat[1::5], flat[2::5], flat[3::5] = keys, values, timestamps_ms
    flat[4::5] = map(crc32, [value or b"" for value in values], map(crc32, keys, seeds))
    return flat


def check(rows: Iterable[Any]) -> Checked:
    """Compare rows with their checksums."""
    records: list[tuple[int, bytes, bytes | None, int, bool]] = []
    offset = -1
    append = records.append
    try:
        for offset, key, value, timestamp_ms, heartbeat, expected in rows:
            # As in ``checksum``: a call for each record would cost a tenth of a replay's speed.
            numbers = offset + timestamp_ms + heartbeat
            if value is None:
                numbers, content = numbers + 2, b""
            else:
                content = value
            if crc32(content, crc32(key, (numbers + (numbers >> 31)) & _MASK)) != expected:
                return Checked(records, offset)
            append((offset, key, value, timestamp_ms, heartbeat))
    except TypeError:
        # Not even the types are those of a record.
        return Checked(records, offset)
    return Checked(records, None)


def without_holes(checked: Checked, begin: int, end: int, *, are_all: bool) -> Checked:
    """Checked records up to the first that is out of order, beyond the end, or before which one is missing.

    None may be missing from ``begin`` on, to before ``end`` if they are all that there are. In a damaged file a
    seek can step over records, or find one twice.
    """
    offsets = [record[0] for record in checked.records]
    if not all(map(operator.lt, offsets, itertools.islice(offsets, 1, None))):
        at = next(at for at in range(1, len(offsets)) if offsets[at] <= offsets[at - 1])
        checked, offsets = Checked(checked.records[:at], offsets[at - 1] + 1), offsets[:at]
    first = bisect.bisect_left(offsets, begin)
    due = begin + len(offsets) - first
    if first < len(offsets) and offsets[-1] + 1 != due:
        later = range(len(offsets) - first)
        missing = bisect.bisect_right(later, begin, key=lambda at: offsets[first + at] - at)
        return Checked(checked.records[: first + missing], begin + missing)
    if offsets and offsets[-1] >= end:
        return Checked(checked.records[: bisect.bisect_left(offsets, end)], end)
    if checked.damaged_offset is None and are_all and due < end:
        return checked._replace(damaged_offset=due)
    return checked
