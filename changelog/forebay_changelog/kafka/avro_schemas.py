"""Payloads of Avro, read by their schemas with fastavro.

A schema is changed before that: of logical types only decimals are left, 64-bit integers are marked where they are
to be texts, and there are no defaults, which only reading by another schema needs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import MAX_PREC, Context, Decimal
from typing import Any

from msgspec.json import Encoder

_TEXT, _DECIMAL = "forebay-text", "forebay-decimal"
_EXACT = Context(prec=MAX_PREC)
_MAX_DECIMAL_BYTES = 256
"""Of a decimal's unscaled value: the time to write it grows with their square."""
_MAX_DEPTH = 64
_WHOLE, _MEMBER = "_ForebayWhole", "value"


def avro_decoder(texts: list[str], text_numbers: bool) -> Callable[[bytes], bytes]:
    """What reads payloads of the last of some schemas, each of which may refer to those before.

    Raises any error for what is no schema.
    """
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    *others, last = [_as_read(json.loads(text), text_numbers) for text in texts]
    for schema in others:
        parse_schema(schema, named_schemas=named)
    # A record of one field takes the bytes of that. Why: only for a record do the schemas that it refers to count.
    whole = {"type": "record", "name": _WHOLE, "fields": [{"name": _MEMBER, "type": last}]}
    parsed = parse_schema(whole, named_schemas=named)
    # It writes bytes in base64, and numbers that are not finite as null.
    encode = Encoder(decimal_format="string" if text_numbers else "number").encode

    if last == "bytes" or (isinstance(last, dict) and last["type"] == "bytes"):
        # Confluent's serializers write these as they are, without the length that Avro puts before them.
        return encode
    is_recursive = _is_recursive(parsed, named, set(), set())
    has_empty_items = any(_is_of_nothing(items, named, set()) for items in _items(parsed, named, set()))
    read = _reader(is_recursive)

    def decode(payload: bytes) -> bytes:
        if has_empty_items:
            raise ValueError("its schema has arrays of what takes no bytes, of which a few bytes make millions")
        file = io.BytesIO(payload)
        value = read(file, parsed, None)[_MEMBER]
        if file.tell() != len(payload):
            raise ValueError(f"{len(payload) - file.tell()} bytes are left")
        if is_recursive:
            _require_shallow(value)
        return encode(value)

    return decode


def _reader(is_recursive: bool) -> Callable[..., Any]:
    """fastavro's reader: the fast one ends the process on values that are nested thousands of times."""
    from fastavro import _read_py, read

    module: Any = _read_py if is_recursive else read
    module.LOGICAL_READERS[f"long-{_TEXT}"] = _read_text
    for of in ("bytes", "fixed"):
        module.LOGICAL_READERS[f"{of}-{_DECIMAL}"] = _read_decimal
    reader: Callable[..., Any] = module.schemaless_reader
    return reader


def _require_shallow(value: Any) -> None:
    """Raise ``ValueError`` for a value that is nested too deep: how deep Python can go depends on who calls."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [part for one in level if isinstance(one, dict | list) for part in _parts(one)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} times")


def _parts(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _below(schema: Any) -> list[Any]:
    """The schemas that one is made of."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    of = schema["type"]
    match of:
        case "record" | "error":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
    return [of] if isinstance(of, dict | list) else []


def _is_recursive(schema: Any, named: Mapping[str, Any], within: set[str], done: set[str]) -> bool:
    """Whether a value of a schema may contain another of the same; ``done`` are names that do not."""
    name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, dict) else None
    if name in within:
        return True
    if name in done or (isinstance(schema, str) and name not in named):
        return False
    below = _below(named[schema] if isinstance(schema, str) else schema)
    inside = within if name is None else {*within, name}
    if any(_is_recursive(one, named, inside, done) for one in below):
        return True
    if name is not None:
        done.add(name)
    return False


def _items(schema: Any, named: Mapping[str, Any], seen: set[str]) -> Iterator[Any]:
    """The schemas of the items of all arrays in a schema."""
    if isinstance(schema, str):
        if schema in seen or schema not in named:
            return
        seen.add(schema)
        schema = named[schema]
    if isinstance(schema, dict) and schema["type"] == "array":
        yield schema["items"]
    for one in _below(schema):
        yield from _items(one, named, seen)


def _is_of_nothing(schema: Any, named: Mapping[str, Any], within: set[str]) -> bool:
    """Whether values of a schema take no bytes; those ``within`` are records that would contain themselves."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    of = schema["type"] if isinstance(schema, dict) else schema
    if of in ("record", "error"):
        inside = {*within, schema["name"]}
        return schema["name"] not in within and all(
            _is_of_nothing(field["type"], named, inside) for field in schema["fields"]
        )
    return bool(of == "null" or (of == "fixed" and schema["size"] == 0))


def _as_read(schema: Any, text_numbers: bool) -> Any:
    """A schema with the logical types that are read here, and no others."""
    if schema == "long" and text_numbers:
        return {"type": "long", "logicalType": _TEXT}
    if isinstance(schema, list):
        return [_as_read(branch, text_numbers) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    read = {name: value for name, value in schema.items() if name not in ("logicalType", "default")}
    match schema.get("type"):
        case "long" if text_numbers:
            read["logicalType"] = _TEXT
        case "bytes" | "fixed" if schema.get("logicalType") == "decimal":
            read["logicalType"] = _DECIMAL
        case "record" | "error":
            fields = [(field["name"], _as_read(field["type"], text_numbers)) for field in schema["fields"]]
            read["fields"] = [{"name": name, "type": of} for name, of in fields]
        case "array":
            read["items"] = _as_read(schema["items"], text_numbers)
        case "map":
            read["values"] = _as_read(schema["values"], text_numbers)
        case dict() | list() as inner:
            read = _as_read(inner, text_numbers)
    return read


def _read_text(value: int, *_: object) -> str:
    return str(value)


def _read_decimal(value: bytes, schema: dict[str, Any] | None, _: object) -> Decimal:
    if len(value) > _MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(value)} bytes, more than {_MAX_DECIMAL_BYTES}")
    unscaled = int.from_bytes(value, "big", signed=True)
    return _EXACT.scaleb(Decimal(unscaled), -int((schema or {}).get("scale", 0)))
