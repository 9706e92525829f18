"""``POST /v1/tickets``, the same on both tiers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.errors import BadParameter, BadRequest, BodyTooLarge, NotReady, Overloaded, UnknownStore
from forebay.store_spec import StoreSpec
from forebay.wire.answer_schemas.components import reference
from forebay.wire.answer_schemas.status import TicketAnswer
from forebay.wire.answers import json_answer
from forebay.wire.parameters import text_parameters
from forebay_web.application import body_of, respond, responses
from forebay_web.limits import Limits
from forebay_web.tickets import Tickets

TICKETS_PATH = "/v1/tickets"
_MAX_BODY_BYTES = 16 << 10
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["store"],
                "additionalProperties": False,
                "properties": {
                    "store": {"type": "string", "description": "The store whose streams it opens."},
                    "key": {
                        "type": "string",
                        "description": "The only key whose stream it opens, as in the path before it is encoded.",
                    },
                },
            }
        }
    },
}


def add_ticket_route(app: FastAPI, tickets: Tickets, spec: Callable[[str], StoreSpec], limits: Limits) -> None:
    """Add the route; ``spec`` raises ``UnknownStore`` or ``NotReady``."""

    @app.post(
        TICKETS_PATH,
        tags=["reads"],
        summary="Issue a ticket",
        operation_id="issue_ticket",
        response_class=Response,
        responses=responses(
            *(BadParameter, UnknownStore, BodyTooLarge, Overloaded, NotReady), schema=reference(TicketAnswer)
        ),
        openapi_extra={"requestBody": _BODY},
    )
    async def ticket(request: Request) -> Response:
        """A ticket, which opens event streams in place of a token for a minute, as the parameter `ticket`."""
        text_parameters(request.scope["query_string"])
        with limits.memory_of(limits.peers.of(request.scope)) as memory:
            store, key = _requested(await body_of(request, _MAX_BODY_BYTES, memory))
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
