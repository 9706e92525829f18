"""Records of ``.delta``, ``.snapshot`` and ``.changelog`` files, their keys and values still bytes.

A record is a key and a value, each after its size in four bytes, big-endian; a size of -1 stands for no value, a
deletion, and in place of a key for the end. Changelogs of column families (formats 2 and 4) have a byte of kind
before each record. Formats 2 to 4 are named at the beginning, and 3 and 4 have the lineage after that.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from forebay.spark_checkpoint.errors import CheckpointFileCorrupt, CheckpointFormatUnknown

Kind = Literal["put", "delete", "merge"]
_SIZE = struct.Struct(">i")
_END = -1
_KINDS: dict[int, Kind] = {0x01: "put", 0x10: "delete", 0x11: "merge"}
_END_KIND = 0x00
_UNNAMED_FORMAT = 1
_FORMATS_WITH_KINDS = (2, 4)
_FORMATS_WITH_LINEAGE = (3, 4)
_NEWEST_FORMAT = 4


class Record(NamedTuple):
    """A change of one key; ``value`` is None for a deletion."""

    kind: Kind
    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class ChangelogFile:
    """The head of a changelog file, and where its records begin.

    ``lineage`` has the unique id of each earlier version since the last snapshot, by version; it is None in
    formats without ids.
    """

    format: int
    lineage: dict[int, str] | None
    records_at: int

    @property
    def has_column_families(self) -> bool:
        """Whether keys begin with two bytes of column family."""
        return self.format in _FORMATS_WITH_KINDS


def changelog_head(plain: bytes, file: str) -> ChangelogFile:
    """The head of a changelog; raises ``CheckpointFormatUnknown`` or ``CheckpointFileCorrupt``."""
    number, at = _format(plain)
    if not 1 <= number <= _NEWEST_FORMAT:
        message = f"{file} has changelog format {number}; forebay knows 1 to {_NEWEST_FORMAT}."
        raise CheckpointFormatUnknown(f"{message} Use a version of forebay that knows this version of Spark.")
    lineage = None
    if number in _FORMATS_WITH_LINEAGE:
        (size,) = struct.unpack_from(">H", plain, at) if len(plain) >= at + 2 else (0,)
        text, at = plain[at + 2 : at + 2 + size], at + 2 + size
        try:
            lineage = {item["version"]: item["checkpointUniqueId"] for item in json.loads(text)}
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointFileCorrupt(f"{file} has no lineage after its format: {error}. {_REMEDY}") from error
    return ChangelogFile(number, lineage, at)


def changelog_records(plain: bytes, head: ChangelogFile, file: str) -> Iterator[Record]:
    """The records after a changelog's head; raises ``CheckpointFileCorrupt``."""
    if not head.has_column_families:
        yield from records(plain, file, head.records_at)
        return
    at = head.records_at
    while at < len(plain):
        code = plain[at]
        if code == _END_KIND:
            return
        kind = _KINDS.get(code)
        if kind is None:
            raise CheckpointFileCorrupt(f"{file} has a record of kind {code:#x} at {at}. {_REMEDY}")
        key, at = _sized(plain, at + 1, file)
        value, at = _sized(plain, at, file)
        if key is None or (value is None) != (kind == "delete"):
            raise CheckpointFileCorrupt(f"{file} has a {kind} without its key or value before {at}. {_REMEDY}")
        yield Record(kind, key, value)
    raise _cut(file, len(plain))


def records(plain: bytes, file: str, at: int = 0) -> Iterator[Record]:
    """The records of a file without kinds; raises ``CheckpointFileCorrupt``."""
    while True:
        key, at = _sized(plain, at, file)
        if key is None:
            return
        value, at = _sized(plain, at, file)
        yield Record("delete" if value is None else "put", key, value)


_REMEDY = "Restore the file, or start from a later snapshot."


def _cut(file: str, length: int) -> CheckpointFileCorrupt:
    return CheckpointFileCorrupt(f"{file} is cut short: its {length} bytes have no end mark. {_REMEDY}")


def _sized(plain: bytes, at: int, file: str) -> tuple[bytes | None, int]:
    """A part after its size, and where the next begins; None for a size of -1."""
    start = at + _SIZE.size
    if len(plain) < start:
        raise _cut(file, len(plain))
    (size,) = _SIZE.unpack_from(plain, at)
    if size == _END:
        return None, start
    if size < 0 or len(plain) < start + size:
        raise _cut(file, len(plain))
    return plain[start : start + size], start + size


def _format(plain: bytes) -> tuple[int, int]:
    """The number of a changelog's format, and where what follows it begins.

    Format 1 has no name: it begins with a key's size, which in a key of 150 kB could begin as a name does. Spark
    reads such a file as a named one, too.
    """
    length = int.from_bytes(plain[:2], "big")
    name = plain[2 : 2 + length]
    if 1 < len(name) == length <= 3 and name[:1] == b"v" and name[1:].isdigit():
        return int(name[1:]), 2 + length
    return _UNNAMED_FORMAT, 0
