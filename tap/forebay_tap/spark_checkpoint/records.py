"""Records of ``.delta``, ``.snapshot`` and ``.changelog`` files, their keys and values still bytes.

A record is a key and a value, each after its size in four bytes, big-endian; a size of -1 stands for no value, a
deletion, and in place of a key for the end. Changelogs of column families (formats 2 and 4) have a byte of kind
before each record. Formats 2 to 4 are named at the beginning, and 3 and 4 have the lineage after that.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt, CheckpointFormatUnknown

Kind = Literal["put", "delete", "merge"]
_SIZE = struct.Struct(">i")
_END = -1
_PUT = 0x01
_KINDS: dict[int, Kind] = {_PUT: "put", 0x10: "delete", 0x11: "merge"}
_END_KIND = 0x00
_UNNAMED_FORMAT = 1
_FORMATS_WITH_KINDS = (2, 4)
_FORMATS_WITH_LINEAGE = (3, 4)
_NEWEST_FORMAT = 4
_BLOCK_RECORDS = 2048
_PUT_KIND: tuple[Kind] = ("put",)


class Record(NamedTuple):
    """A change of one key; ``value`` is None for a deletion."""

    kind: Kind
    key: bytes
    value: bytes | None


class RecordBlock(NamedTuple):
    """Some records of a file, in its order."""

    kinds: Sequence[Kind]
    keys: Sequence[bytes]
    values: Sequence[bytes | None]

    def records(self) -> Iterator[Record]:
        """Each of them."""
        return map(Record, *self)


_Reader = Callable[[bytes, int, str], tuple[Record | None, int]]
"""Reads the record at an offset of a file, whose name it is given; None at the end."""


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
        raise CheckpointFormatUnknown(
            f"{file} has changelog format {number}; forebay knows 1 to {_NEWEST_FORMAT}."
        )
    lineage = None
    if number in _FORMATS_WITH_LINEAGE:
        (size,) = struct.unpack_from(">H", plain, at) if len(plain) >= at + 2 else (0,)
        text, at = plain[at + 2 : at + 2 + size], at + 2 + size
        try:
            lineage = {item["version"]: item["checkpointUniqueId"] for item in json.loads(text)}
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointFileCorrupt(f"{file} has no lineage after its format: {error}. {_REMEDY}") from error
    return ChangelogFile(number, lineage, at)


def changelog_blocks(plain: bytes, head: ChangelogFile, file: str) -> Iterator[RecordBlock]:
    """The records after a changelog's head; raises ``CheckpointFileCorrupt``."""
    if not head.has_column_families:
        return blocks(plain, file, head.records_at)
    return _blocks(plain, head.records_at, file, _record_with_kind, has_kinds=True)


def blocks(plain: bytes, file: str, at: int = 0) -> Iterator[RecordBlock]:
    """The records of a file without kinds; raises ``CheckpointFileCorrupt``."""
    return _blocks(plain, at, file, _record, has_kinds=False)


def _blocks(plain: bytes, at: int, file: str, read: _Reader, *, has_kinds: bool) -> Iterator[RecordBlock]:
    while True:
        block, at = _puts_of_one_size(plain, at, has_kinds)
        if not block.keys:
            block, at = _records_of_any_size(plain, at, file, read, has_kinds)
        if not block.keys:
            return
        yield block


def _puts_of_one_size(plain: bytes, at: int, has_kinds: bool) -> tuple[RecordBlock, int]:
    """The next puts, and where the records after them begin, if all keys are equally long and all values too; none
    if they are not.

    Why: they are read in a third of the time.
    """
    none = RecordBlock((), (), ()), at
    key_bytes = _size_at(plain, at + has_kinds)
    value_bytes = _size_at(plain, at + has_kinds + _SIZE.size + key_bytes)
    if key_bytes < 0 or value_bytes < 0:
        return none
    layout = struct.Struct(f">{'B' if has_kinds else ''}i{key_bytes}si{value_bytes}s")
    count = min(_BLOCK_RECORDS, (len(plain) - at) // layout.size)
    if not count:
        return none
    after = at + count * layout.size
    columns = tuple(zip(*layout.iter_unpack(memoryview(plain)[at:after]), strict=True))
    key_sizes, keys, value_sizes, values = columns[has_kinds:]
    numbers = (*columns[:has_kinds], key_sizes, value_sizes)
    if any(column.count(column[0]) < count for column in numbers) or (has_kinds and columns[0][0] != _PUT):
        return none
    return RecordBlock(_PUT_KIND * count, keys, values), after


def _size_at(plain: bytes, at: int) -> int:
    """The size that is there; -1 if there is none."""
    return int(_SIZE.unpack_from(plain, at)[0]) if 0 <= at <= len(plain) - _SIZE.size else _END


def _records_of_any_size(
    plain: bytes, at: int, file: str, read: _Reader, has_kinds: bool
) -> tuple[RecordBlock, int]:
    """The next records, and where those after them begin; none at the end."""
    kinds: list[Kind] = []
    keys: list[bytes] = []
    values: list[bytes | None] = []
    while len(keys) < _BLOCK_RECORDS:
        at = _append_puts(plain, at, has_kinds, keys, values)
        kinds.extend(_PUT_KIND * (len(keys) - len(kinds)))
        record, at = read(plain, at, file)
        if record is None:
            break
        kinds.append(record.kind)
        keys.append(record.key)
        values.append(record.value)
    return RecordBlock(kinds, keys, values), at


def _append_puts(plain: bytes, at: int, has_kinds: bool, keys: list[bytes], values: list[bytes | None]) -> int:
    """Append the next puts up to a block, or to what is no whole put; returns where that is."""
    size_at, end = _SIZE.unpack_from, len(plain)
    try:
        while len(keys) < _BLOCK_RECORDS and not (has_kinds and plain[at] != _PUT):
            key_at = at + has_kinds + _SIZE.size
            key_end = key_at + size_at(plain, key_at - _SIZE.size)[0]
            value_at = key_end + _SIZE.size
            value_end = value_at + size_at(plain, key_end)[0]
            if not key_at <= key_end < value_at <= value_end <= end:
                break
            keys.append(plain[key_at:key_end])
            values.append(plain[value_at:value_end])
            at = value_end
    except (struct.error, IndexError):
        # Whoever reads on from here says what is missing.
        pass
    return at


def _record_with_kind(plain: bytes, at: int, file: str) -> tuple[Record | None, int]:
    """A record after its kind, and where the next begins; None at the end."""
    if at >= len(plain):
        raise _cut(file, len(plain))
    code = plain[at]
    if code == _END_KIND:
        return None, at
    kind = _KINDS.get(code)
    if kind is None:
        raise CheckpointFileCorrupt(f"{file} has a record of kind {code:#x} at {at}. {_REMEDY}")
    key, at = _sized(plain, at + 1, file)
    value, at = _sized(plain, at, file)
    if key is None or (value is None) != (kind == "delete"):
        raise CheckpointFileCorrupt(f"{file} has a {kind} without its key or value before {at}. {_REMEDY}")
    return Record(kind, key, value), at


def _record(plain: bytes, at: int, file: str) -> tuple[Record | None, int]:
    """A record without kind, and where the next begins; None at the end."""
    key, at = _sized(plain, at, file)
    if key is None:
        return None, at - _SIZE.size
    value, at = _sized(plain, at, file)
    return Record("delete" if value is None else "put", key, value), at


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
