"""A router's REST interface: the same paths as a worker's, for every partition."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from forebay.authentication import Authenticator
from forebay.clock import boot_ms
from forebay.errors import DeadlineExceeded, NoReplica, PartitionerMissing, Problem
from forebay.timeouts import running_timeout
from forebay.wire.answer_schemas.status import RouterProcess, RouterStatus
from forebay.wire.answers import problem_answer
from forebay.wire.batches import MAX_BODY_BYTES
from forebay.wire.key_changes import resumed
from forebay.wire.parameters import ReadParameters, parse_parameters
from forebay_console.data_routes import Console, add_console_routes
from forebay_console.history import Bounds
from forebay_console.page import add_console_page
from forebay_router.metrics import ANSWER_MS, RouterMetrics
from forebay_router.reads.batches import batch_get
from forebay_router.reads.key_changes import RoutedChanges
from forebay_router.reads.keys import read_key
from forebay_router.reads.scatter import Gather, ScanBroken, ScanRefused
from forebay_router.reads.store_changes import RoutedSource
from forebay_router.router import Router
from forebay_web.application import HeldResponse, body_of, make_application, respond
from forebay_web.document_routes import add_document_routes
from forebay_web.histogram import SERVED_BOUNDS
from forebay_web.hosts import ANY_HOST, AllowedHosts
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.process_group import ProcessGroup, ProcessReport
from forebay_web.processes.process_slot import SINGLE_PROCESS, ProcessSlot
from forebay_web.request_guard import access_of, require_followed, require_listed
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
from forebay_web.store_changes.selection import make_selection
from forebay_web.streamed_response import StreamedResponse, for_client
from forebay_web.tickets import Tickets, ticket_key_of

log = logging.getLogger(__name__)
_CATCH_UP_S = 5.0
_READ_PROBLEMS = (*READ_PROBLEMS, NoReplica, PartitionerMissing, DeadlineExceeded)
_CHANGES_PROBLEMS = (*CHANGES_PROBLEMS, PartitionerMissing)


def make_app(
    router: Router,
    metrics: RouterMetrics,
    authenticator: Authenticator | None = None,
    hosts: AllowedHosts = ANY_HOST,
    place: ProcessSlot = SINGLE_PROCESS,
) -> FastAPI:
    """The application of a router's process, which starts to discover workers when the application starts."""
    whole = process_group(router, metrics, place)
    console = Console.of("router", router, whole.store_counts)
    tickets = Tickets(ticket_key_of(router.settings.ticket_key_file, place.ticket_key), authenticator)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.discovery.start()
        async with whole.reporting():
            await _catch_up(router, whole)
            async with console.running():
                yield
        await router.discovery.stop()
        router.pool.close()

    async def ready() -> Problem | None:
        return whole.readiness(router.readiness())

    async def status() -> RouterStatus:
        reports = whole.reports()
        return router.status([RouterProcess(r.process_id, r.state, r.workers_live) for r in reports])

    app = make_application(
        "router",
        cors_allow_origins=router.settings.cors_allow_origins,
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
        add_read_route(app, route, problems, crashes_counted(route.path, endpoint, metrics.count))

    for route in READ_ROUTES:
        add(route, _READ_PROBLEMS, _endpoint(router, route, metrics))
    add(BATCH_ROUTE, _READ_PROBLEMS, _batch_endpoint(router, metrics))
    add(CHANGES_ROUTE, _CHANGES_PROBLEMS, _changes_endpoint(router, metrics))
    count = partial(metrics.count, STORE_CHANGES_ROUTE.path)
    stream = stream_endpoint(partial(_source_of, router), count, router.limits, router.streams)
    add(STORE_CHANGES_ROUTE, _CHANGES_PROBLEMS, stream)
    add_ticket_route(app, tickets, router.spec, router.limits)
    add_document_routes(app, router, status, RouterStatus)
    add_console_page(app)
    add_console_routes(app, console, Bounds(ANSWER_MS, SERVED_BOUNDS))
    return app


def process_group(router: Router, metrics: RouterMetrics, place: ProcessSlot) -> ProcessGroup:
    """What this process reports to the others of its router, and all of them together."""

    def report() -> ProcessReport:
        return ProcessReport(
            process_id=str(os.getpid()),
            state=router.state,
            workers_live=sum(map(router.cluster.is_healthy, router.cluster.workers)),
            stores=metrics.store_counts(),
        )

    group_metrics = GroupMetrics(place, metrics.steps, "router", "forebay_router_processes")
    return ProcessGroup(place, "router", report, group_metrics)


async def _catch_up(router: Router, whole: ProcessGroup) -> None:
    """Wait to be ready if another process is, for some seconds at most; before this one listens.

    All share the address, so one that takes the place of another gets its connections from the beginning.
    """
    if any(report.state == "ready" for report in whole.reports()):
        await router.discovery.readied(_CATCH_UP_S)


def _endpoint(router: Router, route: ReadRoute, metrics: RouterMetrics) -> Callable[[Request], Any]:
    read = _key if route.scan is None else _list

    async def endpoint(request: Request) -> Response:
        begun_boot_ms = boot_ms()
        try:
            parameters = parse_parameters(request.scope["query_string"], route.parameters)
            return await read(router, route, metrics, request, parameters)
        except Problem as problem:
            metrics.count(route.path, problem.status, request.path_params["store"], problem.name)
            return respond(problem_answer(problem))
        finally:
            metrics.observe_ms(route.path, request.path_params["store"], boot_ms() - begun_boot_ms)

    return endpoint


async def _key(
    router: Router, route: ReadRoute, metrics: RouterMetrics, request: Request, parameters: ReadParameters
) -> Response:
    store, segment = request.path_params["store"], request.path_params["key"].encode("ascii")
    path, query = request.scope["path"].encode("ascii"), request.scope["query_string"]
    peer = router.limits.peers.of(request.scope)
    work = read_key(router, store, segment, path, query, parameters, peer)
    # Only a read that may wait is worth a second task.
    answer = await (for_client(request.receive, work) if parameters.wait_ms else work)
    metrics.count_answer(route.path, store, answer)
    return respond(answer)


async def _list(
    router: Router, route: ReadRoute, metrics: RouterMetrics, request: Request, parameters: ReadParameters
) -> Response:
    assert route.scan is not None
    store, key = request.path_params["store"], request.path_params.get("key")
    segment = None if key is None else key.encode("ascii")
    path, query = request.scope["path"].encode("ascii"), request.scope["query_string"]
    if segment is None:
        require_listed(request.scope, store, parameters)
    peer = router.limits.peers.of(request.scope)
    with contextlib.ExitStack() as admission:
        admission.enter_context(router.admitted(peer, parameters))
        memory = admission.enter_context(router.limits.memory_of(peer))
        parameters = continued(parameters, await cursor_of_body(request, memory))
        try:
            begun = Gather.begin(router, route.scan, store, segment, path, query, parameters, memory)
            gather = await for_client(request.receive, begun)
            admission.callback(gather.drop)
            body = gather.body()
            first = await anext(body)
        except ScanRefused as refused:
            metrics.count_answer(route.path, store, refused.answer)
            return respond(refused.answer)
        # In flight until the last piece is sent, or the client has left.
        admission.callback(lambda: metrics.count_list(route.path, store, gather.lag()))
        return _ListResponse(first, body, admission.pop_all(), router.timeout_ms(parameters))


class _ListResponse(StreamedResponse):
    """A list that is streamed, and cut for a client that reads none of it within the request's time."""

    def __init__(
        self, first: bytes, body: AsyncGenerator[bytes, None], admission: contextlib.ExitStack, piece_ms: int
    ) -> None:
        super().__init__(
            self._until_sent(first, body), media_type="application/json", headers={"cache-control": "no-store"}
        )
        self._admission = admission
        self._piece_s = piece_ms / 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and release its admission."""

        async def send_in_time(message: Message) -> None:
            try:
                async with running_timeout(self._piece_s):
                    await send(message)
            except TimeoutError:
                raise ScanBroken("the client read nothing of it within the time allowed") from None

        with self._admission:
            try:
                await super().__call__(scope, receive, send_in_time)
            except ScanBroken as broken:
                # The server closes the connection of an answer that is not complete.
                log.warning("a list is cut: %s", broken)

    @staticmethod
    async def _until_sent(first: bytes, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(body):
            yield first
            async for piece in body:
                yield piece


def _batch_endpoint(router: Router, metrics: RouterMetrics) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        begun_boot_ms = boot_ms()
        query, store = request.scope["query_string"], request.path_params["store"]
        peer = router.limits.peers.of(request.scope)
        with contextlib.ExitStack() as held:
            memory = held.enter_context(router.limits.memory_of(peer))
            try:
                body = await body_of(request, MAX_BODY_BYTES, memory)
                batch = batch_get(router, metrics, store, query, body, peer, memory, access_of(request.scope))
                return HeldResponse(respond(await for_client(request.receive, batch)), held.pop_all())
            except Problem as problem:
                metrics.count(BATCH_ROUTE.path, problem.status, store, problem.name)
                return respond(problem_answer(problem))
            finally:
                metrics.observe_ms(BATCH_ROUTE.path, store, boot_ms() - begun_boot_ms)

    return endpoint


def _changes_endpoint(router: Router, metrics: RouterMetrics) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            peer = router.limits.peers.of(request.scope)
            events = _changes(router, request).events()
            response: Response = await router.streams.open(events, request.receive, peer)
        except Problem as problem:
            metrics.count(CHANGES_ROUTE.path, problem.status, request.path_params["store"], problem.name)
            return respond(problem_answer(problem))
        metrics.count(CHANGES_ROUTE.path, response.status_code, request.path_params["store"])
        return response

    return endpoint


def _changes(router: Router, request: Request) -> RoutedChanges:
    seen = request.headers.get("last-event-id")
    parameters = resumed(parse_parameters(request.scope["query_string"], CHANGES_ROUTE.parameters), seen)
    store, key = request.path_params["store"], request.path_params["key"].encode("ascii")
    return RoutedChanges(router, store, key, parameters, resuming=bool(seen))


def _source_of(router: Router, request: Request) -> tuple[RoutedSource, ReadParameters, int]:
    query = request.scope["query_string"]
    parameters = parse_parameters(query, STORE_CHANGES_ROUTE.parameters)
    spec = parameters.written(router.spec(request.path_params["store"]))
    selection = make_selection(spec, parameters)
    require_followed(request.scope, spec, parameters)
    return RoutedSource(router, selection, parameters, query), parameters, router.timeout_ms(parameters)
