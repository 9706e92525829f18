"""Checks every request, its host and its credentials, before the application sees it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.authentication import Authenticator
from forebay.errors import BadRequest, HostNotAllowed, Problem
from forebay.grants import Access, GrantedTokens
from forebay.store_spec import StoreSpec
from forebay.wire.answer_schemas.status import IDENTITY_PATH
from forebay.wire.answers import problem_answer
from forebay.wire.batches import read_batch_keys
from forebay.wire.parameters import ReadParameters
from forebay_web.hosts import AllowedHosts
from forebay_web.request_tracing import stated_body
from forebay_web.tickets import TICKET, TICKET_HOLDER, Tickets, take_ticket

OPEN_PATHS = ("/livez", "/readyz", IDENTITY_PATH)
"""Open to all: load balancers and supervisors have no token, and routers send theirs only to whom they know."""
SNAPSHOTS_PATH = "/v1/snapshots"
"""Workers' copies of stores, and what is below: their routes take the workers' own credential, and no client's."""
CONSOLE_PATH = "/console"
"""The page and, below, its files. They contain no data; what the page requests needs a token."""

_ACCESS = "forebay.access"
_LATER_REFUSAL = "forebay.later_refusal"
_UNKNOWN = "forebay.unknown"
_MAX_SHOWN_BYTES = 255


def is_unknown(scope: Scope) -> bool:
    """Whether a request to an open path comes from somebody who would get nothing else."""
    return bool(scope.get(_UNKNOWN, False))


def access_of(scope: Scope) -> Access | None:
    """What the principal of a request may do, None if nothing is said of that, so that all is allowed."""
    found: Access | None = scope.get(_ACCESS)
    return found


def sees(scope: Scope, store: str) -> bool:
    """Whether a request may see that there is a store."""
    access = access_of(scope)
    return access is None or access.sees(store)


def require_listed(scope: Scope, store: str, parameters: ReadParameters) -> None:
    """Raise ``Forbidden`` unless a request may list all keys that it selects."""
    access = access_of(scope)
    if access is not None:
        access.require_range("list", store, (parameters.prefix or b"").decode("utf-8", "replace"))


def require_followed(scope: Scope, spec: StoreSpec, parameters: ReadParameters) -> None:
    """Raise ``Forbidden`` unless a request may follow all keys that it selects; raises ``BadRequest``."""
    access = access_of(scope)
    if access is None:
        return
    if parameters.keys is None:
        access.require_range("follow", spec.name, (parameters.prefix or b"").decode("utf-8", "replace"))
    else:
        keys = read_batch_keys(b'{"keys":%b}' % parameters.keys).values
        deque(access.require_keys("follow", spec, keys), maxlen=0)


def later_refusal(scope: Scope) -> Problem | None:
    """Why an accepted request would now be refused, None if it would not: an answer may outlast a token."""
    refusal: Callable[[Scope], Problem | None] | None = scope.get(_LATER_REFUSAL)
    return None if refusal is None else refusal(scope)


def _is_for_itself(path: str) -> bool:
    """Whether what is at a path needs no client's credential: the console's page, and workers' copies."""
    return path == "/" or any(path == own or path.startswith(f"{own}/") for own in (CONSOLE_PATH, SNAPSHOTS_PATH))


async def refuse(problem: Problem, refusals: Counter[int], send: Send) -> None:
    """Answer with a problem, and count it by its status."""
    refusals[problem.status] += 1
    answer = problem_answer(problem)
    body = stated_body(answer)
    headers = [*answer.headers(), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Guard:
    """Answers requests that name another host, and those that the authenticator refuses; others go on.

    So do all to ``OPEN_PATHS``, which then get the status only. A request without a host, as of HTTP/1.0, is no
    browser's. It runs after CORS, which answers preflights by itself: a browser sends no token with them.
    ``refusals`` counts refused requests by status.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: AllowedHosts,
        authenticator: Authenticator | None,
        tickets: Tickets,
        refusals: Counter[int],
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._authenticator = authenticator
        self._granted = authenticator if isinstance(authenticator, GrantedTokens) else None
        self._tickets = tickets
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            take_ticket(scope)
            problem = self._host_refusal(scope) or self._refusal(scope)
            scope[_LATER_REFUSAL], scope[_UNKNOWN] = self._refusal, problem is not None
            if problem is not None and scope["path"] not in OPEN_PATHS:
                await refuse(problem, self._refusals, send)
                return
        await self._app(scope, receive, send)

    def _host_refusal(self, scope: Scope) -> Problem | None:
        named = [value for name, value in scope["headers"] if name == b"host"]
        other = next((host for host in named if not self._hosts.allows(host)), None)
        if other is None:
            return None
        shown = other[:_MAX_SHOWN_BYTES].decode("latin-1")
        return HostNotAllowed(
            f"The host {shown!r} is not this process's; an operator can allow its name with --allowed-hosts."
        )

    def _refusal(self, scope: Scope) -> Problem | None:
        if self._authenticator is None or _is_for_itself(scope["path"]):
            return None
        if TICKET in scope:
            return self._ticket_refusal(scope)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:
            return BadRequest("The request has more than one Authorization header; send one.")
        try:
            authorization = given[0].strip(b" \t") if given else b""
            self._authenticator.authenticate(scope["method"], scope["path"], authorization)
            if self._granted is not None:
                scope[_ACCESS] = self._granted.access(authorization)
        except Problem as problem:
            return problem
        return None

    def _ticket_refusal(self, scope: Scope) -> Problem | None:
        """Why a ticket does not open a stream; of a stream that it has opened, whether its token is gone."""
        try:
            if TICKET_HOLDER in scope:
                self._tickets.require_known(scope[TICKET_HOLDER])
            else:
                scope[TICKET_HOLDER] = self._tickets.open(scope[TICKET], scope["method"], scope["path"])
        except Problem as problem:
            return problem
        return None
