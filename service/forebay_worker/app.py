"""A worker's REST interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.codecs import from_segment
from forebay.errors import (
    BadKey,
    BadParameter,
    LagExceedsTolerance,
    LogDiverged,
    NotActive,
    NotHostedHere,
    NotReady,
    PartitionerMismatch,
    PositionNotReached,
    PositionOfAnotherLog,
    Problem,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
)
from forebay.lag import boot_ms
from forebay.rest.answers import Answer, json_answer, problem_answer
from forebay.rest.application import make_application, respond, responses
from forebay.rest.documents import (
    KEY_SCHEMA,
    WINDOWS_SCHEMA,
    key_metadata_document,
    metadata_document,
    store_metadata_document,
    stores_document,
)
from forebay.rest.parameters import (
    KEY_PARAMETERS,
    WINDOW_PARAMETERS,
    ReadParameters,
    openapi_parameters,
    parse_parameters,
)
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.queries.reads import Refused
from forebay_worker.worker import Worker

_WAIT_STEP_S = 0.005
_READ_PROBLEMS: tuple[type[Problem], ...] = (
    BadKey,
    BadParameter,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
    PositionOfAnotherLog,
    LagExceedsTolerance,
    PositionNotReached,
    NotActive,
    NotHostedHere,
    NotReady,
    LogDiverged,
    PartitionerMismatch,
)

Read = Callable[[str, bytes, ReadParameters], Answer]


def make_app(worker: Worker) -> FastAPI:
    """The application of a worker that was made, whether started or not."""
    metrics = WorkerMetrics(worker)
    app = make_application(
        "worker",
        cors_allow_origins=worker.settings.cors_allow_origins,
        ready=worker.readiness,
        registry=metrics.registry(),
    )
    _add_reads(app, worker, metrics)
    _add_documents(app, worker)
    return app


def _add_reads(app: FastAPI, worker: Worker, metrics: WorkerMetrics) -> None:
    def route(path: str, read: Read, known: frozenset[str], schema: dict[str, object], summary: str) -> None:
        async def endpoint(request: Request) -> Response:
            answer = await _answer(worker, read, request, known)
            metrics.reads[path, answer.status] += 1
            return respond(answer)

        app.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            tags=["reads"],
            summary=summary,
            operation_id=summary.lower().replace(" ", "_"),
            response_class=Response,
            responses=responses(*_READ_PROBLEMS, schema=schema),
            openapi_extra={"parameters": [*_path_parameters("store", "key"), *openapi_parameters(known)]},
        )

    route("/v1/stores/{store}/keys/{key}", worker.reads.key, KEY_PARAMETERS, KEY_SCHEMA, "Read one key")
    route(
        "/v1/stores/{store}/keys/{key}/windows",
        worker.reads.windows,
        WINDOW_PARAMETERS,
        WINDOWS_SCHEMA,
        "Read windows of one key",
    )


def _path_parameters(*names: str) -> list[dict[str, object]]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


async def _answer(worker: Worker, read: Read, request: Request, known: frozenset[str]) -> Answer:
    """Answer a read, waiting for the bound to be met as long as the request allows."""
    store, segment = request.path_params["store"], request.path_params["key"].encode("ascii")
    try:
        parameters = parse_parameters(request.scope["query_string"], known)
    except Problem as problem:
        return problem_answer(problem)
    allowed_ms = parameters.timeout_ms or worker.settings.request_timeout_ms
    wait_ms = min(parameters.wait_ms, allowed_ms, worker.settings.max_request_timeout_ms)
    until = boot_ms() + wait_ms
    while True:
        try:
            return read(store, segment, parameters)
        except Refused as refused:
            waits = isinstance(refused.problem, LagExceedsTolerance | PositionNotReached | NotReady)
            if not waits or boot_ms() >= until:
                return refused.answer()
        except Problem as problem:
            return problem_answer(problem)
        await asyncio.sleep(_WAIT_STEP_S)


def _add_documents(app: FastAPI, worker: Worker) -> None:
    topology, metadata = worker.topology, worker.metadata

    def get(path: str, operation_id: str, *problems: type[Problem]) -> Callable[..., object]:
        return app.get(
            path,
            tags=["metadata"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(*problems),
        )

    @get("/v1/stores", "list_stores")
    async def stores() -> Response:
        """Every store: kind, codecs, partitions."""
        return respond(
            json_answer(stores_document(topology.application_id, topology.fingerprint, topology.stores.values()))
        )

    @get("/v1/stores/{store}", "describe_store", UnknownStore)
    async def store(store: str) -> Response:
        """One store: kind, codecs, partitions."""
        return respond(json_answer(worker.reads.spec(store).document()))

    @get("/v1/metadata", "all_metadata")
    async def all_metadata() -> Response:
        """StreamsMetadata of every host, as of the newest generation known here."""
        return respond(json_answer(metadata_document(topology.application_id, topology.fingerprint, metadata)))

    @get("/v1/metadata/stores/{store}", "metadata_for_store", UnknownStore, NotReady)
    async def store_metadata(store: str) -> Response:
        """The hosts that are active for a store, and those that hold standbys."""
        return respond(json_answer(store_metadata_document(store, metadata)))

    @get("/v1/metadata/stores/{store}/keys/{key}", "metadata_for_key", UnknownStore, NotReady, BadKey)
    async def key_metadata(store: str, key: str) -> Response:
        """KeyQueryMetadata: active host, standby hosts and partition of a key."""
        spec = worker.reads.spec(store)
        plain = from_segment(spec.key_codec, key.encode("ascii"))
        found = metadata.key_query_metadata(store, plain)
        return respond(json_answer(key_metadata_document(store, spec.key_codec, plain, found)))

    @get("/v1/lags", "lags")
    async def lags() -> Response:
        """Per store and partition held here: position, end offset, lag, role."""
        return respond(json_answer({"lags": worker.replicas_document()}))

    @get("/v1/status", "status")
    async def status() -> Response:
        """This process: tier, incarnation, sequence, state, generation, tasks."""
        return respond(json_answer(worker.status_document()))
