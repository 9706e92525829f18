"""Records of a log as JSON values and as lines, by their store's codecs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.clock import time_text
from forebay.codecs.keys import KeyCodec
from forebay.codecs.values import ValueCodec, without_headers
from forebay.errors import SchemaUnavailable
from forebay.store_spec import StoreSpec
from forebay_changelog.base import Heartbeat, Record
from forebay_changelog.record_headers import writer_of


class JsonText(str):
    """A value as JSON text: its numbers stay as they are, even if longer than Python's."""


def record_document(spec: StoreSpec, partition: int, record: Record) -> dict[str, Any]:
    """A record as JSON values.

    A deletion has ``tombstone`` true instead of a ``value``. Bytes that the codecs do not read are base64 in
    ``key_base64`` and ``value_base64``, beside the ``fault``. A heartbeat has a ``heartbeat`` instead of key and
    value, of which all but the ``writer`` is missing once the writer was retired.
    """
    offset, key, value, timestamp_ms, is_heartbeat = record
    document: dict[str, Any] = {"partition": partition, "offset": offset, "timestamp_ms": timestamp_ms}
    if is_heartbeat:
        return {**document, "heartbeat": heartbeat_document(key, value)}
    return {**document, **_key_members(spec, key, timestamp_ms), **_value_members(spec, value)}


def heartbeat_document(key: bytes, value: bytes | None) -> dict[str, Any]:
    """A heartbeat's writer, and what it states."""
    writer = {"writer": writer_of(key)}
    if value is None:
        return writer
    try:
        return {**writer, **msgspec.structs.asdict(Heartbeat.parse(value))}
    except ValueError as error:
        return {**writer, "fault": str(error)}


def _key_members(spec: StoreSpec, key: bytes, timestamp_ms: int) -> dict[str, Any]:
    try:
        plain, times_ms = spec.stored_keys.split_changelog(key, timestamp_ms)
    except ValueError as error:
        return {"key_base64": _base64(key), "fault": str(error)}
    except SchemaUnavailable as unavailable:
        return {"key_base64": _base64(key), "fault": unavailable.detail}
    return {**_decoded("key", spec.key_codec, plain), **_times(spec, times_ms)}


def _times(spec: StoreSpec, times_ms: tuple[int, ...]) -> dict[str, int]:
    """The times of a key, named as in answers, or the order that it has in their place."""
    kind = spec.store_kind
    shown_ms = kind.shown_times_ms(spec, [(time_ms,) for time_ms in times_ms])
    return {name: time_ms for name, (time_ms,) in zip(kind.time_names, shown_ms, strict=True)}


def _value_members(spec: StoreSpec, value: bytes | None) -> dict[str, Any]:
    return {"tombstone": True} if value is None else _decoded("value", spec.value_codec, value)


def _decoded(name: str, codec: KeyCodec | ValueCodec, raw: bytes) -> dict[str, Any]:
    try:
        fault = codec.fault(raw)
    except SchemaUnavailable as unavailable:
        fault = unavailable.detail
    if fault is not None:
        return {f"{name}_base64": _base64(without_headers(codec, raw)), "fault": fault}
    # Line ends are white space in JSON, and a document takes one line.
    return {name: JsonText(codec.to_json(raw).decode().replace("\n", " ").replace("\r", " "))}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def record_json(document: Mapping[str, Any]) -> str:
    """A record's document as JSON text on one line."""
    return f"{{{', '.join(f'{json.dumps(name)}: {_json(value)}' for name, value in document.items())}}}"


def _json(value: Any) -> str:
    return value if isinstance(value, JsonText) else json.dumps(value, ensure_ascii=False)


def record_line(document: Mapping[str, Any]) -> str:
    """A record's document as a line for people."""
    when = time_text(document["timestamp_ms"])
    return f"{document['partition']}  {document['offset']}  {when}  {_content(document)}"


def _content(document: Mapping[str, Any]) -> str:
    if "heartbeat" in document:
        return _heartbeat_text(document["heartbeat"])
    key = _json(document.get("key", document.get("key_base64")))
    times = "".join(f" {name}={time_text(document[name])}" for name in ("start_ms", "end_ms") if name in document)
    times += "".join(f" {name}={document[name]}" for name in ("order", "key_schema_id") if name in document)
    fault = f"  (not readable: {document['fault']})" if "fault" in document else ""
    if "tombstone" in document:
        return f"{key}{times}  (tombstone){fault}"
    value = _json(document.get("value", document.get("value_base64")))
    return f"{key}{times}  {value}{fault}"


def _heartbeat_text(heartbeat: Mapping[str, Any]) -> str:
    writer = f"heartbeat of {heartbeat['writer']}"
    if "batch_id" not in heartbeat:
        return f"{writer}: {heartbeat.get('fault', 'retired')}"
    as_of_ms = heartbeat["as_of_ms"]
    as_of = "as of an unknown time" if as_of_ms is None else f"as of {time_text(as_of_ms)}"
    return f"{writer}: {as_of}, batch {heartbeat['batch_id']}{', filling' if heartbeat['filling'] else ''}"
