"""The routes that describe rather than read: stores, metadata, lags, status; the same on both tiers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.responses import Response

from forebay.codecs import from_segment
from forebay.errors import BadKey, NotReady, PartitionerMissing, Problem, UnknownPartitioner, UnknownStore
from forebay.identity import IDENTITY_PATH, Identity
from forebay.metadata import StreamsMetadataState
from forebay.rest.answers import json_answer
from forebay.rest.application import respond, responses
from forebay.rest.documents import (
    key_metadata_document,
    metadata_document,
    store_metadata_document,
    stores_document,
)
from forebay.rest.schemas import (
    IDENTITY_SCHEMA,
    KEY_METADATA_SCHEMA,
    LAGS_SCHEMA,
    METADATA_SCHEMA,
    STORE_METADATA_SCHEMA,
    STORE_SCHEMA,
    STORES_SCHEMA,
    Schema,
)
from forebay.topology import StoreSpec


class Introspectable(Protocol):
    """A process that these routes describe."""

    @property
    def metadata(self) -> StreamsMetadataState:
        """Which worker holds what, as far as is known here."""
        ...

    def identity(self) -> Identity:
        """Which process this is."""
        ...

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint; raises ``NotReady`` while they are unknown."""
        ...

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``UnknownStore`` or ``NotReady``."""
        ...

    def replicas_document(self) -> list[dict[str, Any]]:
        """Every replica known here: store, partition, host, role, position, end offset, lag."""
        ...


def add_document_routes(
    app: FastAPI,
    described: Introspectable,
    status_document: Callable[[], Awaitable[dict[str, Any]]],
    status_schema: Schema,
) -> None:
    """Add the routes to an application; ``status_document`` is what ``/v1/status`` answers."""

    def get(path: str, operation_id: str, schema: Schema, *problems: type[Problem]) -> Callable[..., object]:
        return app.get(
            path,
            tags=["metadata"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(NotReady, *problems, schema=schema),
        )

    @get(IDENTITY_PATH, "identity", IDENTITY_SCHEMA)
    async def identity() -> Response:
        """Which process answers here; to anybody, since routers read it before they send their token."""
        return respond(json_answer(described.identity().document()))

    @get("/v1/stores", "list_stores", STORES_SCHEMA)
    async def stores() -> Response:
        """Every store: kind, codecs, partitions."""
        document = stores_document(*described.application(), described.metadata.stores.values())
        return respond(json_answer(document))

    @get("/v1/stores/{store}", "describe_store", STORE_SCHEMA, UnknownStore)
    async def store(store: str) -> Response:
        """One store: kind, codecs, partitions."""
        return respond(json_answer(described.spec(store).document()))

    @get("/v1/metadata", "all_metadata", METADATA_SCHEMA)
    async def all_metadata() -> Response:
        """StreamsMetadata of every host, as of the newest generation known here."""
        return respond(json_answer(metadata_document(*described.application(), described.metadata)))

    @get("/v1/metadata/stores/{store}", "metadata_for_store", STORE_METADATA_SCHEMA, UnknownStore)
    async def store_metadata(store: str) -> Response:
        """The hosts that are active for a store, and those that hold standbys."""
        described.spec(store)
        return respond(json_answer(store_metadata_document(store, described.metadata)))

    @get(
        "/v1/metadata/stores/{store}/keys/{key}",
        "metadata_for_key",
        KEY_METADATA_SCHEMA,
        UnknownStore,
        BadKey,
        UnknownPartitioner,
        PartitionerMissing,
    )
    async def key_metadata(store: str, key: str) -> Response:
        """KeyQueryMetadata: active host, standby hosts and partition of a key."""
        codec = described.spec(store).key_codec
        plain = from_segment(codec, key.encode("ascii"))
        found = described.metadata.key_query_metadata(store, plain)
        return respond(json_answer(key_metadata_document(store, codec, plain, found)))

    @get("/v1/lags", "lags", LAGS_SCHEMA)
    async def lags() -> Response:
        """Per store, partition and host known here: position, end offset, lag, role."""
        return respond(json_answer({"lags": described.replicas_document()}))

    @get("/v1/status", "status", status_schema)
    async def status() -> Response:
        """This process: tier, incarnation, sequence, state, generation, and more by tier."""
        return respond(json_answer(await status_document()))
