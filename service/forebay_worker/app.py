"""A worker's REST interface."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from time import perf_counter

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.authentication import Authenticator
from forebay.clock import boot_ms
from forebay.errors import (
    LogDiverged,
    NotActive,
    NotHostedHere,
    PositionNotReached,
    Problem,
    SchemaUnavailable,
    UnknownPartitioner,
)
from forebay.event_loop_turns import in_turns
from forebay.lag import Lag
from forebay.wire.answer_aging import IN_TRANSIT_MS, stated_lags
from forebay.wire.answer_schemas.status import WorkerStatus
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay.wire.batches import MAX_BODY_BYTES, BatchKeys, KeyResult, read_batch
from forebay.wire.key_changes import resumed
from forebay.wire.parameters import MAX_REQUEST_MS, WORKER_PARAMETERS, ReadParameters, parse_parameters
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE
from forebay_console.data_routes import Console, add_console_routes
from forebay_console.page import add_console_page
from forebay_web.application import HeldResponse, body_of, make_application, respond
from forebay_web.document_routes import add_document_routes
from forebay_web.hosts import ANY_HOST, AllowedHosts
from forebay_web.large_answers import LargeAnswer, batch_answer_in_turns, results_by_now
from forebay_web.limits import Held, Peer
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.process_group import ProcessGroup, ProcessReport
from forebay_web.processes.process_slot import SINGLE_PROCESS, ProcessSlot
from forebay_web.request_guard import access_of, require_listed
from forebay_web.routes import (
    BATCH_ROUTE,
    CHANGES_PROBLEMS,
    CHANGES_ROUTE,
    EXPLAINED_PATHS,
    READ_PROBLEMS,
    READ_ROUTES,
    STORE_CHANGES_ROUTE,
    Endpoint,
    ReadRoute,
    add_read_route,
    add_ticket_route,
    continued,
    crashes_counted,
    cursor_of_body,
)
from forebay_web.store_changes.follower import stream_endpoint
from forebay_web.streamed_response import for_client
from forebay_web.tickets import Tickets, ticket_key_of
from forebay_worker.changes_routes import add_pages_route, followed_source
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.reads.admission import Refused, bounded_wait
from forebay_worker.reads.key_changes import KeyChanges
from forebay_worker.reads.keys import Batched
from forebay_worker.reads.scans import MAX_PAGE_BYTES
from forebay_worker.snapshot_routes import add_snapshot_routes
from forebay_worker.worker import Worker

_TIME_TO_ANSWER_MS = 20
"""Time reserved at the end of a vain wait, to tell the client why."""
_CURSOR_WAIT_MS = 500
"""How long a later page waits for its replica to reach the position of the previous page."""
_READ_PROBLEMS = (
    *READ_PROBLEMS,
    UnknownPartitioner,
    PositionNotReached,
    NotActive,
    NotHostedHere,
    LogDiverged,
    SchemaUnavailable,
)


def make_app(
    worker: Worker,
    metrics: WorkerMetrics,
    authenticator: Authenticator | None = None,
    hosts: AllowedHosts = ANY_HOST,
    place: ProcessSlot = SINGLE_PROCESS,
) -> FastAPI:
    """The application of a worker's process, whether started or not."""

    console = Console.of("worker", worker)
    group_metrics = GroupMetrics(place, metrics.steps, "worker", "forebay_processes")
    whole = ProcessGroup(place, "worker", lambda: _report(worker), group_metrics)
    tickets = Tickets(ticket_key_of(worker.settings.ticket_key_file, place.ticket_key), authenticator)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with whole.reporting(), console.running():
            yield

    async def ready() -> Problem | None:
        return whole.readiness(worker.readiness())

    async def status() -> WorkerStatus:
        return worker.status(await in_turns(worker.replica_rows()))

    app = make_application(
        "worker",
        cors_allow_origins=worker.settings.cors_allow_origins,
        ready=ready,
        metrics=whole.metrics,
        authenticator=authenticator,
        tickets=tickets,
        hosts=hosts,
        refusals=metrics.refusals,
        lifespan=lifespan,
        explained_paths=EXPLAINED_PATHS,
    )

    def add(route: ReadRoute, problems: tuple[type[Problem], ...], endpoint: Endpoint) -> None:
        endpoint = crashes_counted(route.path, endpoint, metrics.count)
        add_read_route(app, route, problems, endpoint, worker=True)

    for route in READ_ROUTES:
        answer_of = partial(_answer, worker, route, route.parameters | WORKER_PARAMETERS)
        add(route, _READ_PROBLEMS, _endpoint(worker, route, metrics, answer_of))
    add(BATCH_ROUTE, _READ_PROBLEMS, _endpoint(worker, BATCH_ROUTE, metrics, partial(_batch_answer, worker)))
    add(CHANGES_ROUTE, CHANGES_PROBLEMS, _changes_endpoint(worker, metrics))
    stream = stream_endpoint(
        partial(followed_source, worker),
        lambda status, *_: metrics.count(STORE_CHANGES_ROUTE.path, status),
        worker.limits,
        worker.streams,
    )
    add(STORE_CHANGES_ROUTE, (*CHANGES_PROBLEMS, NotHostedHere), stream)
    add_pages_route(app, worker, metrics)
    add_ticket_route(app, tickets, worker.spec, worker.limits)
    add_document_routes(app, worker, status, WorkerStatus)
    add_snapshot_routes(app, worker, has_clients=authenticator is not None)
    add_console_page(app)
    add_console_routes(app, console, None)
    return app


def _report(worker: Worker) -> ProcessReport:
    return ProcessReport(str(os.getpid()), "ready" if worker.readiness() is None else "not-ready")


def _endpoint(
    worker: Worker,
    route: ReadRoute,
    metrics: WorkerMetrics,
    answer_of: Callable[[Request, Peer, Held], Awaitable[HttpAnswer | LargeAnswer]],
) -> Endpoint:
    """The endpoint of a route that answers at once; its answers are held in memory until the client reads them."""

    async def endpoint(request: Request) -> Response:
        begun_s = perf_counter()
        peer = worker.limits.peers.of(request.scope)
        with contextlib.ExitStack() as held:
            memory = held.enter_context(worker.limits.memory_of(peer))
            try:
                answer = await answer_of(request, peer, memory)
            except Problem as problem:
                answer = problem_answer(problem)
            metrics.count_answer(route.path, request.path_params["store"], answer.status, begun_s)
            response = respond(answer)
            return HeldResponse(response, held.pop_all()) if memory.amount else response

    return endpoint


async def _answer(
    worker: Worker, route: ReadRoute, known: frozenset[str], request: Request, peer: Peer, memory: Held
) -> HttpAnswer | LargeAnswer:
    cursor = await cursor_of_body(request, memory)
    parameters = continued(parse_parameters(request.scope["query_string"], known), cursor)
    answer = await for_client(request.receive, _within_wait(worker, route, request, parameters, peer))
    if isinstance(answer, LargeAnswer):
        # It is not with the connection, which counts what it has, until the client reads it.
        memory.take(answer.size_bytes)
    return answer


async def _within_wait(
    worker: Worker, route: ReadRoute, request: Request, parameters: ReadParameters, peer: Peer
) -> HttpAnswer | LargeAnswer:
    """Answer a read, waiting for the bound to be met as long as the request allows; raises ``Problem``."""
    begun = now = boot_ms()
    until = begun + _wait_ms(worker, parameters, request.headers)
    with bounded_wait(worker.limits.waiting, peer) as pause:
        while True:
            try:
                with worker.limits.requests.held_by(peer, 1):
                    return _waited(await _read(worker, route, request, parameters), now - begun)
            except Refused as refused:
                if not refused.may_wait or boot_ms() >= until:
                    return refused.answer()
            await pause()
            now = boot_ms()


def _waited(answer: HttpAnswer | LargeAnswer, waited_ms: float) -> HttpAnswer | LargeAnswer:
    """An answer that states how long its read waited, if it did: routers age answers that were long under way."""
    return answer._replace(head=answer.head + b"forebay-waited-ms: %d\r\n" % waited_ms) if waited_ms else answer


def _wait_ms(worker: Worker, parameters: ReadParameters, headers: Mapping[str, str]) -> float:
    """How long to wait: as requested, within the time-out and what the router reports as left of it."""
    wait_ms = max(parameters.wait_ms, _CURSOR_WAIT_MS if parameters.cursor else 0)
    if headers.get("forebay-wait-ms") == "0":
        # The router asks each replica for what it can answer at once, before any is to wait.
        wait_ms = 0
    # A router reports what is left of its own time; it may allow no more than any client.
    left_ms = _number(headers, "forebay-deadline-ms", MAX_REQUEST_MS)
    allowed_ms = parameters.allowed_ms(worker.settings.request_timeout_ms) if left_ms is None else left_ms
    return min(wait_ms, allowed_ms - _TIME_TO_ANSWER_MS)


def _number(headers: Mapping[str, str], name: str, most: int) -> int | None:
    """What a router's header states, ``most`` at most; None if it states nothing."""
    text = headers.get(name, "")
    return min(int(text), most) if text.isdecimal() and len(text) < 9 else None


async def _read(
    worker: Worker, route: ReadRoute, request: Request, parameters: ReadParameters
) -> HttpAnswer | LargeAnswer:
    store = request.path_params["store"]
    key = request.path_params.get("key")
    segment = None if key is None else key.encode("ascii")
    if route.scan is None:
        assert segment is not None
        await worker.reads.bring(store, segment, parameters)
        return worker.reads.key(store, parameters).answer(segment)
    if segment is None:
        require_listed(request.scope, store, parameters)
    frames = request.headers.get("accept") == FRAMES_MEDIA_TYPE
    page_bytes = _number(request.headers, "forebay-page-bytes", MAX_PAGE_BYTES)
    if page_bytes is None:
        page_bytes = MAX_PAGE_BYTES
    return await worker.scans.answer(route.scan, store, segment, parameters, frames=frames, page_bytes=page_bytes)


async def _batch_answer(worker: Worker, request: Request, peer: Peer, memory: Held) -> HttpAnswer | LargeAnswer:
    parameters = parse_parameters(request.scope["query_string"], BATCH_ROUTE.parameters | WORKER_PARAMETERS)
    body = await body_of(request, MAX_BODY_BYTES, memory)
    answer = await for_client(request.receive, _batched(worker, request, body, parameters, peer, memory))
    memory.adjust(len(body) + answer.size_bytes - memory.amount)
    return answer


async def _batched(
    worker: Worker, request: Request, body: bytes, parameters: ReadParameters, peer: Peer, memory: Held
) -> HttpAnswer | LargeAnswer:
    begun_boot_ms = boot_ms()
    keys = await read_batch(body)
    results, lags, waited_ms = await _batch(worker, request, keys, parameters, peer, memory, begun_boot_ms)
    frames = request.headers.get("accept") == FRAMES_MEDIA_TYPE
    answer = await batch_answer_in_turns(keys, results, frames=frames)
    worker.admission.served.count_worst(request.path_params["store"], lags)
    return _waited(answer, waited_ms)


async def _batch(
    worker: Worker,
    request: Request,
    keys: BatchKeys,
    parameters: ReadParameters,
    peer: Peer,
    memory: Held,
    begun_boot_ms: float,
) -> tuple[Sequence[KeyResult], Set[Lag], float]:
    """Each key's answer, the lags that they state, and how long it waited for bounds, in milliseconds."""
    reads = worker.reads
    until = begun_boot_ms + _wait_ms(worker, parameters, request.headers)
    spec = reads.batch_spec(request.path_params["store"], parameters)
    if (access := access_of(request.scope)) is not None:
        await in_turns(access.require_keys("read", spec, keys.values))
    located = await reads.locate_in_turns(spec, keys, parameters)
    read_boot_ms, waited_ms, held_bytes = boot_ms(), 0.0, memory.amount

    async def read(only: Set[int] | None = None) -> Batched:
        # In place of what was read before.
        memory.adjust(held_bytes - memory.amount)
        return await reads.batch_in_turns(spec, located, parameters, memory, only)

    results, waiting, lags = await read()
    if waiting and boot_ms() < until:
        with bounded_wait(worker.limits.waiting, peer) as pause:
            while waiting and boot_ms() < until:
                await pause()
                waiting = (await read(set(waiting))).waiting
        # All of them as of now: what was found first is older by the whole wait.
        read_boot_ms = boot_ms()
        waited_ms = read_boot_ms - begun_boot_ms
        results, _, lags = await read()
    if boot_ms() - read_boot_ms > IN_TRANSIT_MS:
        tolerance = worker.admission.tolerance(spec, parameters)
        results = await results_by_now(results, [read_boot_ms] * len(results), tolerance, spec.name)
        lags = stated_lags(results)
    return results, lags, waited_ms


def _changes_endpoint(worker: Worker, metrics: WorkerMetrics) -> Endpoint:
    known = CHANGES_ROUTE.parameters | WORKER_PARAMETERS

    async def endpoint(request: Request) -> Response:
        try:
            peer = worker.limits.peers.of(request.scope)
            events = _changes(worker, request, known, peer).events()
            response: Response = await worker.streams.open(events, request.receive, peer)
        except Problem as problem:
            response = respond(problem_answer(problem))
        metrics.count(CHANGES_ROUTE.path, response.status_code)
        return response

    return endpoint


def _changes(worker: Worker, request: Request, known: frozenset[str], peer: Peer) -> KeyChanges:
    seen = request.headers.get("last-event-id")
    parameters = resumed(parse_parameters(request.scope["query_string"], known), seen)
    return KeyChanges(
        worker.admission,
        worker.reads,
        worker.limits.waiting,
        request.path_params["store"],
        request.path_params["key"].encode("ascii"),
        parameters,
        _wait_ms(worker, parameters, request.headers),
        resuming=bool(seen),
        peer=peer,
    )
