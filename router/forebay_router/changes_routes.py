"""A router's route for the changes of many keys."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.errors import Problem
from forebay.wire.answers import problem_answer
from forebay.wire.parameters import parse_parameters
from forebay_router.metrics import RouterMetrics
from forebay_router.reads.store_changes import RoutedSource
from forebay_router.router import Router
from forebay_web.application import respond
from forebay_web.routes import STORE_CHANGES_ROUTE, Endpoint, add_store_changes_route, crashes_counted
from forebay_web.store_changes.endpoint import open_stream
from forebay_web.store_changes.feed import ChangesFeeds
from forebay_web.store_changes.selection import make_selection


def add_changes_routes(
    app: FastAPI, router: Router, metrics: RouterMetrics, problems: tuple[type[Problem], ...]
) -> None:
    """Add ``GET /v1/stores/{store}/changes``."""
    endpoint = _stream_endpoint(router, metrics, ChangesFeeds())
    add_store_changes_route(app, problems, crashes_counted(STORE_CHANGES_ROUTE.path, endpoint, metrics.count))


def _stream_endpoint(router: Router, metrics: RouterMetrics, feeds: ChangesFeeds) -> Endpoint:
    route = STORE_CHANGES_ROUTE

    async def endpoint(request: Request) -> Response:
        query, store = request.scope["query_string"], request.path_params["store"]
        try:
            parameters = parse_parameters(query, route.parameters)
            spec = parameters.written(router.spec(store))
            selection = make_selection(spec, parameters)
            source = RoutedSource(router, selection, parameters, query)
            timeout_ms = router.timeout_ms(parameters)
            response = await open_stream(
                request, source, parameters, timeout_ms, feeds, router.limits, router.streams
            )
        except Problem as problem:
            metrics.count(route.path, problem.status, store, problem.name)
            return respond(problem_answer(problem))
        metrics.count(route.path, response.status_code, store)
        return response

    return endpoint
