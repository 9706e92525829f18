"""Spark's data types, as its schemas write them in JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from forebay_tap.spark_checkpoint.errors import CheckpointFormatUnknown, StateUnsupported


@dataclass(frozen=True)
class AtomicType:
    """A type without parts, by Spark's name; ``string`` also stands for ``char`` and ``varchar``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DecimalType:
    """Decimal numbers of so many digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class ArrayType:
    """A list of elements of one type."""

    element: DataType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class MapType:
    """A map from keys of one type to values of another."""

    key: DataType
    value: DataType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Field:
    """A named field of a struct. Names may repeat: fields are found by position."""

    name: str
    type: DataType
    metadata: tuple[str, ...] = ()
    """The names in Spark's metadata of the field; ``spark.timeWindow`` marks a window, ``spark.sessionWindow`` a
    session."""


@dataclass(frozen=True)
class StructType:
    """Fields in order."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{field.name}:{field.type}" for field in self.fields) + ">"

    @cached_property
    def types(self) -> tuple[DataType, ...]:
        """The fields' types."""
        return tuple(field.type for field in self.fields)


DataType = AtomicType | DecimalType | ArrayType | MapType | StructType

ATOMIC_TYPES = frozenset(
    {
        "binary",
        "boolean",
        "byte",
        "date",
        "double",
        "float",
        "integer",
        "interval",
        "long",
        "short",
        "string",
        "time",
        "timestamp",
        "timestamp_ntz",
        "void",
        "year-month interval",
        "day-time interval",
    }
)
_UNSUPPORTED = ("variant", "geometry", "geography")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_YEAR_MONTH = re.compile(r"interval (year|month)( to month)?")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_TEXT = re.compile(r"(char|varchar)\(\d+\)|string collate .+")
_TIME = re.compile(r"time\(\d+\)")


def parse_type(described: Any) -> DataType:
    """A type from its JSON, as ``StructType.json`` writes it.

    Raises ``CheckpointFormatUnknown`` for a type of a later Spark, ``StateUnsupported`` for one that is not
    decoded.
    """
    if isinstance(described, str):
        return _atomic(described)
    match described:
        case {"type": "struct", "fields": list(fields)}:
            return StructType(tuple(_field(field) for field in fields))
        case {"type": "array", "elementType": element}:
            return ArrayType(parse_type(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return MapType(parse_type(key), parse_type(value))
        case {"type": "udt", "sqlType": stored}:
            return parse_type(stored)
    raise CheckpointFormatUnknown(f"{described!r} is no data type that forebay knows.")


def parse_struct(described: Any) -> StructType:
    """A struct from its JSON; raises as ``parse_type``."""
    parsed = parse_type(described)
    if not isinstance(parsed, StructType):
        raise CheckpointFormatUnknown(f"A schema is {parsed}, where Spark writes a struct.")
    return parsed


def _field(described: Any) -> Field:
    return Field(described["name"], parse_type(described["type"]), tuple(described.get("metadata", ())))


def _atomic(name: str) -> DataType:
    if name in ATOMIC_TYPES:
        return AtomicType(name)
    if name == "decimal":
        return DecimalType(10, 0)
    if digits := _DECIMAL.fullmatch(name):
        return DecimalType(int(digits[1]), int(digits[2]))
    if name in _UNSUPPORTED:
        raise StateUnsupported(f"Columns of type {name} are not decoded: leave them out of the query's state.")
    for pattern, base in _PATTERNS:
        if pattern.fullmatch(name):
            return AtomicType(base)
    raise CheckpointFormatUnknown(f"{name!r} is no data type that forebay knows.")


_PATTERNS = (
    (_YEAR_MONTH, "year-month interval"),
    (_DAY_TIME, "day-time interval"),
    (_TEXT, "string"),
    (_TIME, "time"),
    (re.compile("null"), "void"),
    (re.compile("calendar_interval"), "interval"),
)
