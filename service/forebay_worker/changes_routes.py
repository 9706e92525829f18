"""A worker's routes for the changes of many keys: clients' streams, and routers' reads of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.errors import Problem
from forebay.lag import Tolerance
from forebay.wire.answers import NO_STORE, HttpAnswer, problem_answer
from forebay.wire.batches import MAX_BODY_BYTES
from forebay.wire.parameters import WORKER_PARAMETERS, ReadParameters, parse_parameters
from forebay_web.application import body_of, respond
from forebay_web.request_guard import require_followed
from forebay_web.routes import STORE_CHANGES_ROUTE, Endpoint, add_store_changes_route, crashes_counted
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.feed import PAGE_BYTES, POLLED_PAGE_BYTES, ChangesFeeds
from forebay_web.store_changes.follower import open_stream
from forebay_web.store_changes.pages import CHANGES_MEDIA_TYPE, ChangesPage, PagesRequest, encode_outcomes
from forebay_web.store_changes.selection import KeySelection
from forebay_web.streamed_response import for_client
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.reads.store_changes import StoreChanges
from forebay_worker.worker import Worker

_PARAMETERS = STORE_CHANGES_ROUTE.parameters | WORKER_PARAMETERS
_HEAD = b"content-type: " + CHANGES_MEDIA_TYPE.encode() + b"\r\n" + NO_STORE


@dataclass(frozen=True)
class HeldSource:
    """The ``Source`` of what one query follows: the replicas that this worker holds."""

    changes: StoreChanges
    selection: KeySelection
    parameters: ReadParameters
    partitions: Sequence[int]

    def tolerance(self) -> Tolerance:
        return self.changes.tolerance(self.selection, self.parameters)

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        return await self.changes.page(
            self.selection, self.parameters, partition, cursor, state=state, page_bytes=PAGE_BYTES
        )

    async def poll(self, host: str, request: PagesRequest) -> Mapping[int, ChangesPage | Problem]:
        outcomes, _ = await self.changes.poll(self.selection, self.parameters, request, POLLED_PAGE_BYTES)
        return outcomes


def add_changes_routes(
    app: FastAPI, worker: Worker, metrics: WorkerMetrics, problems: tuple[type[Problem], ...]
) -> None:
    """Add ``/v1/stores/{store}/changes``: GET for clients, POST for routers."""
    changes = StoreChanges(worker.admission)
    path = STORE_CHANGES_ROUTE.path
    stream = crashes_counted(path, _stream_endpoint(worker, metrics, changes, ChangesFeeds()), metrics.count)
    add_store_changes_route(app, problems, stream, worker=True)
    pages = crashes_counted(path, _pages_endpoint(worker, metrics, changes), metrics.count)
    app.router.add_route(path, pages, methods=["POST"], include_in_schema=False)


def _stream_endpoint(
    worker: Worker, metrics: WorkerMetrics, changes: StoreChanges, feeds: ChangesFeeds
) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            parameters = parse_parameters(request.scope["query_string"], _PARAMETERS)
            selection = changes.selection(request.path_params["store"], parameters)
            require_followed(request.scope, selection.spec, parameters)
            held = changes.held(selection, parameters.partition)
            source = HeldSource(changes, selection, parameters, held)
            timeout_ms = parameters.allowed_ms(worker.settings.request_timeout_ms)
            response = await open_stream(
                request, source, parameters, timeout_ms, feeds, worker.limits, worker.streams
            )
        except Problem as problem:
            response = respond(problem_answer(problem))
        metrics.count(STORE_CHANGES_ROUTE.path, response.status_code)
        return response

    return endpoint


def _pages_endpoint(worker: Worker, metrics: WorkerMetrics, changes: StoreChanges) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        peer = worker.limits.peers.of(request.scope)
        with worker.limits.memory_of(peer) as memory:
            try:
                parameters = parse_parameters(request.scope["query_string"], _PARAMETERS)
                selection = changes.selection(request.path_params["store"], parameters)
                require_followed(request.scope, selection.spec, parameters)
                body = await body_of(request, MAX_BODY_BYTES, memory)
                wanted = PagesRequest.decode(body, selection.spec.partitions)
                limit = worker.limits.waiting if wanted.wait_ms else worker.limits.requests
                with limit.held_by(peer, 1):
                    answer = await for_client(request.receive, _pages(changes, selection, parameters, wanted))
            except Problem as problem:
                answer = problem_answer(problem)
        metrics.count(STORE_CHANGES_ROUTE.path, answer.status)
        return respond(answer)

    return endpoint


async def _pages(
    changes: StoreChanges, selection: KeySelection, parameters: ReadParameters, request: PagesRequest
) -> HttpAnswer:
    """One partition's page, or the outcome of a poll; raises ``Problem``."""
    if not request.wait_ms:
        ((partition, cursor),) = request.cursors.items()
        page = await changes.page(
            selection, parameters, partition, cursor, state=request.state, page_bytes=PAGE_BYTES
        )
        return HttpAnswer(200, _HEAD, page.encode())
    outcomes, waited_ms = await changes.poll(selection, parameters, request, POLLED_PAGE_BYTES)
    documents: dict[int, Any] = {
        partition: outcome if isinstance(outcome, ChangesPage) else outcome.document()
        for partition, outcome in outcomes.items()
    }
    return HttpAnswer(200, _HEAD + b"forebay-waited-ms: %d\r\n" % waited_ms, encode_outcomes(documents))
