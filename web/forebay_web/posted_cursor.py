"""Cursors in the body of a request: after a long key, a cursor is too long for a URL.

A list is read by POST then, with the parameters of GET in its query and ``{"cursor": "…"}`` as its body.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fastapi import Request

from forebay.errors import BadParameter, BadRequest
from forebay.wire.batches import MAX_BODY_BYTES
from forebay.wire.parameters import ReadParameters
from forebay_web.application import body_of
from forebay_web.limits import Held

POSTED_CURSOR_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["cursor"],
                "additionalProperties": False,
                "properties": {"cursor": {"type": "string", "description": "The `next` of the previous page."}},
            }
        }
    },
}


async def cursor_of_body(request: Request, memory: Held) -> str | None:
    """The cursor that a POST has as its body, None for a GET.

    The body is held in ``memory``, and the key in it, which is decoded. Raises ``BadRequest``, ``BodyTooLarge``
    or ``Overloaded``.
    """
    if request.method != "POST":
        return None
    body = await body_of(request, MAX_BODY_BYTES, memory)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest('The body is not JSON; send {"cursor": "…"}.') from None
    if not isinstance(document, dict) or set(document) != {"cursor"} or type(document["cursor"]) is not str:
        raise BadRequest('The body must be {"cursor": "…"} and nothing else.')
    cursor: str = document["cursor"]
    memory.take(len(cursor))
    return cursor


def continued(parameters: ReadParameters, cursor: str | None) -> ReadParameters:
    """The parameters with a cursor that came as a body, if any; raises ``BadParameter`` if there are two."""
    if cursor is None:
        return parameters
    if parameters.cursor is not None:
        raise BadParameter("There is a cursor in the query and another in the body.", parameter="cursor")
    return replace(parameters, cursor=cursor)
