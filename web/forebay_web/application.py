"""The FastAPI application that both tiers extend: problems for every error, ops paths, CORS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay import __version__
from forebay.authentication import Authenticator
from forebay.errors import (
    PROBLEM_MEDIA_TYPE,
    BadRequest,
    BodyTooLarge,
    Forbidden,
    HostNotAllowed,
    InternalError,
    MethodNotAllowed,
    NotReady,
    Problem,
    Unauthenticated,
    UnknownPath,
)
from forebay.request_trace import RequestTrace, current
from forebay.wire.answer_schemas.components import components
from forebay.wire.answers import HttpAnswer, json_answer, problem_answer
from forebay_web.explanations import Explaining
from forebay_web.hosts import AllowedHosts
from forebay_web.large_answers import LargeAnswer, LargeResponse
from forebay_web.limits import Held
from forebay_web.request_guard import OPEN_PATHS, Guard, is_unknown
from forebay_web.request_tracing import RequestTracing, stated_body
from forebay_web.static_files import add_page
from forebay_web.tickets import Tickets, followed

log = logging.getLogger(__name__)

_NATURAL = {"type": "integer", "minimum": 0}
_STRING = {"type": "string"}


def _header(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "schema": schema}


ANSWER_HEADERS: dict[str, Any] = {
    "Forebay-Record-Lag": _header("Records behind the log; absent while unknown.", _NATURAL),
    "Forebay-Time-Lag-Ms": _header("Time behind the log; absent while unknown.", _NATURAL),
    "Forebay-Age-Ms": _header("Time behind the source; absent while unknown.", _NATURAL),
    "Forebay-Position": _header("Position token of the answer.", _STRING),
    "Forebay-Role": _header("The replica's role.", {**_STRING, "enum": ["active", "restoring", "standby"]}),
    "Forebay-Host": _header("The worker that answered.", _STRING),
    "Forebay-Attempts": _header(
        "By routers: the other workers that were asked for a key, and the outcome.", _STRING
    ),
    "Forebay-Waited-Ms": _header(
        "How long the read waited for its bounds, as `wait_ms` allowed; absent if it did not.", _NATURAL
    ),
}
"""What is said of an answer of one replica in headers; the members of its document, and more."""
PROBLEM_HEADERS: dict[str, Any] = {"Forebay-Problem": _header("The name of the problem's type.", _STRING)}
_EXPOSED_HEADERS = ", ".join([*ANSWER_HEADERS, *PROBLEM_HEADERS, "Retry-After", "Server-Timing", "X-Request-Id"])
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457 problem details; further members depend on the type.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "pattern": "^urn:forebay:problem:"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request_id": {"type": "string", "description": "That of the request, if it came with one."},
    },
}
_TAGS = {
    "reads": "What stores hold: keys, batches, lists and changes, each with the lag of its answer.",
    "metadata": "The stores, which worker holds what (KIP-535), and how far each replica is.",
    "console": "What is wrong, what changed, and the history of the last minutes, as the console shows them.",
    "ops": "For supervisors, load balancers and Prometheus.",
}
"""In the order of the documentation."""


def _add_api_page(app: FastAPI) -> None:
    own, offline = (files(package) / "static" for package in ("forebay_web", "fastapi_offline"))
    loaded = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
    found = [own / "docs.html", own / "start.js", *(offline / name for name in loaded)]
    add_page(app, "/docs", found, images="'self' data:")


def cors_headers(origins: tuple[str, ...], origin: bytes) -> list[tuple[bytes, bytes]]:
    """What an answer to a request from an origin has for its browser, where these origins may read.

    Nothing without an origin, since such requests do not come from browsers.
    """
    if not origins or not origin:
        return []
    headers = [(b"access-control-expose-headers", _EXPOSED_HEADERS.encode()), (b"vary", b"Origin")]
    if "*" in origins:
        headers.append((b"access-control-allow-origin", b"*"))
    elif origin.decode("latin-1") in origins:
        headers.append((b"access-control-allow-origin", origin))
    return headers


class BrowserCors(CORSMiddleware):
    """CORS for requests with an origin, whose answers have the headers that those of the fast path have."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(app, origins, allow_methods=("GET", "POST", "OPTIONS"), allow_headers=("*",))
        self._origins = origins

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        """Send a part of an answer, with the headers if it is the start."""
        if message["type"] == "http.response.start":
            added = cors_headers(self._origins, request_headers.get("origin", "").encode("latin-1"))
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser's preflight; a refusal is a problem like any other."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = respond(problem_answer(BadRequest(f"{bytes(response.body).decode()}.")))
        for name, value in response.headers.items():
            if name.startswith("access-control-") or name == "vary":
                refusal.headers[name] = value
        return refusal


async def body_of(request: Request, max_bytes: int, memory: Held) -> bytes:
    """A request's body, which is held in ``memory``.

    Raises ``BodyTooLarge`` as soon as it is known to be too large, ``Overloaded`` if there is no room for it,
    ``BadRequest`` if it is cut off.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            memory.take(len(piece))
            body += piece
            if len(body) > max_bytes:
                raise BodyTooLarge(f"The body is longer than {max_bytes} bytes; send it in several requests.")
    except ClientDisconnect:
        # The client has left, and nothing is wrong here.
        raise BadRequest("The connection was closed before the body was complete.") from None
    return bytes(body)


def respond(answer: HttpAnswer | LargeAnswer) -> Response:
    """An answer as a response of the framework."""
    if isinstance(answer, LargeAnswer):
        return LargeResponse(answer)
    response = Response(body := stated_body(answer), answer.status)
    response.raw_headers = [*answer.headers(), (b"content-length", b"%d" % len(body))]
    return response


class HeldResponse(Response):
    """A response that holds something until it is sent, or its client has left."""

    def __init__(self, response: Response, held: contextlib.ExitStack) -> None:
        self._response = response
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await self._response(scope, receive, send)


def responses(
    *problems: type[Problem],
    schema: dict[str, Any] | None = None,
    media_type: str = "application/json",
    headers: dict[str, Any] | None = None,
) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of a route: its success schema and, by status, its problems."""
    documented: dict[int | str, dict[str, Any]] = {
        200: {"description": "OK", "content": {media_type: {"schema": schema or {"type": "object"}}}}
    }
    if headers is not None:
        documented[200]["headers"] = headers
    _document_problems(documented, BadRequest, *problems, InternalError)
    return documented


def _document_problems(documented: dict[int | str, dict[str, Any]], *problems: type[Problem]) -> None:
    for problem in problems:
        names = documented.setdefault(
            str(problem.status),
            {
                "description": "",
                "headers": PROBLEM_HEADERS,
                "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        names["description"] = ", ".join(filter(None, [names["description"], f"`{problem.name}`"]))


def make_application(
    tier: str,
    *,
    cors_allow_origins: tuple[str, ...],
    ready: Callable[[], Awaitable[Problem | None]],
    metrics: Callable[[], Awaitable[list[Metric]]],
    authenticator: Authenticator | None,
    tickets: Tickets,
    hosts: AllowedHosts,
    refusals: Counter[int],
    explained_paths: tuple[re.Pattern[str], ...] = (),
    lifespan: Any = None,
) -> FastAPI:
    """An application with the ops paths and problem answers of both tiers.

    ``ready`` returns why the process is not ready, None if it is; ``metrics`` collects what a scraper gets.
    Without ``authenticator`` every request for one of ``hosts`` is accepted; ``refusals`` counts refused
    requests by status; answers at ``explained_paths`` are explained on request.
    """
    app = FastAPI(
        title=f"forebay {tier}",
        version=__version__,
        description="State of Spark streams, read by key, with the lag of every answer.",
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Explaining, tier=tier, paths=explained_paths, refusals=refusals)
    app.add_middleware(Guard, hosts=hosts, authenticator=authenticator, tickets=tickets, refusals=refusals)
    # Added after the guard, so it runs before that: a browser may read why it was refused.
    if cors_allow_origins:
        app.add_middleware(BrowserCors, origins=cors_allow_origins)
    # Added last, so it runs first.
    app.add_middleware(RequestTracing, tier=tier)
    _answer_errors_as_problems(app, tier)
    _add_ops_routes(app, ready, metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _answer_errors_as_problems(app: FastAPI, tier: str) -> None:
    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return respond(problem_answer(error))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        problem: Problem
        if error.status_code == 404:
            problem = UnknownPath(f"There is nothing at {path}; GET /docs lists all paths.")
        elif error.status_code == 405:
            problem = MethodNotAllowed(f"{path} does not support {request.method}.")
        else:
            problem = BadRequest(str(error.detail))
        response = respond(problem_answer(problem))
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        if error.status_code == 405:
            # From all routes of the path: the framework names only the methods of the first.
            response.headers["allow"] = ", ".join(sorted(_methods(app, request.scope)))
        return response

    async def on_crash(request: Request, error: Exception) -> Response:
        trace = current.get() or RequestTrace.made()
        # The line that is logged has it, by which the answer's is found.
        current.set(trace)
        log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
        problem = problem_answer(InternalError("The service failed; its log says why."))
        return respond(trace.stated(problem, tier))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_crash)


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    matching = [route for route in app.routes if route.matches(scope)[0] is not Match.NONE]
    return {method for route in matching for method in getattr(route, "methods", None) or ()}


def _add_ops_routes(
    app: FastAPI,
    ready: Callable[[], Awaitable[Problem | None]],
    collect: Callable[[], Awaitable[list[Metric]]],
) -> None:
    async def livez() -> Response:
        """One turn of the event loop."""
        return respond(json_answer({"live": True}))

    async def readyz(request: Request) -> Response:
        """Whether traffic should be sent here; lag alone does not change it."""
        problem = await ready()
        if problem is not None and is_unknown(request.scope):
            # Why names hosts, stores and paths.
            problem = NotReady(
                "Not ready; a request that may read here is told why.", retry_after_s=problem.retry_after_s
            )
        return respond(json_answer({"ready": True}) if problem is None else problem_answer(problem))

    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        collected = await collect()
        collector = cast(Collector, SimpleNamespace(collect=lambda: collected))
        # Of thousands of replicas the text takes a quarter of a second, in which no read would be answered.
        text = await asyncio.to_thread(generate_latest, collector)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def add(path: str, endpoint: Callable[..., Awaitable[Response]], answers: dict[int | str, Any]) -> None:
        app.add_api_route(
            path, endpoint, methods=["GET"], tags=["ops"], responses=answers, response_class=Response
        )
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

    add("/livez", livez, responses())
    add("/readyz", readyz, responses(NotReady))
    text: dict[int | str, Any] = {
        200: {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    add("/metrics", metrics, {**responses(), **text})
    _add_api_page(app)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.update({**components(schema["paths"]), "Problem": PROBLEM_SCHEMA})
        schema["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "ticket": {"type": "apiKey", "in": "query", "name": "ticket"},
        }
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                # Validation errors are problems of status 400 here.
                operation["responses"].pop("422", None)
                if path not in OPEN_PATHS:
                    # Whether a token is required is a setting.
                    schemes = ("token",) if followed(path) is None else ("token", "ticket")
                    operation["security"] = [*({scheme: []} for scheme in schemes), {}]
                    _document_problems(operation["responses"], HostNotAllowed, Unauthenticated, Forbidden)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
    return FastAPI.openapi(app)
