"""The routes that describe rather than read: stores, metadata, lags, status; the same on both tiers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import Struct

from forebay.codecs.keys import from_segment
from forebay.errors import (
    BadKey,
    BadParameter,
    NotReady,
    PartitionerMissing,
    Problem,
    UnknownPartitioner,
    UnknownStore,
)
from forebay.event_loop_turns import in_turns
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay.wire.answer_schemas.components import reference
from forebay.wire.answer_schemas.status import IDENTITY_PATH, Identity, LagsAnswer
from forebay.wire.answer_schemas.stores import (
    KeyMetadataAnswer,
    MapAnswer,
    StoreDescription,
    StoreMetadataAnswer,
    StoresAnswer,
    key_metadata_answer,
    map_answer,
    store_description,
    store_metadata_answer,
    stores_answer,
)
from forebay.wire.answers import json_answer
from forebay.wire.parameters import partition_parameter, text_parameters
from forebay_web.application import respond, responses
from forebay_web.request_guard import sees


class Introspectable(Protocol):
    """A process that these routes describe."""

    @property
    def metadata(self) -> StreamsMetadataState:
        """Which worker holds what, as far as is known here."""

    def identity(self) -> Identity:
        """Which process this is."""

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint; raises ``NotReady`` while they are unknown."""

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``UnknownStore`` or ``NotReady``."""

    def replica_rows(self, store: str | None = None) -> Iterable[object]:
        """Every replica known here, or those of a store: objects or JSON values of the form ``ReplicaRow``."""


def add_document_routes(
    app: FastAPI,
    described: Introspectable,
    status_of: Callable[[], Awaitable[Struct]],
    status_shape: type[Struct],
) -> None:
    """Add the routes to an application; ``status_of`` gives what ``/v1/status`` answers."""

    def get(
        path: str,
        operation_id: str,
        shape: type[Struct],
        *problems: type[Problem],
        parameter: dict[str, Any] | None = None,
    ) -> Callable[..., object]:
        return app.get(
            path,
            tags=["metadata"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(NotReady, BadParameter, *problems, schema=reference(shape)),
            openapi_extra=None if parameter is None else {"parameters": [parameter]},
        )

    @get(IDENTITY_PATH, "identity", Identity)
    async def identity(request: Request) -> Response:
        """Which process answers here; to anybody, since routers read it before they send their token."""
        _take_none(request)
        return respond(json_answer(described.identity()))

    @get("/v1/stores", "list_stores", StoresAnswer)
    async def stores(request: Request) -> Response:
        """Every store: kind, codecs, partitions."""
        _take_none(request)
        shown = [spec for name, spec in described.metadata.stores.items() if sees(request.scope, name)]
        listed = stores_answer(*described.application(), shown)
        return respond(json_answer(listed))

    @get("/v1/stores/{store}", "describe_store", StoreDescription, UnknownStore)
    async def store(request: Request, store: str) -> Response:
        """One store: kind, codecs, partitions."""
        _take_none(request)
        return respond(json_answer(store_description(described.spec(store))))

    @get("/v1/metadata", "all_metadata", MapAnswer)
    async def all_metadata(request: Request) -> Response:
        """StreamsMetadata of every host, as of the newest generation known here."""
        _take_none(request)
        shown = described.metadata.limited_to(partial(sees, request.scope))
        return respond(json_answer(map_answer(*described.application(), shown)))

    @get("/v1/metadata/stores/{store}", "metadata_for_store", StoreMetadataAnswer, UnknownStore)
    async def store_metadata(request: Request, store: str) -> Response:
        """The hosts that are active for a store, and those that hold standbys."""
        _take_none(request)
        described.spec(store)
        return respond(json_answer(store_metadata_answer(store, described.metadata)))

    @get(
        "/v1/metadata/stores/{store}/keys/{key}",
        "metadata_for_key",
        KeyMetadataAnswer,
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
        return respond(json_answer(key_metadata_answer(store, codec, plain, found)))

    @get(
        "/v1/lags",
        "lags",
        LagsAnswer,
        UnknownStore,
        parameter=_parameter("store", {"type": "string"}, "Only the replicas of this store."),
    )
    async def lags(request: Request) -> Response:
        """Per store, partition and host known here: position, end offset, lag, role."""
        store = text_parameters(request.scope["query_string"], "store").get("store")
        if store is not None:
            described.spec(store)
        rows = (row for row in described.replica_rows(store) if sees(request.scope, _store_of(row)))
        return respond(json_answer({"lags": await in_turns(rows)}))

    @get("/v1/status", "status", status_shape)
    async def status(request: Request) -> Response:
        """This process: tier, incarnation, sequence, state, generation, and more by tier."""
        _take_none(request)
        return respond(json_answer(await status_of()))


def _store_of(row: Any) -> str:
    return str(row["store"] if isinstance(row, Mapping) else row.store)


def _take_none(request: Request) -> None:
    """Refuse every query parameter: one that is misspelt, or not of this path, must not be ignored."""
    text_parameters(request.scope["query_string"])


def _parameter(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
