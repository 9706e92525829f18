"""UnsafeRow, Spark's binary row: null bits, then eight bytes a field, then what does not fit into eight.

A field that does not fit has its offset and size in those eight bytes, counted from the row's beginning. Learnt
from Spark's ``UnsafeRow``, ``UnsafeArrayData`` and ``UnsafeMapData``; everything is little-endian but large
decimals.

Values are Python's own; times stay the numbers that Spark keeps, as ``datetime`` cannot express all of them:

==========================================  ====================================================================
``boolean``                                 bool
``byte`` ``short`` ``integer`` ``long``     int
``float`` ``double``                        float
``decimal``                                 decimal.Decimal
``string``                                  str; bytes that are not UTF-8 become U+FFFD
``binary``                                  bytes
``date``                                    int, days since the epoch
``timestamp`` ``timestamp_ntz``             int, microseconds since the epoch
``time``                                    int, nanoseconds since midnight
``interval``                                (months, days, microseconds)
``year-month interval``                     int, months
``day-time interval``                       int, microseconds
``struct`` ``array``                        tuple
``map``                                     tuple of (key, value)
``void``, and null of any type              None
==========================================  ====================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import islice, repeat
from typing import Any

from forebay_tap.spark_checkpoint.data_types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StructType,
)

Row = tuple[Any, ...]
_Part = Callable[[bytes, int, int], Any]
"""Decodes what is at an offset, so many bytes long."""

_WORD_BYTES = 8
_BITS = 64
_LONG_DIGITS = 18
"""Decimals with more digits do not fit into a word."""
_INTERVAL = struct.Struct("<iiq")
_LONG = struct.Struct("<q")
_CODES = {
    "boolean": "?",
    "byte": "b",
    "short": "h",
    "integer": "i",
    "date": "i",
    "year-month interval": "i",
    "float": "f",
    "long": "q",
    "timestamp": "q",
    "timestamp_ntz": "q",
    "time": "q",
    "day-time interval": "q",
    "double": "d",
}


class RowMalformed(ValueError):
    """Bytes that are no row of their schema."""


class RowDecoder:
    """Decodes rows of the given types; made once for a schema.

    Bytes of a string that are no UTF-8 become U+FFFD, as in Spark. With ``keeps_bytes`` they are kept apart, as
    Python's ``surrogateescape`` does: rows that differ in them only are different keys.
    """

    def __init__(self, types: Sequence[DataType], *, keeps_bytes: bool = False) -> None:
        self._count = len(types)
        self._null_words = (len(types) + _BITS - 1) // _BITS
        self._words = struct.Struct("<" + "Q" * self._null_words + "".join(_word_code(item) for item in types))
        self._parts = tuple(
            (at, part) for at, item in enumerate(types) if (part := _part(item, keeps_bytes)) is not None
        )
        self._small_decimals = tuple(
            (at, -item.scale)
            for at, item in enumerate(types)
            if isinstance(item, DecimalType) and item.precision <= _LONG_DIGITS
        )

    def decode(self, data: bytes, start: int = 0, size: int | None = None) -> Row:
        """The fields of the row at ``start``; raises ``RowMalformed``."""
        size = len(data) - start if size is None else size
        if size < self._words.size:
            raise RowMalformed(f"{size} bytes are too few for a row of {self._count} fields")
        words = self._words.unpack_from(data, start)
        nulls, fields = words[: self._null_words], words[self._null_words :]
        if not self._parts and not self._small_decimals and not any(nulls):
            return fields
        values = list(fields)
        for at, exponent in self._small_decimals:
            values[at] = _decimal(values[at], exponent)
        for at, part in self._parts:
            if not nulls[at >> 6] >> (at & 63) & 1:
                values[at] = _placed(part, data, start, size, values[at])
        if any(nulls):
            for at in range(self._count):
                if nulls[at >> 6] >> (at & 63) & 1:
                    values[at] = None
        return tuple(values)

    def decode_all(self, rows: Sequence[bytes], start: int) -> list[Row]:
        """The fields of rows that begin at ``start`` of each; raises ``RowMalformed``.

        Why: decoded field by field they take half the time. Those with a null are decoded one by one.
        """
        if not self._count or min(map(len, rows), default=0) < start + self._words.size:
            return [self.decode(row, start) for row in rows]
        words = zip(*map(self._words.unpack_from, rows, repeat(start)), strict=True)
        nulls = list(islice(words, self._null_words))
        if not any(map(any, nulls)):
            return self._decode_fields(rows, start, list(words))
        has_null = list(map(any, zip(*nulls, strict=True)))
        others = iter(self.decode_all([row for row, has in zip(rows, has_null, strict=True) if not has], start))
        return [self.decode(row, start) if has else next(others) for row, has in zip(rows, has_null, strict=True)]

    def _decode_fields(self, rows: Sequence[bytes], start: int, fields: list[Sequence[Any]]) -> list[Row]:
        """The rows whose words are these fields, of which none is null."""
        for at, exponent in self._small_decimals:
            fields[at] = [_decimal(unscaled, exponent) for unscaled in fields[at]]
        for at, part in self._parts:
            fields[at] = [
                _placed(part, row, start, len(row) - start, word)
                for row, word in zip(rows, fields[at], strict=True)
            ]
        return list(zip(*fields, strict=True))


def _placed(part: _Part, data: bytes, start: int, size: int, word: int) -> Any:
    offset, length = word >> 32, word & 0xFFFF_FFFF
    if not 0 <= offset <= offset + length <= size:
        raise RowMalformed(f"a field of {length} bytes at {offset} is beyond the {size} bytes of its row")
    return part(data, start + offset, length)


def _word_code(item: DataType) -> str:
    """The format of a field's eight bytes."""
    code = _CODES.get(item.name, "q") if isinstance(item, AtomicType) else "q"
    padding = _WORD_BYTES - struct.calcsize(code)
    return f"{code}{padding}x" if padding else code


def _part(item: DataType, keeps_bytes: bool) -> _Part | None:
    """The decoder of a type whose values do not fit into a word; None for the others."""
    match item:
        case AtomicType("string"):
            errors = "surrogateescape" if keeps_bytes else "replace"
            return lambda data, at, length: data[at : at + length].decode(errors=errors)
        case AtomicType("binary"):
            return lambda data, at, length: data[at : at + length]
        case AtomicType("interval"):
            return lambda data, at, length: _INTERVAL.unpack_from(data, at)
        case AtomicType():
            return None
        case DecimalType(precision, scale):
            if precision <= _LONG_DIGITS:
                return None
            return lambda data, at, length: _decimal(
                int.from_bytes(data[at : at + length], "big", signed=True), -scale
            )
        case StructType():
            return RowDecoder(item.types, keeps_bytes=keeps_bytes).decode
        case ArrayType(element):
            return _ArrayDecoder(element, keeps_bytes).decode
        case MapType(key, value):
            return _MapDecoder(key, value, keeps_bytes).decode


def _decimal(unscaled: int, exponent: int) -> Decimal:
    # Not scaleb, which rounds to the context's precision.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), exponent))


class _ArrayDecoder:
    """An array: the number of elements, null bits, and the elements, each as wide as its type."""

    def __init__(self, element: DataType, keeps_bytes: bool) -> None:
        self._code = _CODES.get(element.name, "q") if isinstance(element, AtomicType) else "q"
        self._width = struct.calcsize(self._code)
        self._part = _part(element, keeps_bytes)
        self._exponent = -element.scale if isinstance(element, DecimalType) else 0
        self._is_decimal = isinstance(element, DecimalType)

    def decode(self, data: bytes, start: int, size: int) -> Row:
        if size < _WORD_BYTES:
            raise RowMalformed(f"{size} bytes are too few for an array")
        (count,) = _LONG.unpack_from(data, start)
        null_words = (count + _BITS - 1) // _BITS
        first = _WORD_BYTES * (1 + null_words)
        if not 0 <= count <= size or first + count * self._width > size:
            raise RowMalformed(f"{size} bytes are too few for an array of {count} elements")
        nulls = int.from_bytes(data[start + _WORD_BYTES : start + first], "little")
        values: list[Any] = list(struct.unpack_from(f"<{count}{self._code}", data, start + first))
        for at, value in enumerate(values):
            if nulls >> at & 1:
                values[at] = None
            elif self._part is not None:
                values[at] = _placed(self._part, data, start, size, value)
            elif self._is_decimal:
                values[at] = _decimal(value, self._exponent)
        return tuple(values)


class _MapDecoder:
    """A map: the size of the array of keys, that array, and the array of values."""

    def __init__(self, key: DataType, value: DataType, keeps_bytes: bool) -> None:
        self._keys, self._values = _ArrayDecoder(key, keeps_bytes), _ArrayDecoder(value, keeps_bytes)

    def decode(self, data: bytes, start: int, size: int) -> Row:
        if size < _WORD_BYTES:
            raise RowMalformed(f"{size} bytes are too few for a map")
        (key_bytes,) = _LONG.unpack_from(data, start)
        if not 0 <= key_bytes <= size - _WORD_BYTES:
            raise RowMalformed(f"keys of {key_bytes} bytes are beyond the {size} bytes of their map")
        first = start + _WORD_BYTES
        keys = self._keys.decode(data, first, key_bytes)
        values = self._values.decode(data, first + key_bytes, size - _WORD_BYTES - key_bytes)
        return tuple(zip(keys, values, strict=True))
