"""Value codecs: what a stored value is in JSON; and what keys are that carry the id of a schema, as values do.

Values with a schema of a registry are in Confluent's wire format: a zero, a schema's id in four bytes, a payload.
They are stored as they were written. Whoever knows a registry says how payloads are decoded; this
module knows none.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable
from typing import Protocol

from forebay.bounded_cache import remembered
from forebay.codecs.keys import (
    AS_IT_IS_IN_JSON,
    AvroKey,
    JsonKey,
    KeyCodec,
    StringKey,
    size_fault,
    text_to_json,
    utf8_fault,
)
from forebay.errors import SchemaUnavailable
from forebay.json_text import all_json, json_fault


class ValueCodec(Protocol):
    """Turns a stored value into JSON text."""

    name: str

    def to_json(self, stored: bytes) -> bytes:
        """The JSON text that stands for the value in an answer, with any members that follow it there.

        Raises ``SchemaUnavailable`` if it has a schema that is not known yet.
        """

    def fault(self, stored: bytes) -> str | None:
        """Why bytes that others wrote are not a value of this codec, None if they are.

        Raises ``SchemaUnavailable`` if that depends on a schema that is not known yet.
        """


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


_HEAD = struct.Struct(">bI")
_MAGIC = 0


Decode = Callable[[bytes], bytes]
"""The JSON text of a payload of one schema; raises any error for what is no such payload."""


class Decoders(Protocol):
    """What knows schemas by their ids."""

    def __call__(self, codec: str, schema_id: int, *, text_numbers: bool, patient: bool) -> Decode:
        """What reads payloads of a schema of a codec; with ``text_numbers``, 64-bit integers and decimals become
        strings.

        Raises ``UnknownSchema`` if the registry has none with this id, and ``SchemaUnavailable`` if that is not
        known, for those who are ``patient`` after a moment.
        """


class UnknownSchema(ValueError):
    """No schema has the id that a value carries."""


def _no_registry(codec: str, schema_id: int, *, text_numbers: bool, patient: bool) -> Decode:
    raise SchemaUnavailable(f"It has the schema {schema_id}, and this process knows no schema registry.")


class _KnownSchemas:
    """The schemas that a process knows."""

    decoder_of: Decoders = staticmethod(_no_registry)


_known = _KnownSchemas()


def decode_by(decoder_of: Decoders) -> None:
    """Have this process decode values so from now on."""
    _known.decoder_of = decoder_of


def split(stored: bytes) -> tuple[int, bytes]:
    """The schema's id and the payload of a value; raises ``ValueError`` if it is in no wire format."""
    if len(stored) < _HEAD.size:
        raise ValueError(f"it has {len(stored)} bytes, fewer than the {_HEAD.size} of a schema's id")
    magic, schema_id = _HEAD.unpack_from(stored)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {stored[:1]!r}, not with the zero of Confluent's wire format")
    return schema_id, stored[_HEAD.size :]


class RegisteredValue:
    """Avro or Protobuf, decoded by the schema that it was written with."""

    def __init__(self, name: str, *, text_numbers: bool = False) -> None:
        self.name = name
        self._text_numbers = text_numbers

    def to_json(self, stored: bytes) -> bytes:
        schema_id, payload = split(stored)
        try:
            decode = _known.decoder_of(self.name, schema_id, text_numbers=self._text_numbers, patient=False)
        except UnknownSchema as error:
            # It was there when the value was applied, here or by who gave this worker its copy.
            raise SchemaUnavailable(f"The schema {schema_id} of the value is gone: {error}.") from None
        return _with_schema_id(decode(payload), schema_id)

    def fault(self, stored: bytes) -> str | None:
        try:
            schema_id, payload = split(stored)
        except ValueError as error:
            return str(error)
        try:
            _known.decoder_of(self.name, schema_id, text_numbers=self._text_numbers, patient=True)(payload)
        except SchemaUnavailable:
            raise
        except Exception as error:
            return f"the schema {schema_id} does not decode it: {error or type(error).__name__}"
        return None


_AVRO_KEY = AvroKey()
_REMEMBERED_KEYS = 8_192
_REMEMBERED_BYTES = 128


def _decoded_key(written: bytes) -> tuple[bytes, int]:
    schema_id, payload = split(written)
    try:
        text = _known.decoder_of(_AVRO_KEY.name, schema_id, text_numbers=False, patient=True)(payload)
        return _AVRO_KEY.from_text(text), schema_id
    except SchemaUnavailable:
        raise
    except Exception as error:
        raise ValueError(f"the schema {schema_id} does not decode it: {error or type(error).__name__}") from None


decoded_key = remembered(_decoded_key, _REMEMBERED_KEYS, _REMEMBERED_BYTES)
"""The plain bytes of a key of ``avro`` as others write it, and the id of its schema.

Raises ``ValueError`` for what is no such key, and ``SchemaUnavailable`` if its schema is not known yet. A key is
decoded when it is checked, and again when it is applied.
"""


class JsonSchemaValue:
    """JSON with the id of its JSON Schema, which whoever wrote it has checked."""

    name = "json-schema"

    def to_json(self, stored: bytes) -> bytes:
        schema_id, payload = split(stored)
        return _with_schema_id(payload, schema_id)

    def fault(self, stored: bytes) -> str | None:
        try:
            _, payload = split(stored)
        except ValueError as error:
            return str(error)
        return json_fault(payload)


def _with_schema_id(text: bytes, schema_id: int) -> bytes:
    return b'%b,"schema_id":%d' % (text, schema_id)


_HEADERS_SIZE = struct.Struct(">I")


def headed(value: bytes, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """A value as a store keeps it with the headers of its record."""
    shown = json.dumps([_header(*header) for header in headers], ensure_ascii=False).encode()
    return _HEADERS_SIZE.pack(len(shown)) + shown + value


def _header(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {"name": name, "value": None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {"name": name, "value_base64": base64.b64encode(content or b"").decode()}


class HeadedValue:
    """A value of another codec that is kept with the headers of its record, which are ``shown`` or not."""

    def __init__(self, codec: ValueCodec, *, shown: bool = False) -> None:
        self.name = codec.name
        self._codec = codec
        self._shown = shown

    @property
    def with_headers(self) -> HeadedValue:
        """The same, its headers shown."""
        return HeadedValue(self._codec, shown=True)

    def to_json(self, stored: bytes) -> bytes:
        headers, value = _split_headers(stored)
        text = self._codec.to_json(value)
        return b'%b,"headers":%b' % (text, headers) if self._shown else text

    def fault(self, stored: bytes) -> str | None:
        return self._codec.fault(_split_headers(stored)[1])


def _split_headers(stored: bytes) -> tuple[bytes, bytes]:
    (size,) = _HEADERS_SIZE.unpack_from(stored)
    end = _HEADERS_SIZE.size + size
    return stored[_HEADERS_SIZE.size : end], stored[end:]


def without_headers(codec: KeyCodec | ValueCodec, stored: bytes) -> bytes:
    """A key or value as it was written to the log."""
    return _split_headers(stored)[1] if isinstance(codec, HeadedValue) else stored


_VALUE_CODECS: tuple[ValueCodec, ...] = (
    JsonValue(),
    StringValue(),
    Int64Value(),
    DoubleValue(),
    BytesValue(),
    RegisteredValue("avro"),
    RegisteredValue("protobuf"),
    JsonSchemaValue(),
)
VALUE_CODECS: dict[str, ValueCodec] = {codec.name: codec for codec in _VALUE_CODECS}
_TEXT_VALUE_CODECS: tuple[ValueCodec, ...] = (TextInt64Value(), RegisteredValue("avro", text_numbers=True))
TEXT_VALUE_CODECS: dict[str, ValueCodec] = {**VALUE_CODECS, **{codec.name: codec for codec in _TEXT_VALUE_CODECS}}
DECODED_BY_SCHEMA = ("avro", "protobuf")
"""The codecs that need a registry."""
SCHEMA_VALUE_CODECS = (*DECODED_BY_SCHEMA, JsonSchemaValue.name)
"""Those of values that carry the id of a schema."""


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
