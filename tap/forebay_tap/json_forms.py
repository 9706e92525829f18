"""Values of Spark's state as JSON, in the form that Spark's ``to_json`` and forebay's sink give them."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from forebay_tap.spark_checkpoint.data_types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StructType,
)
from forebay_tap.spark_checkpoint.errors import StateUnsupported
from forebay_tap.spark_checkpoint.unsafe_row import Row

Form = Callable[[Any], Any]
"""Makes a JSON value of one that is not null."""

_EPOCH = datetime(1970, 1, 1)
_FLOAT = struct.Struct("<f")
_FLOAT_DIGITS = range(6, 10)
_MICROSECONDS_PER_DAY = 86_400_000_000
_DAYS_PER_ERA = 146_097
_INTEGERS = ("byte", "short", "integer", "long")
_MAP_KEYS = ("boolean", *_INTEGERS, "string")
_AS_THEY_ARE = (*_MAP_KEYS, "void")
_encoder = msgspec.json.Encoder(decimal_format="number")


def json_form(kind: DataType) -> Form | None:
    """What makes JSON of a type's values; None if they are their own JSON.

    Raises ``StateUnsupported`` for types that have no JSON form.
    """
    match kind:
        case AtomicType(name) if name in _AS_THEY_ARE:
            return None
        case AtomicType(name) if name in _ATOMIC:
            return _ATOMIC[name]
        case DecimalType():
            return None
        case ArrayType(element):
            return _array(json_form(element))
        case StructType():
            return struct_form(tuple(field.name for field in kind.fields), kind.types)
        case MapType(key, value):
            return _map(key, json_form(value))
    raise StateUnsupported(
        f"Values of the type {kind} have no JSON form here: leave the field out, or cast it in the query."
    )


def json_shape(kind: DataType) -> object:
    """What decides how JSON is written of a type, to compare it with another's."""
    match kind:
        case AtomicType(name):
            return "integer" if name in _INTEGERS else name
        case StructType(fields):
            return {field.name: json_shape(field.type) for field in fields}
        case ArrayType(element):
            return [json_shape(element)]
        case MapType(key, value):
            return (json_shape(key), json_shape(value))
    return kind


def struct_form(names: tuple[str, ...], types: tuple[DataType, ...]) -> Form:
    """What makes an object of a row's fields; raises ``StateUnsupported``."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StateUnsupported(f"A struct has two fields {twice!r}, which no JSON object can have. Rename one.")
    forms = tuple(json_form(kind) for kind in types)
    if not any(forms):
        return lambda row: dict(zip(names, row, strict=True))
    return lambda row: {
        name: value if form is None or value is None else form(value)
        for name, form, value in zip(names, forms, row, strict=True)
    }


def _array(form: Form | None) -> Form:
    if form is None:
        return list
    return lambda values: [None if value is None else form(value) for value in values]


def _map(key: DataType, form: Form | None) -> Form:
    if not isinstance(key, AtomicType) or key.name not in _MAP_KEYS:
        raise StateUnsupported(f"A map with keys of the type {key} has no JSON form: cast them to string.")
    text: Callable[[Any], str] = (lambda value: str(value).lower()) if key.name == "boolean" else str
    return lambda pairs: {
        text(name): value if form is None or value is None else form(value) for name, value in pairs
    }


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float(value: float) -> float | str:
    """The shortest decimal that 32 bits take for the same number, as Java prints it."""
    if not math.isfinite(value):
        return _double(value)
    for digits in _FLOAT_DIGITS:
        shorter = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(shorter))[0] == value:
            return shorter
    return value


def _date(days: int) -> str:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return _distant_date(days)


def _timestamp_ntz(microseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        days, of_day = divmod(microseconds, _MICROSECONDS_PER_DAY)
        time = (_EPOCH + timedelta(microseconds=of_day)).time()
        return f"{_distant_date(days)}T{time.isoformat(timespec='microseconds')}"


def _distant_date(days: int) -> str:
    """A date beyond the years 1 to 9999, in the proleptic Gregorian calendar, whose days repeat every 400
    years."""
    eras, day_of_era = divmod(days, _DAYS_PER_ERA)
    near = _EPOCH + timedelta(days=day_of_era)
    year = near.year + 400 * eras
    shown = f"{year:05d}" if year < 0 else f"{year:04d}" if year <= 9999 else f"+{year}"
    return f"{shown}-{near.month:02d}-{near.day:02d}"


def _time(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%H:%M:%S")
    fraction = f"{nanoseconds % 1_000_000_000:09d}".rstrip("0")
    return f"{moment}.{fraction}" if fraction else moment


_ATOMIC: dict[str, Form] = {
    "float": _float,
    "double": _double,
    "binary": lambda value: base64.b64encode(value).decode(),
    "date": _date,
    "timestamp": lambda microseconds: f"{_timestamp_ntz(microseconds)}Z",
    "timestamp_ntz": _timestamp_ntz,
    "time": _time,
}


@dataclass(frozen=True)
class ValueMember:
    """One member of the values: where it is in a row, and what makes JSON of it, None if it is its own."""

    name: str
    read: Callable[[Row], Any]
    form: Form | None

    def value(self, row: Row) -> Any:
        """Its JSON value in a row."""
        value = self.read(row)
        return value if value is None or self.form is None else self.form(value)

    def column(self, rows: Sequence[Row]) -> list[Any]:
        """Its JSON value in each row."""
        form, values = self.form, list(map(self.read, rows))
        if form is None:
            return values
        return [None if value is None else form(value) for value in values]

    def texts(self, rows: Sequence[Row]) -> list[bytes]:
        """Its JSON text in each row, of which there is at least one."""
        # No JSON text has a line break: in strings it is escaped.
        return _encoder.encode_lines(self.column(rows)).split(b"\n")[: len(rows)]


class ValueEncoder:
    """Encodes rows as JSON objects of some members: one alone, or many member by member, which is faster."""

    def __init__(self, members: Sequence[ValueMember]) -> None:
        self._members = members
        named = [_encoder.encode(member.name).replace(b"%", b"%%") + b":%b" for member in members]
        self._object = b"{" + b",".join(named) + b"}"

    def text(self, row: Row) -> bytes:
        """A value's JSON text."""
        return _encoder.encode({member.name: member.value(row) for member in self._members})

    def texts(self, rows: Sequence[Row]) -> list[bytes]:
        """The JSON text of several values."""
        if not rows or not self._members:
            return [self._object] * len(rows)
        columns = [member.texts(rows) for member in self._members]
        return list(map(self._object.__mod__, zip(*columns, strict=True)))
