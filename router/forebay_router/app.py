"""A router's REST interface: the same paths as a worker's, for every partition."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from forebay.codecs import from_segment
from forebay.errors import (
    BadKey,
    BadParameter,
    DeadlineExceeded,
    LagExceedsTolerance,
    NoReplica,
    NotReady,
    Overloaded,
    PositionOfAnotherLog,
    Problem,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
)
from forebay.lag import epoch_ms
from forebay.rest.answers import json_answer, problem_answer
from forebay.rest.application import make_application, respond, responses
from forebay.rest.batches import read_batch_keys
from forebay.rest.documents import (
    key_metadata_document,
    metadata_document,
    store_metadata_document,
    stores_document,
)
from forebay.rest.parameters import ReadParameters, parse_parameters
from forebay.rest.routes import BATCH_ROUTE, READ_ROUTES, ReadRoute, add_batch_route, add_read_route
from forebay_router.metrics import RouterMetrics
from forebay_router.router import Router
from forebay_router.scatter import Gather, ScanRefused, batch_get

_READ_PROBLEMS: tuple[type[Problem], ...] = (
    BadKey,
    BadParameter,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
    PositionOfAnotherLog,
    LagExceedsTolerance,
    Overloaded,
    NoReplica,
    NotReady,
    DeadlineExceeded,
)


def make_app(router: Router, metrics: RouterMetrics) -> FastAPI:
    """The application of a router; it begins to learn of workers when the application starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.cluster.start()
        yield
        await router.cluster.stop()
        router.upstreams.close()

    app = make_application(
        "router",
        cors_allow_origins=router.settings.cors_allow_origins,
        ready=router.readiness,
        registry=metrics.registry(),
        lifespan=lifespan,
    )
    for route in READ_ROUTES:
        add_read_route(app, route, _READ_PROBLEMS, _endpoint(router, route, metrics))
    add_batch_route(app, _READ_PROBLEMS, _batch_endpoint(router, metrics))
    _add_documents(app, router)
    return app


def _endpoint(router: Router, route: ReadRoute, metrics: RouterMetrics) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            parameters = parse_parameters(request.scope["query_string"], route.parameters)
            response = await _read(router, route, request, parameters)
        except Problem as problem:
            response = respond(problem_answer(problem))
        metrics.reads[route.path, response.status_code] += 1
        return response

    return endpoint


async def _read(router: Router, route: ReadRoute, request: Request, parameters: ReadParameters) -> Response:
    store, key = request.path_params["store"], request.path_params.get("key")
    segment = None if key is None else key.encode("ascii")
    path, query = request.scope["path"].encode("ascii"), request.scope["query_string"]
    if route.scan is None:
        assert segment is not None
        return respond(await router.key(store, segment, path, query, parameters))
    admission = contextlib.ExitStack()
    admission.enter_context(router.admitted())
    try:
        gather = await Gather.begin(router, route.scan, store, segment, path, query, parameters)
    except ScanRefused as refused:
        admission.close()
        return respond(refused.answer)
    except BaseException:
        admission.close()
        raise
    # In flight until the last piece is sent, or the client has gone.
    return StreamingResponse(
        _until_sent(gather.body(), admission),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


async def _until_sent(body: AsyncIterator[bytes], admission: contextlib.ExitStack) -> AsyncIterator[bytes]:
    with admission:
        async for piece in body:
            yield piece


def _batch_endpoint(router: Router, metrics: RouterMetrics) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        query = request.scope["query_string"]
        try:
            parameters = parse_parameters(query, BATCH_ROUTE.parameters)
            keys = read_batch_keys(await request.body())
            with router.admitted():
                answer = await batch_get(router, request.path_params["store"], keys, query, parameters)
        except Problem as problem:
            answer = problem_answer(problem)
        metrics.reads[BATCH_ROUTE.path, answer.status] += 1
        return respond(answer)

    return endpoint


def _add_documents(app: FastAPI, router: Router) -> None:
    cluster = router.cluster
    incarnation, sequence = int(epoch_ms()), itertools.count(1)

    def get(path: str, operation_id: str, *problems: type[Problem]) -> Callable[..., object]:
        return app.get(
            path,
            tags=["metadata"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(NotReady, *problems),
        )

    def application_id() -> str:
        if cluster.application_id is None:
            raise NotReady("The router has not reached any worker yet.", retry_after_s=1)
        return cluster.application_id

    @get("/v1/stores", "list_stores")
    async def stores() -> Response:
        """Every store: kind, codecs, partitions."""
        return respond(
            json_answer(stores_document(application_id(), cluster.fingerprint, cluster.metadata.stores.values()))
        )

    @get("/v1/stores/{store}", "describe_store", UnknownStore)
    async def store(store: str) -> Response:
        """One store: kind, codecs, partitions."""
        application_id()
        return respond(json_answer(cluster.spec(store).document()))

    @get("/v1/metadata", "all_metadata")
    async def all_metadata() -> Response:
        """StreamsMetadata of every host, as of the newest generation known here."""
        return respond(json_answer(metadata_document(application_id(), cluster.fingerprint, cluster.metadata)))

    @get("/v1/metadata/stores/{store}", "metadata_for_store", UnknownStore)
    async def store_metadata(store: str) -> Response:
        """The hosts that are active for a store, and those that hold standbys."""
        application_id()
        return respond(json_answer(store_metadata_document(store, cluster.metadata)))

    @get("/v1/metadata/stores/{store}/keys/{key}", "metadata_for_key", UnknownStore, BadKey)
    async def key_metadata(store: str, key: str) -> Response:
        """KeyQueryMetadata: active host, standby hosts and partition of a key."""
        application_id()
        codec = cluster.spec(store).key_codec
        plain = from_segment(codec, key.encode("ascii"))
        found = cluster.metadata.key_query_metadata(store, plain)
        return respond(json_answer(key_metadata_document(store, codec, plain, found)))

    @get("/v1/lags", "lags")
    async def lags() -> Response:
        """Per store, partition and live worker: position, end offset, lag, role, as last reported."""
        return respond(json_answer({"lags": cluster.rows()}))

    @get("/v1/status", "status")
    async def status() -> Response:
        """This process: tier, incarnation, sequence, state, generation, workers."""
        generation = cluster.metadata.map.generation
        return respond(
            json_answer(
                {
                    "tier": "router",
                    "application_id": cluster.application_id,
                    "process_id": str(os.getpid()),
                    "incarnation": incarnation,
                    "sequence": next(sequence),
                    "state": "ready" if router.readiness() is None else "not-ready",
                    "generation": {"incarnation": generation.incarnation, "generation": generation.number},
                    "workers": [
                        {"host": str(host), "live": worker.live, "suspect": worker.suspect}
                        for host, worker in sorted(cluster.workers.items())
                    ],
                }
            )
        )
