"""Documents that both tiers answer with: stores and metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from forebay.codecs import KeyCodec
from forebay.metadata import ClusterMap, KeyQueryMetadata, StreamsMetadata, StreamsMetadataState
from forebay.topology import StoreSpec


def stores_document(application_id: str, fingerprint: str, stores: Iterable[StoreSpec]) -> dict[str, Any]:
    """``GET /v1/stores``."""
    return {
        "application_id": application_id,
        "topology": fingerprint,
        "stores": [spec.document() for spec in stores],
    }


def metadata_document(application_id: str, fingerprint: str, state: StreamsMetadataState) -> dict[str, Any]:
    """``GET /v1/metadata``; before the first assignment its generation is 0 and it lists no hosts.

    Those are an iterator, which makes the document of each.
    """
    return {
        "application_id": application_id,
        "topology": fingerprint,
        **ClusterMap(state.map.generation).document(),
        "hosts": (host.document() for host in state.map.hosts),
    }


def store_metadata_document(store: str, state: StreamsMetadataState) -> dict[str, Any]:
    """``GET /v1/metadata/stores/{store}``."""

    def documents(hosts: tuple[StreamsMetadata, ...]) -> Iterator[dict[str, Any]]:
        return (host.document() for host in hosts)

    return {
        "store": store,
        "active": documents(state.all_metadata_for_store(store)),
        "standby": documents(state.all_standby_metadata_for_store(store)),
    }


def key_metadata_document(store: str, codec: KeyCodec, plain: bytes, metadata: KeyQueryMetadata) -> dict[str, Any]:
    """``GET /v1/metadata/stores/{store}/keys/{key}``."""
    return {"store": store, "key": json.loads(codec.to_json(plain)), **metadata.document()}
