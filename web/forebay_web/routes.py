"""The read routes, the same on both tiers: paths, parameters, answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from forebay.errors import AnswerTooLarge, BodyTooLarge, HttpVersionNotSupported, InternalError, Problem
from forebay.wire.answer_schemas.components import reference
from forebay.wire.answer_schemas.reads import BatchAnswer, KeyAnswer, list_answer
from forebay.wire.batches import MAX_KEYS
from forebay.wire.key_changes import LAST_EVENT_ID_PARAMETER
from forebay.wire.parameters import (
    ALL_KEYS_SCAN_PARAMETERS,
    CHANGES_PARAMETERS,
    ENTRIES_PARAMETERS,
    KEY_PARAMETERS,
    SCAN_PARAMETERS,
    STORE_CHANGES_PARAMETERS,
    WORKER_PARAMETERS,
    openapi_parameters,
)
from forebay.wire.scans import SCAN_ROUTES, ScanRoute
from forebay.wire.server_sent_events import EVENTS_MEDIA_TYPE
from forebay_web.application import ANSWER_HEADERS, responses
from forebay_web.explanations import EXPLAIN_PARAMETER
from forebay_web.posted_cursor import POSTED_CURSOR_BODY

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class ReadRoute:
    """One route that reads a store; ``scan`` is None if it reads no list."""

    path: str
    summary: str
    parameters: frozenset[str]
    schema: dict[str, Any]
    scan: ScanRoute | None = None
    media_type: str = "application/json"
    headers: dict[str, Any] | None = None
    """Those of its answers."""


def _scan_route(scan: ScanRoute) -> ReadRoute:
    known = SCAN_PARAMETERS if scan.keyed else ALL_KEYS_SCAN_PARAMETERS
    if not scan.store_kind.lists_by_time:
        known = ENTRIES_PARAMETERS
    of = "of one key" if scan.keyed else "of all keys"
    schema = reference(list_answer(scan.store_kind, scan.keyed))
    return ReadRoute(scan.path, f"Read {scan.items} {of}", known, schema, scan)


READ_ROUTES = (
    ReadRoute(
        "/v1/stores/{store}/keys/{key}",
        "Read one key",
        KEY_PARAMETERS,
        reference(KeyAnswer),
        headers=ANSWER_HEADERS,
    ),
    *(_scan_route(scan) for scan in SCAN_ROUTES),
)
BATCH_ROUTE = ReadRoute(
    "/v1/stores/{store}/batch-get", "Read several keys", KEY_PARAMETERS, reference(BatchAnswer)
)
EXPLAINED_PATHS = tuple(
    re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path)) for route in (*READ_ROUTES, BATCH_ROUTE)
)
"""Those whose answers say with ``explain=true`` how they came about."""
_CLIENT_LEFT = 499
"""nginx's status for that."""

CHANGES_ROUTE = ReadRoute(
    "/v1/stores/{store}/keys/{key}/changes",
    "Follow one key",
    CHANGES_PARAMETERS,
    {"type": "string"},
    media_type=EVENTS_MEDIA_TYPE,
)
STORE_CHANGES_ROUTE = ReadRoute(
    "/v1/stores/{store}/changes",
    "Follow many keys",
    STORE_CHANGES_PARAMETERS,
    {"type": "string"},
    media_type=EVENTS_MEDIA_TYPE,
)


def crashes_counted(path: str, endpoint: Endpoint, count: Callable[[str, int], None]) -> Endpoint:
    """An endpoint that counts its failures, too: of no other is it known which route it was of."""

    async def counted(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            # Nobody is there to be answered.
            return Response(status_code=_CLIENT_LEFT)
        except Exception:
            count(path, InternalError.status)
            raise

    return counted


def _without_length(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose answers have no length, which HTTP/1.0 needs (RFC 9112, section 7.1)."""

    async def over_http_1_1(request: Request) -> Response:
        if request.scope["http_version"] == "1.0":
            raise HttpVersionNotSupported(
                "Lists and streams need HTTP/1.1: behind nginx, set proxy_http_version 1.1."
            )
        return await endpoint(request)

    return over_http_1_1


def add_read_route(
    app: FastAPI,
    route: ReadRoute,
    problems: tuple[type[Problem], ...],
    endpoint: Endpoint,
    *,
    worker: bool = False,
) -> None:
    """Add a GET route, and HEAD for its headers; a worker's takes ``WORKER_PARAMETERS`` too. Lists are read by
    POST, too, after a key that makes the cursor too long for a URL."""
    known = route.parameters | (WORKER_PARAMETERS if worker else frozenset())
    if route.scan is not None:
        endpoint, problems = _without_length(endpoint), (*problems, HttpVersionNotSupported)
    _add(app, route, "GET", problems, endpoint, known)
    if route.scan is not None:
        posted = replace(route, summary=f"{route.summary} after a long cursor")
        body = {"requestBody": POSTED_CURSOR_BODY}
        _add(app, posted, "POST", (*problems, BodyTooLarge), endpoint, known - {"cursor"}, body)
    app.router.add_api_route(
        route.path, endpoint, route_class_override=_PlainRoute, methods=["HEAD"], include_in_schema=False
    )


def add_changes_route(
    app: FastAPI, problems: tuple[type[Problem], ...], endpoint: Endpoint, *, worker: bool = False
) -> None:
    """Add ``GET …/changes``; a worker's takes ``WORKER_PARAMETERS`` too."""
    known = CHANGES_ROUTE.parameters | (WORKER_PARAMETERS if worker else frozenset())
    text = (
        "Server-sent events: `value`, with the members that a read of the key has; `absent`, without `value`; "
        "`lag` between changes; `problem` while no answer is possible. Ids are position tokens."
    )
    _add_stream(app, CHANGES_ROUTE, problems, endpoint, known, text)


def add_store_changes_route(
    app: FastAPI, problems: tuple[type[Problem], ...], endpoint: Endpoint, *, worker: bool = False
) -> None:
    """Add ``GET /v1/stores/{store}/changes``; a worker's takes ``WORKER_PARAMETERS`` too."""
    known = STORE_CHANGES_ROUTE.parameters | (WORKER_PARAMETERS if worker else frozenset())
    text = (
        "Server-sent events: `reset`, which names the partitions whose keys are to be forgotten; `values` and "
        "`absent`, with one partition's items as its lists have them, and its provenance; `lag`, the worst of all "
        "partitions, once all that is known was sent; `problem` while partitions cannot be read."
    )
    _add_stream(app, STORE_CHANGES_ROUTE, problems, endpoint, known, text)


def _add_stream(
    app: FastAPI,
    route: ReadRoute,
    problems: tuple[type[Problem], ...],
    endpoint: Endpoint,
    known: frozenset[str],
    text: str,
) -> None:
    problems, extra = (*problems, HttpVersionNotSupported), {"description": text}
    _add(app, route, "GET", problems, _without_length(endpoint), known, extra, (LAST_EVENT_ID_PARAMETER,))


def add_batch_route(app: FastAPI, problems: tuple[type[Problem], ...], endpoint: Endpoint) -> None:
    """Add ``POST …/batch-get``."""
    body = {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["keys"],
                    "additionalProperties": False,
                    "properties": {"keys": {"type": "array", "items": {}, "maxItems": MAX_KEYS}},
                }
            }
        },
    }
    problems = (*problems, BodyTooLarge, AnswerTooLarge)
    _add(app, BATCH_ROUTE, "POST", problems, endpoint, BATCH_ROUTE.parameters, {"requestBody": body})


class _PlainRoute(APIRoute):
    """Passes its endpoint the request and returns its response unchanged: there are no dependencies to resolve."""

    def get_route_handler(self) -> Endpoint:  # type: ignore[override]  # FastAPI's is async.
        return self.endpoint


def _add(
    app: FastAPI,
    route: ReadRoute,
    method: str,
    problems: tuple[type[Problem], ...],
    endpoint: Endpoint,
    known: frozenset[str] | set[str],
    extra: dict[str, Any] | None = None,
    headers: tuple[dict[str, Any], ...] = (),
) -> None:
    names = [name for name in ("store", "key") if f"{{{name}}}" in route.path]
    explained = [EXPLAIN_PARAMETER] if route.media_type == "application/json" else []
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    app.router.add_api_route(
        route.path,
        endpoint,
        route_class_override=_PlainRoute,
        methods=[method],
        tags=["reads"],
        summary=route.summary,
        operation_id=route.summary.lower().replace(" ", "_"),
        response_class=Response,
        responses=responses(*problems, schema=route.schema, media_type=route.media_type, headers=route.headers),
        openapi_extra={
            "parameters": [*in_path, *openapi_parameters(frozenset(known)), *explained, *headers],
            **(extra or {}),
        },
    )
