"""Values of Spark's state as JSON texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay_tap.json_forms import Form
from forebay_tap.spark_checkpoint.unsafe_row import Row

_encoder = msgspec.json.Encoder(decimal_format="number")


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
