"""A worker's routes for the changes of many keys: clients' streams, and routers' reads of pages."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.errors import Problem
from forebay.wire.answers import NO_STORE, HttpAnswer, problem_answer
from forebay.wire.batches import MAX_BODY_BYTES
from forebay.wire.parameters import WORKER_PARAMETERS, ReadParameters, parse_parameters
from forebay_web.application import body_of, respond
from forebay_web.request_guard import require_followed
from forebay_web.routes import STORE_CHANGES_ROUTE, Endpoint, crashes_counted
from forebay_web.store_changes.pages import CHANGES_MEDIA_TYPE, ChangesPage, PagesRequest, encode_outcomes
from forebay_web.store_changes.selection import KeySelection, make_selection
from forebay_web.streamed_response import for_client
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.reads.store_changes import StoreChanges, held_partitions
from forebay_worker.worker import Worker

_PARAMETERS = STORE_CHANGES_ROUTE.parameters | WORKER_PARAMETERS
_HEAD = b"content-type: " + CHANGES_MEDIA_TYPE.encode() + b"\r\n" + NO_STORE


def add_pages_route(app: FastAPI, worker: Worker, metrics: WorkerMetrics) -> None:
    """Add ``POST /v1/stores/{store}/changes``, which is for routers."""
    path = STORE_CHANGES_ROUTE.path
    pages = crashes_counted(path, _pages_endpoint(worker, metrics), metrics.count)
    app.router.add_route(path, pages, methods=["POST"], include_in_schema=False)


def _followed(worker: Worker, request: Request) -> tuple[KeySelection, ReadParameters]:
    """What a request follows, which its access must allow, and its parameters; raises ``Problem``."""
    parameters = parse_parameters(request.scope["query_string"], _PARAMETERS)
    spec = worker.spec(request.path_params["store"])
    selection = make_selection(parameters.written(spec), parameters)
    require_followed(request.scope, selection.spec, parameters)
    return selection, parameters


def followed_source(worker: Worker, request: Request) -> tuple[StoreChanges, ReadParameters, int]:
    """What a client's request follows, its parameters, and its time-out in milliseconds; raises ``Problem``."""
    selection, parameters = _followed(worker, request)
    held = held_partitions(worker.admission, selection, parameters.partition)
    source = StoreChanges(worker.admission, selection, parameters, held)
    return source, parameters, parameters.allowed_ms(worker.settings.request_timeout_ms)


def _pages_endpoint(worker: Worker, metrics: WorkerMetrics) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        peer = worker.limits.peers.of(request.scope)
        with worker.limits.memory_of(peer) as memory:
            try:
                selection, parameters = _followed(worker, request)
                body = await body_of(request, MAX_BODY_BYTES, memory)
                wanted = PagesRequest.decode(body, selection.spec.partitions)
                changes = StoreChanges(worker.admission, selection, parameters)
                limit = worker.limits.waiting if wanted.wait_ms else worker.limits.requests
                with limit.held_by(peer, 1):
                    answer = await for_client(request.receive, _pages(changes, wanted))
            except Problem as problem:
                answer = problem_answer(problem)
        metrics.count(STORE_CHANGES_ROUTE.path, answer.status)
        return respond(answer)

    return endpoint


async def _pages(changes: StoreChanges, request: PagesRequest) -> HttpAnswer:
    """One partition's page, or the outcome of a poll; raises ``Problem``."""
    if not request.wait_ms:
        ((partition, cursor),) = request.cursors.items()
        page = await changes.page(partition, cursor, state=request.state)
        return HttpAnswer(200, _HEAD, page.encode())
    outcomes, waited_ms = await changes.outcomes(request)
    documents: dict[int, Any] = {
        partition: outcome if isinstance(outcome, ChangesPage) else outcome.document()
        for partition, outcome in outcomes.items()
    }
    return HttpAnswer(200, _HEAD + b"forebay-waited-ms: %d\r\n" % waited_ms, encode_outcomes(documents))
