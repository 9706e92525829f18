"""The parameter of event streams that shows a ticket."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.wire.parameters import has_too_many, split_query
from forebay_web.tickets import followed

TICKET = "forebay.ticket"
"""Where a scope has the ticket that was shown."""
TICKET_HOLDER = "forebay.ticket_holder"
"""Where it has the digest of the token that an accepted ticket was issued for."""

_PARAMETER, _SPELLED = "ticket", b"ticket"


class TicketParameter:
    """Takes the ticket out of a stream's query: what is behind cannot log it, repeat it or pass it on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and followed(scope["raw_path"].decode("ascii", "replace")) is not None:
            _take_ticket(scope)
        await self._app(scope, receive, send)


def _take_ticket(scope: Scope) -> None:
    query = scope["query_string"]
    # Nobody is known yet, so nothing is done that takes time. What is left is refused later.
    if has_too_many(query) or (_SPELLED not in query and b"%" not in query):
        return
    items = list(split_query(query))
    given = [item for item in items if item.name == _PARAMETER]
    # Two are refused like any parameter that is given twice.
    if len(given) == 1:
        scope[TICKET] = given[0].value.decode("utf-8", "replace")
        scope["query_string"] = b"&".join(item.received for item in items if item.name != _PARAMETER)
