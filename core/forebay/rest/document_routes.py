"""The routes that describe rather than read: stores, metadata, lags, status; the same on both tiers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.codecs import from_segment
from forebay.errors import (
    BadKey,
    BadParameter,
    NotReady,
    PartitionerMissing,
    Problem,
    UnknownPartitioner,
    UnknownStore,
)
from forebay.metadata import StreamsMetadataState
from forebay.process_identity import IDENTITY_PATH, Identity
from forebay.rest.answers import json_answer
from forebay.rest.application import respond, responses
from forebay.rest.documents import (
    key_metadata_document,
    metadata_document,
    store_metadata_document,
    stores_document,
)
from forebay.rest.json_parts import json_answer_in_turns
from forebay.rest.parameters import partition_parameter, text_parameters
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

    def replicas_document(self) -> Iterator[dict[str, Any]]:
        """Every replica known here: store, partition, host, role, position, end offset, lag; made one by one."""
        ...


def add_document_routes(
    app: FastAPI,
    described: Introspectable,
    status_document: Callable[[], Awaitable[dict[str, Any]]],
    status_schema: Schema,
) -> None:
    """Add the routes to an application; ``status_document`` is what ``/v1/status`` answers."""

    def get(
        path: str,
        operation_id: str,
        schema: Schema,
        *problems: type[Problem],
        parameter: dict[str, Any] | None = None,
    ) -> Callable[..., object]:
        return app.get(
            path,
            tags=["metadata"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(NotReady, BadParameter, *problems, schema=schema),
            openapi_extra=None if parameter is None else {"parameters": [parameter]},
        )

    @get(IDENTITY_PATH, "identity", IDENTITY_SCHEMA)
    async def identity(request: Request) -> Response:
        """Which process answers here; to anybody, since routers read it before they send their token."""
        _take_none(request)
        return respond(json_answer(described.identity().document()))

    @get("/v1/stores", "list_stores", STORES_SCHEMA)
    async def stores(request: Request) -> Response:
        """Every store: kind, codecs, partitions."""
        _take_none(request)
        document = stores_document(*described.application(), described.metadata.stores.values())
        return respond(json_answer(document))

    @get("/v1/stores/{store}", "describe_store", STORE_SCHEMA, UnknownStore)
    async def store(request: Request, store: str) -> Response:
        """One store: kind, codecs, partitions."""
        _take_none(request)
        return respond(json_answer(described.spec(store).document()))

    @get("/v1/metadata", "all_metadata", METADATA_SCHEMA)
    async def all_metadata(request: Request) -> Response:
        """StreamsMetadata of every host, as of the newest generation known here."""
        _take_none(request)
        document = metadata_document(*described.application(), described.metadata)
        return respond(await json_answer_in_turns(document))

    @get("/v1/metadata/stores/{store}", "metadata_for_store", STORE_METADATA_SCHEMA, UnknownStore)
    async def store_metadata(request: Request, store: str) -> Response:
        """The hosts that are active for a store, and those that hold standbys."""
        _take_none(request)
        described.spec(store)
        return respond(await json_answer_in_turns(store_metadata_document(store, described.metadata)))

    @get(
        "/v1/metadata/stores/{store}/keys/{key}",
        "metadata_for_key",
        KEY_METADATA_SCHEMA,
        UnknownStore,
        BadKey,
        UnknownPartitioner,
        PartitionerMissing,
        parameter=_parameter(
            "partition",
            {"type": "integer", "minimum": 0},
            "The key's partition, by the caller's own partitioner; without it, that of the store decides.",
        ),
    )
    async def key_metadata(request: Request, store: str, key: str) -> Response:
        """KeyQueryMetadata: active host, standby hosts and partition of a key."""
        spec = described.spec(store)
        codec = spec.key_codec
        partition = partition_parameter(request.scope["query_string"], spec.partitions)
        plain = from_segment(codec, key.encode("ascii"))
        metadata = described.metadata
        if partition is None:
            found = metadata.key_query_metadata(store, plain)
        else:
            found = metadata.partition_metadata(store, partition)
        return respond(json_answer(key_metadata_document(store, codec, plain, found)))

    @get(
        "/v1/lags",
        "lags",
        LAGS_SCHEMA,
        UnknownStore,
        parameter=_parameter("store", {"type": "string"}, "Only the replicas of this store."),
    )
    async def lags(request: Request) -> Response:
        """Per store, partition and host known here: position, end offset, lag, role."""
        store = text_parameters(request.scope["query_string"], "store").get("store")
        rows = described.replicas_document()
        if store is not None:
            name = described.spec(store).name
            rows = (row for row in rows if row["store"] == name)
        return respond(await json_answer_in_turns({"lags": rows}))

    @get("/v1/status", "status", status_schema)
    async def status(request: Request) -> Response:
        """This process: tier, incarnation, sequence, state, generation, and more by tier."""
        _take_none(request)
        return respond(await json_answer_in_turns(await status_document()))


def _take_none(request: Request) -> None:
    """Refuse every query parameter: one that is misspelt, or not of this path, must not be ignored."""
    text_parameters(request.scope["query_string"])


def _parameter(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
