"""Documents that both tiers answer with: stores, metadata, and their OpenAPI schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from forebay.codecs import KeyCodec
from forebay.metadata import KeyQueryMetadata, StreamsMetadata, StreamsMetadataState
from forebay.topology import StoreSpec


def stores_document(application_id: str, fingerprint: str, stores: Iterable[StoreSpec]) -> dict[str, Any]:
    """``GET /v1/stores``."""
    return {
        "application_id": application_id,
        "topology": fingerprint,
        "stores": [spec.document() for spec in stores],
    }


def metadata_document(application_id: str, fingerprint: str, state: StreamsMetadataState) -> dict[str, Any]:
    """``GET /v1/metadata``; before the first assignment its generation is 0 and it names no hosts."""
    return {"application_id": application_id, "topology": fingerprint, **state.map.document()}


def store_metadata_document(store: str, state: StreamsMetadataState) -> dict[str, Any]:
    """``GET /v1/metadata/stores/{store}``."""

    def documents(hosts: tuple[StreamsMetadata, ...]) -> list[dict[str, Any]]:
        return [host.document() for host in hosts]

    return {
        "store": store,
        "active": documents(state.all_metadata_for_store(store)),
        "standby": documents(state.all_standby_metadata_for_store(store)),
    }


def key_metadata_document(store: str, codec: KeyCodec, plain: bytes, metadata: KeyQueryMetadata) -> dict[str, Any]:
    """``GET /v1/metadata/stores/{store}/keys/{key}``."""
    return {"store": store, "key": json.loads(codec.to_json(plain)), **metadata.document()}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


_FIGURE = {"type": ["integer", "null"], "minimum": 0}
LAG_SCHEMA = _object({"record_lag": _FIGURE, "time_lag_ms": _FIGURE, "age_ms": _FIGURE})
ROLE_SCHEMA = {"type": "string", "enum": ["active", "restoring", "standby"]}
_PROVENANCE = {
    "partition": {"type": "integer", "minimum": 0},
    "position": {"type": "string"},
    "role": ROLE_SCHEMA,
    "host": {"type": "string"},
    "lag": LAG_SCHEMA,
}
KEY_SCHEMA = _object({"store": {"type": "string"}, "key": {}, "value": {}, **_PROVENANCE})
BATCH_SCHEMA = _object({"results": {"type": "array", "items": {"type": "object"}}})
_SPAN = {"start_ms": {"type": "integer"}, "end_ms": {"type": "integer"}, "value": {}}
_ITEMS: dict[str, dict[str, Any]] = {
    "entries": {"key": {}, "value": {}},
    "windows": _SPAN,
    "sessions": _SPAN,
    "versions": {"valid_from_ms": {"type": "integer"}, "value": {}},
}


def list_schema(items: str, keyed: bool) -> dict[str, Any]:
    """The schema of a list answer: of one key, or of all."""
    item = _ITEMS[items] if keyed or items == "entries" else {"key": {}, **_ITEMS[items]}
    return _object(
        {
            "store": {"type": "string"},
            **({"key": {}} if keyed else {}),
            items: {"type": "array", "items": _object(item)},
            "next": {"type": ["string", "null"]},
            "complete": {"type": "boolean"},
            "lag": LAG_SCHEMA,
            "partitions": {"type": "array", "items": _object(_PROVENANCE)},
        },
        {"missing": {"type": "array", "items": {"type": "integer"}}},
    )
