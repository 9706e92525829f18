"""Key codecs: how a key is written in the changelog, in the store, in URLs and in JSON.

A key has one *plain* form, its bytes in the changelog, which also decides its partition: Kafka's own
serializers' bytes for ``string``, ``int32`` and ``int64``, RFC 8785 canonical JSON for ``json``. Its *ordered*
form, used in the store, sorts as the key does.

Keys with a schema of a registry are written in other bytes than these, which contain the schema's id; their plain
form is JSON, whatever schema they were written with.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import rfc8785

from forebay.errors import BadKey
from forebay.json_text import json_fault

MAX_KEY_BYTES = 4_096
"""The length of the longest key that a request may name, as it is written there."""
AS_IT_IS_IN_JSON = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_MAX_EXACT = 2**53 - 1
_BEYOND_UTF16_ORDER = re.compile("[\ue000-\U0010ffff]")
TOTAL_KEYS = {"string": "all", "json": "[]"}
"""By key codec, the key of a value that has no key column, such as a total."""


def text_to_json(text: bytes) -> bytes:
    """UTF-8 text as a JSON string; most keys need no escapes, which takes a tenth of the time."""
    if text.isalnum() or not text.translate(None, AS_IT_IS_IN_JSON):
        return b'"%b"' % text
    return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False).encode()


def utf8_fault(raw: bytes) -> str | None:
    """Why bytes are not UTF-8 text, None if they are."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"it is not valid UTF-8: {error.reason} at byte {error.start}"
    return None


def size_fault(raw: bytes, size: int) -> str | None:
    """Why bytes are not a number of this size, None if they are."""
    return None if len(raw) == size else f"it has {len(raw)} bytes, not {size}"


def canonical_json(value: Any) -> bytes:
    """A JSON value in its RFC 8785 form; raises what ``rfc8785.dumps`` raises.

    Why not by that alone: it is written in Python throughout, and takes milliseconds for a key of a few kilobytes.
    """
    if _is_plain(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    return rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    """Whether Python's own encoder writes a value as RFC 8785 does."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_MAX_EXACT <= value <= _MAX_EXACT)
    if kind is float:
        # Others have an exponent, or are written without a fraction.
        return bool(1e-4 <= abs(value) < 1e15) and not value.is_integer()
    if kind is list:
        return all(map(_is_plain, value))
    if kind is not dict:
        return False
    if not all(type(name) is str and _BEYOND_UTF16_ORDER.search(name) is None for name in value):
        return False
    return all(map(_is_plain, value.values()))


class KeyCodec(ABC):
    """Translates one kind of key between its plain bytes, JSON, URL segments and ordered bytes.

    What it does not define is as stated here: of varying length, and ordered by its plain bytes.
    """

    name: str
    fixed_size: int | None = None
    """Length in bytes of the ordered form, or None if it varies."""

    @abstractmethod
    def from_json(self, value: Any) -> bytes:
        """Plain bytes of a JSON value; raises ``BadKey``."""

    @abstractmethod
    def to_json(self, plain: bytes) -> bytes:
        """The key's JSON text."""

    @abstractmethod
    def from_text(self, text: bytes) -> bytes:
        """Plain bytes of a key given as text, percent-decoded; raises ``BadKey``."""

    def to_text(self, plain: bytes) -> bytes:
        """The text that ``from_text`` reads."""
        return plain

    @abstractmethod
    def fault(self, plain: bytes) -> str | None:
        """Why bytes that others wrote are not a key of this codec, None if they are."""

    def ordered(self, plain: bytes) -> bytes:
        """Bytes whose order is the keys' order."""
        return plain

    def plain(self, ordered: bytes) -> bytes:
        """The inverse of ``ordered``."""
        return ordered


def key_too_long(which: str = "The key") -> BadKey:
    """The problem of a key longer than allowed."""
    return BadKey(f"{which} is longer than {MAX_KEY_BYTES} bytes.")


def from_segment(codec: KeyCodec, segment: bytes) -> bytes:
    """Plain bytes of a URL path segment as received, still percent-encoded; raises ``BadKey``."""
    if len(segment) > MAX_KEY_BYTES:
        raise key_too_long()
    return codec.from_text(unquote_to_bytes(segment) if b"%" in segment else segment)


def to_segment(codec: KeyCodec, plain: bytes) -> str:
    """The key as a URL path segment, percent-encoded."""
    return quote(codec.to_text(plain), safe="")


def _shown(value: Any) -> str:
    """A key in a message, as its sender wrote it: in JSON."""
    return json.dumps(value, ensure_ascii=False, default=repr)


class StringKey(KeyCodec):
    """UTF-8 text, as Kafka's StringSerializer writes it."""

    name = "string"

    def from_json(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadKey(f"The key {_shown(value)} is not a string, as the key codec 'string' requires.")
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadKey(
                f"The key {_shown(value)} contains half of a surrogate pair, which has no UTF-8 form."
            ) from None

    def to_json(self, plain: bytes) -> bytes:
        return text_to_json(plain)

    def from_text(self, text: bytes) -> bytes:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise BadKey(f"The key is not valid UTF-8: {error.reason} at byte {error.start}.") from None
        return text

    def fault(self, plain: bytes) -> str | None:
        return utf8_fault(plain)


class IntegerKey(KeyCodec):
    """A signed big-endian integer, as Kafka's IntegerSerializer (32 bits) and LongSerializer (64) write it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.fixed_size = size
        self._size = size
        self._limit = 1 << (8 * size - 1)

    def from_json(self, value: Any) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadKey(f"The key {_shown(value)} is not an integer, as the key codec '{self.name}' requires.")
        if not -self._limit <= value < self._limit:
            raise BadKey(f"The key {value} does not fit {8 * self._size} bits ('{self.name}').")
        return value.to_bytes(self._size, "big", signed=True)

    def to_json(self, plain: bytes) -> bytes:
        return str(int.from_bytes(plain, "big", signed=True)).encode()

    def from_text(self, text: bytes) -> bytes:
        digits = text[1:] if text[:1] == b"-" else text
        if not digits.isdigit() or len(digits) > 20:
            raise BadKey(f"The key {_shown(text.decode('utf-8', 'replace'))} is not a decimal integer.")
        return self.from_json(int(text))

    def to_text(self, plain: bytes) -> bytes:
        return self.to_json(plain)

    def fault(self, plain: bytes) -> str | None:
        return size_fault(plain, self._size)

    def ordered(self, plain: bytes) -> bytes:
        if len(plain) != self._size:
            raise ValueError(f"a key of {len(plain)} bytes is not of type {self.name}, which has {self._size}")
        return bytes([plain[0] ^ 0x80]) + plain[1:]

    def plain(self, ordered: bytes) -> bytes:
        return bytes([ordered[0] ^ 0x80]) + ordered[1:]


class TextInt64Key(IntegerKey):
    """Integers of 64 bits that are strings in JSON, since JavaScript's numbers are exact up to 2^53 only."""

    def __init__(self) -> None:
        super().__init__("int64", 8)

    def from_json(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self.from_text(value.encode("utf-8", "replace"))
        return super().from_json(value)

    def to_json(self, plain: bytes) -> bytes:
        return b'"%b"' % super().to_json(plain)

    def to_text(self, plain: bytes) -> bytes:
        return super().to_json(plain)


class BytesKey(KeyCodec):
    """Any bytes; base64url without padding in URLs and JSON."""

    name = "bytes"

    def from_json(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadKey(f"The key {_shown(value)} is not a base64url string, as the key codec 'bytes' requires.")
        return self.from_text(value.encode("utf-8", "replace"))

    def to_json(self, plain: bytes) -> bytes:
        return b'"' + self.to_text(plain) + b'"'

    def from_text(self, text: bytes) -> bytes:
        bare = text.rstrip(b"=")
        try:
            plain = base64.b64decode(bare + b"=" * (-len(bare) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            plain = None
        # Spare bits that belong to no byte would give one key two texts.
        if plain is None or self.to_text(plain) != bare:
            raise BadKey(f"The key {_shown(text.decode('utf-8', 'replace'))} is not base64url.")
        return plain

    def to_text(self, plain: bytes) -> bytes:
        return base64.urlsafe_b64encode(plain).rstrip(b"=")

    def fault(self, plain: bytes) -> str | None:
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    # Such a text begins like another key than it is, and grants are for how keys begin.
    if len(members) != len(pairs):
        raise BadKey("The key has two members of one name, which RFC 8785 does not allow.")
    return members


class JsonKey(KeyCodec):
    """Any JSON value in its RFC 8785 canonical form; the codec of keys made of several columns."""

    name = "json"
    _decode = json.JSONDecoder(object_pairs_hook=_members).decode

    def from_json(self, value: Any) -> bytes:
        try:
            canonical = canonical_json(value)
            # Whole floats beyond 2^53 are written as integers, which this form does not allow.
            canonical_json(json.loads(canonical))
        except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
            raise BadKey(f"The key has no canonical JSON form (RFC 8785): {error}.") from None
        return canonical

    def to_json(self, plain: bytes) -> bytes:
        return plain

    def from_text(self, text: bytes) -> bytes:
        return self.from_json(self._parsed(text))

    def _parsed(self, text: bytes) -> Any:
        try:
            return self._decode(text.decode())
        except (ValueError, RecursionError):
            shown = _shown(text.decode("utf-8", "replace"))
            raise BadKey(f"The key {shown} is not JSON, as the key codec '{self.name}' requires.") from None

    def fault(self, plain: bytes) -> str | None:
        fault = json_fault(plain)
        if fault is not None:
            return fault
        try:
            canonical = self.from_json(json.loads(plain))
        except BadKey as error:
            return error.detail
        return None if canonical == plain else "it is not in canonical form (RFC 8785)"


def _no_fraction(text: str) -> None:
    raise BadKey(f"The key has the number {text}; numbers of keys are whole, and written without fraction.")


_SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def _sorted_json(value: Any) -> bytes:
    try:
        return _SORTED(value).encode()
    except (UnicodeEncodeError, RecursionError):
        raise BadKey(
            "The key has no form in JSON: it has half of a surrogate pair, or is nested too deep."
        ) from None


class AvroKey(JsonKey):
    """What a schema of Avro decodes, as JSON with sorted members and whole numbers of any size."""

    name = "avro"
    _decode = json.JSONDecoder(
        object_pairs_hook=_members, parse_float=_no_fraction, parse_constant=_no_fraction
    ).decode

    def from_json(self, value: Any) -> bytes:
        return self.from_text(_sorted_json(value))

    def from_text(self, text: bytes) -> bytes:
        return _sorted_json(self._parsed(text))

    def fault(self, plain: bytes) -> str | None:
        # It was decoded by its schema.
        return None


_KEY_CODECS: tuple[KeyCodec, ...] = (
    StringKey(),
    IntegerKey("int32", 4),
    IntegerKey("int64", 8),
    BytesKey(),
    JsonKey(),
    AvroKey(),
)
KEY_CODECS: dict[str, KeyCodec] = {codec.name: codec for codec in _KEY_CODECS}
TEXT_KEY_CODECS: dict[str, KeyCodec] = {**KEY_CODECS, "int64": TextInt64Key()}
"""The codecs of requests with ``numbers=text``."""
