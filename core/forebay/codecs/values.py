"""Value codecs: what a stored value is in JSON."""

from __future__ import annotations

import base64
import json
import struct
from typing import Protocol

from forebay.codecs.keys import (
    AS_IT_IS_IN_JSON,
    JsonKey,
    KeyCodec,
    StringKey,
    size_fault,
    text_to_json,
    utf8_fault,
)
from forebay.json_text import all_json, json_fault


class ValueCodec(Protocol):
    """Turns a stored value into JSON text."""

    name: str

    def to_json(self, stored: bytes) -> bytes:
        """The JSON text that stands for the value in an answer."""
        ...

    def fault(self, stored: bytes) -> str | None:
        """Why bytes that others wrote are not a value of this codec, None if they are."""
        ...


class JsonValue:
    """JSON text, spliced into answers unparsed."""

    name = "json"

    def to_json(self, stored: bytes) -> bytes:
        return stored

    def fault(self, stored: bytes) -> str | None:
        return json_fault(stored)


class StringValue:
    """UTF-8 text."""

    name = "string"

    def to_json(self, stored: bytes) -> bytes:
        return text_to_json(stored)

    def fault(self, stored: bytes) -> str | None:
        return utf8_fault(stored)


class Int64Value:
    """A signed 64-bit big-endian integer, as Kafka's LongSerializer writes it."""

    name = "int64"

    def to_json(self, stored: bytes) -> bytes:
        return str(int.from_bytes(stored, "big", signed=True)).encode()

    def fault(self, stored: bytes) -> str | None:
        return size_fault(stored, 8)


class TextInt64Value(Int64Value):
    """The same as a string in JSON."""

    def to_json(self, stored: bytes) -> bytes:
        return b'"%b"' % super().to_json(stored)


class DoubleValue:
    """A 64-bit big-endian IEEE 754 number, as Kafka's DoubleSerializer writes it; null unless finite."""

    name = "double"

    def to_json(self, stored: bytes) -> bytes:
        (number,) = struct.unpack(">d", stored)
        return json.dumps(number).encode() if number - number == 0 else b"null"

    def fault(self, stored: bytes) -> str | None:
        return size_fault(stored, 8)


class BytesValue:
    """Any bytes, base64 (RFC 4648, padded) in JSON."""

    name = "bytes"

    def to_json(self, stored: bytes) -> bytes:
        return b'"' + base64.b64encode(stored) + b'"'

    def fault(self, stored: bytes) -> str | None:
        return None


VALUE_CODECS: dict[str, ValueCodec] = {
    codec.name: codec for codec in (JsonValue(), StringValue(), Int64Value(), DoubleValue(), BytesValue())
}
TEXT_VALUE_CODECS: dict[str, ValueCodec] = {**VALUE_CODECS, "int64": TextInt64Value()}


def all_fit(codec: ValueCodec, values: list[bytes]) -> bool:
    """Whether no value has a fault: of many that is found out at a fraction of the cost."""
    return (
        all_json(values) if isinstance(codec, JsonValue) else all(codec.fault(value) is None for value in values)
    )


def all_to_json(codec: KeyCodec | ValueCodec, plains: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The JSON text of each, as a form and what to fill it with: ``form % (filling,)``.

    Texts and JSON as a rule are filled in as they are, which takes a fraction of the time.
    """
    if isinstance(codec, JsonKey | JsonValue):
        return b"%b", plains
    if isinstance(codec, StringKey | StringValue) and not b"".join(plains).translate(None, AS_IT_IS_IN_JSON):
        return b'"%b"', plains
    return b"%b", [codec.to_json(plain) for plain in plains]
