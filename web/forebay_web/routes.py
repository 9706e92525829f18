"""The routes of reads and of tickets, the same on both tiers: paths, parameters, bodies, answers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.requests import ClientDisconnect

from forebay.errors import (
    AnswerTooLarge,
    BadKey,
    BadParameter,
    BadRequest,
    BodyTooLarge,
    HistoryExpired,
    HttpVersionNotSupported,
    InternalError,
    LagExceedsTolerance,
    NotReady,
    Overloaded,
    PartitionerMismatch,
    PositionOfAnotherLog,
    Problem,
    RecordTooOld,
    UnknownKey,
    UnknownPartitioner,
    UnknownStore,
    WrongStoreKind,
)
from forebay.store_spec import StoreSpec
from forebay.wire.answer_schemas.components import reference
from forebay.wire.answer_schemas.members import read_json
from forebay.wire.answer_schemas.reads import BatchAnswer, KeyAnswer, list_answer
from forebay.wire.answer_schemas.status import TicketAnswer
from forebay.wire.answers import json_answer
from forebay.wire.batches import MAX_BODY_BYTES, MAX_KEYS
from forebay.wire.key_changes import LAST_EVENT_ID_PARAMETER
from forebay.wire.parameters import (
    ALL_KEYS_SCAN_PARAMETERS,
    CHANGES_PARAMETERS,
    ENTRIES_PARAMETERS,
    KEY_PARAMETERS,
    SCAN_PARAMETERS,
    STORE_CHANGES_PARAMETERS,
    WORKER_PARAMETERS,
    ReadParameters,
    openapi_parameters,
    text_parameters,
)
from forebay.wire.scans import SCAN_ROUTES, ScanRoute
from forebay.wire.server_sent_events import EVENTS_MEDIA_TYPE
from forebay_web.application import ANSWER_HEADERS, body_of, respond, responses
from forebay_web.explanations import EXPLAIN_PARAMETER
from forebay_web.limits import Held, Limits
from forebay_web.tickets import Tickets

Endpoint = Callable[[Request], Awaitable[Response]]

_MAX_TICKET_BODY_BYTES = 16 << 10


class _PostedCursor(Struct, forbid_unknown_fields=True):
    """The body of a request for a list: after a long key, a cursor is too long for a URL."""

    cursor: str


def _body(required: str, **members: dict[str, Any]) -> dict[str, Any]:
    """A JSON object as the OpenAPI body of a request, of which one member is required."""
    schema = {"type": "object", "required": [required], "additionalProperties": False, "properties": members}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_CURSOR_BODY = _body("cursor", cursor={"type": "string", "description": "The `next` of the previous page."})
_BATCH_BODY = _body("keys", keys={"type": "array", "items": {}, "maxItems": MAX_KEYS})
_TICKET_BODY = _body(
    "store",
    store={"type": "string", "description": "The store whose streams it opens."},
    key={
        "type": "string",
        "description": "The only key whose stream it opens, as in the path before it is encoded.",
    },
)


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
    method: str = "GET"
    problems: tuple[type[Problem], ...] = ()
    """Those that it has on both tiers, beside what reads have."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else OpenAPI says of it: its body, a description."""

    @property
    def is_stream(self) -> bool:
        """Whether its answers are event streams."""
        return self.media_type == EVENTS_MEDIA_TYPE


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
    "/v1/stores/{store}/batch-get",
    "Read several keys",
    KEY_PARAMETERS,
    reference(BatchAnswer),
    method="POST",
    problems=(BodyTooLarge, AnswerTooLarge),
    extra=_BATCH_BODY,
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
    extra={
        "description": "Server-sent events: `value`, with the members that a read of the key has; `absent`, "
        "without `value`; `lag` between changes; `problem` while no answer is possible. Ids are position tokens."
    },
)
STORE_CHANGES_ROUTE = ReadRoute(
    "/v1/stores/{store}/changes",
    "Follow many keys",
    STORE_CHANGES_PARAMETERS,
    {"type": "string"},
    media_type=EVENTS_MEDIA_TYPE,
    extra={
        "description": "Server-sent events: `reset`, which names the partitions whose keys are to be forgotten; "
        "`values` and `absent`, with one partition's items as its lists have them, and its provenance; `lag`, the "
        "worst of all partitions, once all that is known was sent; `problem` while partitions cannot be read."
    },
)


READ_PROBLEMS: tuple[type[Problem], ...] = (
    BadKey,
    BadParameter,
    HistoryExpired,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
    PositionOfAnotherLog,
    LagExceedsTolerance,
    RecordTooOld,
    Overloaded,
    NotReady,
    PartitionerMismatch,
)
"""Those of reads on both tiers."""
CHANGES_PROBLEMS: tuple[type[Problem], ...] = (
    BadKey,
    BadParameter,
    UnknownStore,
    WrongStoreKind,
    PositionOfAnotherLog,
    UnknownPartitioner,
    Overloaded,
)
"""Those of streams on both tiers."""


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
    """Add a route, whose GET takes ``WORKER_PARAMETERS`` too on a worker. Documents are read by HEAD, too, for
    their headers, and lists by POST, after a key that makes the cursor too long for a URL."""
    known = route.parameters | (WORKER_PARAMETERS if worker and route.method == "GET" else frozenset())
    problems = (*problems, *route.problems)
    if route.scan is not None or route.is_stream:
        endpoint, problems = _without_length(endpoint), (*problems, HttpVersionNotSupported)
    _add(app, route, problems, endpoint, known)
    if route.scan is not None:
        summary = f"{route.summary} after a long cursor"
        posted = replace(route, summary=summary, method="POST", extra=_CURSOR_BODY)
        _add(app, posted, (*problems, BodyTooLarge), endpoint, known - {"cursor"})
    if route.method == "GET" and not route.is_stream:
        app.router.add_api_route(
            route.path, endpoint, route_class_override=_PlainRoute, methods=["HEAD"], include_in_schema=False
        )


class _PlainRoute(APIRoute):
    """Passes its endpoint the request and returns its response unchanged: there are no dependencies to resolve."""

    def get_route_handler(self) -> Endpoint:  # type: ignore[override]  # FastAPI's is async.
        return self.endpoint


def _add(
    app: FastAPI,
    route: ReadRoute,
    problems: tuple[type[Problem], ...],
    endpoint: Endpoint,
    known: frozenset[str],
) -> None:
    names = [name for name in ("store", "key") if f"{{{name}}}" in route.path]
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    last = LAST_EVENT_ID_PARAMETER if route.is_stream else EXPLAIN_PARAMETER
    app.router.add_api_route(
        route.path,
        endpoint,
        route_class_override=_PlainRoute,
        methods=[route.method],
        tags=["reads"],
        summary=route.summary,
        operation_id=route.summary.lower().replace(" ", "_"),
        response_class=Response,
        responses=responses(*problems, schema=route.schema, media_type=route.media_type, headers=route.headers),
        openapi_extra={"parameters": [*in_path, *openapi_parameters(known), last], **route.extra},
    )


async def cursor_of_body(request: Request, memory: Held) -> str | None:
    """The cursor that a POST has as its body, None for a GET.

    The body is held in ``memory``, and the key in it, which is decoded. Raises ``BadRequest``, ``BodyTooLarge``
    or ``Overloaded``.
    """
    if request.method != "POST":
        return None
    body = await body_of(request, MAX_BODY_BYTES, memory)
    try:
        cursor = read_json(body, _PostedCursor).cursor
    except ValueError:
        raise BadRequest('The body must be {"cursor": "…"} and nothing else.') from None
    memory.take(len(cursor))
    return cursor


def continued(parameters: ReadParameters, cursor: str | None) -> ReadParameters:
    """The parameters with a cursor that came as a body, if any; raises ``BadParameter`` if there are two."""
    if cursor is None:
        return parameters
    if parameters.cursor is not None:
        raise BadParameter("There is a cursor in the query and another in the body.", parameter="cursor")
    return replace(parameters, cursor=cursor)


def add_ticket_route(app: FastAPI, tickets: Tickets, spec: Callable[[str], StoreSpec], limits: Limits) -> None:
    """Add ``POST /v1/tickets``; ``spec`` raises ``UnknownStore`` or ``NotReady``."""

    @app.post(
        "/v1/tickets",
        tags=["reads"],
        summary="Issue a ticket",
        operation_id="issue_ticket",
        response_class=Response,
        responses=responses(
            *(BadParameter, UnknownStore, BodyTooLarge, Overloaded, NotReady), schema=reference(TicketAnswer)
        ),
        openapi_extra=_TICKET_BODY,
    )
    async def ticket(request: Request) -> Response:
        """A ticket, which opens event streams in place of a token for a minute, as the parameter `ticket`."""
        text_parameters(request.scope["query_string"])
        with limits.memory_of(limits.peers.of(request.scope)) as memory:
            store, key = _requested(await body_of(request, _MAX_TICKET_BODY_BYTES, memory))
        authorization = request.headers.get("authorization", "").encode("latin-1")
        text, expires_ms = tickets.issue(authorization.strip(b" \t"), spec(store).name, key)
        return respond(json_answer(TicketAnswer(text, expires_ms)))


def _requested(body: bytes) -> tuple[str, str | None]:
    """The store and the key that a body names; raises ``BadRequest``."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and document.keys() <= {"store", "key"}:
        store, key = document.get("store"), document.get("key")
        if isinstance(store, str) and (key is None or isinstance(key, str)):
            return store, key
    raise BadRequest('The body must be {"store": "…"}, with "key": "…" for one key only, both as in the path.')
