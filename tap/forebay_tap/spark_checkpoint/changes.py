"""Keys and values of state as a provider writes them, decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from forebay_tap.spark_checkpoint.data_types import DataType
from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt
from forebay_tap.spark_checkpoint.records import Kind
from forebay_tap.spark_checkpoint.schemas import ColumnFamily
from forebay_tap.spark_checkpoint.unsafe_row import Row, RowDecoder, RowMalformed

_ROW_VERSION = 0
_SIZE = struct.Struct("<i")
_FAMILY_ID = struct.Struct("<h")
FAMILY_ID_BYTES = 2
_CHECKSUM_BYTES = 4
_DELIMITER = b","
_RowsDecoder = Callable[[Sequence[bytes], int], list[Row]]
"""Decodes rows that begin at the same offset of each."""


class ChangeBlock(NamedTuple):
    """What a version did to some keys of one family, in order.

    A kind is ``put``, ``delete`` or ``merge``. A value has its fields by position and is None for a deletion.
    Where the family ``has_lists`` it is a tuple of rows, and ``merge`` appends them to what is there.
    """

    version: int
    family: str
    kinds: Sequence[Kind]
    keys: Sequence[Row]
    values: Sequence[Row | None]


class StateEntry(NamedTuple):
    """One key of a store's content, with its value as in ``ChangeBlock``."""

    family: str
    key: Row
    value: Row


class FamilyDecoder:
    """Decodes one column family's keys and values as a provider wrote them.

    Methods raise ``CheckpointFileCorrupt``, naming the file.
    """

    def __init__(self, family: ColumnFamily, *, rocksdb: bool, prefixed: bool) -> None:
        self.family = family
        self._skipped = FAMILY_ID_BYTES if prefixed else 0
        self._value = RowDecoder(family.value.types)
        self._value_of = (
            (self._list if family.has_lists else self._versioned_value) if rocksdb else self._plain_value
        )
        self._key_of = _key_decoder(family) if rocksdb else _key_rows(family.key.types).decode
        rows = _versioned_rows if rocksdb else _plain_rows
        is_divided = rocksdb and family.prefix_columns
        self._keys_of = None if is_divided else rows(_key_rows(family.key.types))
        self._values_of = None if family.has_lists else rows(self._value)

    def key(self, data: bytes, file: str) -> Row:
        """The fields of a key."""
        try:
            return self._key_of(data, self._skipped)
        except (RowMalformed, struct.error) as error:
            raise _undecoded("key", self.family, file, error) from error

    def value(self, data: bytes, file: str) -> Row:
        """The fields of a value, or a list of values as a tuple of rows."""
        try:
            return self._value_of(data)
        except (RowMalformed, struct.error) as error:
            raise _undecoded("value", self.family, file, error) from error

    def keys(self, data: Sequence[bytes], file: str) -> Sequence[Row]:
        """The fields of several keys."""
        if self._keys_of is not None:
            # One by one, the key that does not fit is named.
            with suppress(RowMalformed, struct.error):
                return self._keys_of(data, self._skipped)
        return [self.key(one, file) for one in data]

    def values(self, data: Sequence[bytes | None], file: str) -> Sequence[Row | None]:
        """The fields of several values; None of those that are None."""
        if self._values_of is not None:
            with suppress(RowMalformed, struct.error):
                rows = iter(self._values_of([one for one in data if one is not None], 0))
                return [None if one is None else next(rows) for one in data]
        return [None if one is None else self.value(one, file) for one in data]

    def _plain_value(self, data: bytes) -> Row:
        _check_no_checksum(data)
        return self._value.decode(data)

    def _versioned_value(self, data: bytes) -> Row:
        _check_version(data, 0)
        return self._value.decode(data, 1)

    def _list(self, data: bytes) -> Row:
        rows, at = [], 0
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            if not 0 < size <= len(data) - at:
                raise RowMalformed(f"a list's value of {size} bytes at {at} is beyond its {len(data)} bytes")
            _check_version(data, at)
            rows.append(self._value.decode(data, at + 1, size - 1))
            at += size
            # Before Spark 4.2 RocksDB puts a comma between values, and rocksdict does so for later ones. It is the
            # beginning of no value: their sizes are one more than a multiple of eight.
            if data[at : at + 1] == _DELIMITER:
                at += 1
        return tuple(rows)


def family_id(key: bytes, file: str) -> int:
    """The number of a key's column family; raises ``CheckpointFileCorrupt``."""
    if len(key) < FAMILY_ID_BYTES:
        raise CheckpointFileCorrupt(f"{file} has a key of {len(key)} bytes, without its column family.")
    return int(_FAMILY_ID.unpack_from(key)[0])


def _check_no_checksum(data: bytes) -> None:
    if len(data) % 8 == _CHECKSUM_BYTES:
        raise RowMalformed("it has a row checksum, spark.sql.streaming.stateStore.rowChecksum.enabled")


def _check_version(data: bytes, at: int) -> None:
    version = data[at : at + 1]
    if version != bytes([_ROW_VERSION]):
        shown = version[0] if version else "none"
        raise RowMalformed(f"the version of its row's encoding is {shown}, where forebay knows {_ROW_VERSION}")


def _undecoded(part: str, family: ColumnFamily, file: str, error: Exception) -> CheckpointFileCorrupt:
    schema = family.key if part == "key" else family.value
    message = f"{file} has a {part} of {family.name!r} that does not fit {schema}: {error}."
    return CheckpointFileCorrupt(f"{message} The file is damaged, or forebay does not know this version of Spark.")


def _key_rows(types: Sequence[DataType]) -> RowDecoder:
    return RowDecoder(types, keeps_bytes=True)


def _plain_rows(decoder: RowDecoder) -> _RowsDecoder:
    decode_all = decoder.decode_all

    def decode(data: Sequence[bytes], at: int) -> list[Row]:
        for one in data:
            _check_no_checksum(one)
        return decode_all(data, at)

    return decode


def _versioned_rows(decoder: RowDecoder) -> _RowsDecoder:
    decode_all = decoder.decode_all

    def decode(data: Sequence[bytes], at: int) -> list[Row]:
        for version in {one[at : at + 1] for one in data}:
            _check_version(version, 0)
        return decode_all(data, at + 1)

    return decode


def _key_decoder(family: ColumnFamily) -> Callable[[bytes, int], Row]:
    types = family.key.types
    if family.prefix_columns:
        return _split_key(types, family.prefix_columns)
    whole = _key_rows(types)

    def decode(data: bytes, at: int) -> Row:
        _check_version(data, at)
        return whole.decode(data, at + 1)

    return decode


def _split_key(types: tuple[DataType, ...], columns: int) -> Callable[[bytes, int], Row]:
    """A row of the first columns after its size, and a row of the others."""
    prefix, others = _key_rows(types[:columns]), _key_rows(types[columns:])

    def decode(data: bytes, at: int) -> Row:
        first, rest = _parts(data, at)
        return prefix.decode(data, *first) + others.decode(data, *rest)

    return decode


def _parts(data: bytes, at: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the two rows of a divided key are, as (start, size)."""
    (size,) = _SIZE.unpack_from(data, at)
    first = at + _SIZE.size
    second = first + size
    if not 0 < size <= len(data) - first:
        raise RowMalformed(f"a first part of {size} bytes is beyond the {len(data)} bytes of its key")
    _check_version(data, first)
    _check_version(data, second)
    return (first + 1, size - 1), (second + 1, len(data) - second - 1)
