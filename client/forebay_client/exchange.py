"""The exchange of requests and answers: to which servers, until when, and with which retries.

It does no I/O: a plan is a generator that yields steps, and a blocking or an asynchronous client executes them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import httpx

from forebay.errors import AnswerMismatch, DeadlineExceeded, NoReplica, Problem
from forebay.listen_addresses import is_unix
from forebay.wire.answers import OF_THE_SERVER, problem_of
from forebay.wire.key_changes import KEEP_ALIVE_MS, is_transient
from forebay.wire.server_sent_events import EVENTS_MEDIA_TYPE
from forebay_client.options import query_string
from forebay_client.proxies import Proxy
from forebay_client.results import parse_document
from forebay_client.server_urls import http_url, server_urls

_TRIES_PER_URL = 2
"""A server may close an idle connection just as a request is sent on it: that does not mean it is down."""
_GRACE_MS = 100.0
"""How much longer to wait for the server's own deadline problem, which lists the replicas asked."""
_STREAM_GRACE_MS = 2_000.0
"""A stream starts with whatever there is once its time is over, from one replica after the other."""
_CONNECT_SHARE = 1 / 3
"""Of the time, what an address may take that does not answer."""
_MIN_PAUSE_S = 0.1
_SILENCE_S = KEEP_ALIVE_MS / 1000 + 5
"""A stream that is silent for this long is lost: its server would have sent a comment."""
_PAUSE_S = 0.25
"""For proxies that do not say how long to wait."""

T = TypeVar("T")
MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
"""What reading a document raises that is not of the expected form."""
Mismatch: TypeAlias = Callable[[Mapping[str, Any]], str | None]
"""How a document, an answer or a problem, belongs to another request; None if it does not."""


@dataclass(frozen=True)
class Send:
    """A step: send a request and reply with the response, or with the error that prevented one."""

    method: str
    url: str
    body: bytes | None
    timeout: httpx.Timeout
    last_event_id: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers beyond the usual."""
        headers = {} if self.body is None else {"content-type": "application/json"}
        return headers if self.last_event_id is None else {**headers, "last-event-id": self.last_event_id}


@dataclass(frozen=True)
class Open(Send):
    """A step: the same, but a 200 response is delivered before its body has arrived."""


@dataclass(frozen=True)
class Opened:
    """A response whose body has not arrived yet, and the body's pieces, which only the executor of steps can
    read."""

    response: httpx.Response
    pieces: Any
    connections: Any = None
    """To which it belongs, if its executor has several sets of them."""

    def __post_init__(self) -> None:
        # A body may be silent for longer than a head; the time-out is evaluated for each piece.
        self.response.request.extensions["timeout"]["read"] = _SILENCE_S


@dataclass(frozen=True)
class Receive:
    """A step: reply with the next piece of a body, nothing at its end, or with the error that broke it."""

    opened: Opened


@dataclass(frozen=True)
class Close:
    """A step: close a response whose body has not arrived yet."""

    opened: Opened


@dataclass(frozen=True)
class Discard:
    """A step: see to it that the connection of a complete response is not used again."""

    response: httpx.Response


@dataclass(frozen=True)
class Pause:
    """A step: wait this many seconds."""

    seconds: float


Step: TypeAlias = Send | Receive | Close | Discard | Pause
Reply: TypeAlias = httpx.Response | Opened | bytes | httpx.RequestError | None
Plan: TypeAlias = Generator[Step, Reply, T]


@dataclass(frozen=True)
class Request:
    """A request to any server; one with a body is a POST."""

    path: str
    parameters: dict[str, Any]
    mismatch: Mismatch
    body: bytes | None = None
    timed: bool = True
    """Whether the path takes ``timeout_ms``."""
    streamed: bool = False
    """Whether the body is streamed."""
    last_event_id: str | None = None


RefusalIn: TypeAlias = Callable[[dict[str, Any]], Problem | None]
"""What in a document counts as a refusal to answer."""


class Exchange:
    """Asks the first of several servers that can be reached, and retries if it says that waiting helps."""

    def __init__(
        self,
        urls: str | Sequence[str],
        timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        proxies: Mapping[str, Proxy] | None = None,
        decimals: bool = False,
    ) -> None:
        self.decimals = decimals
        """Whether values have a ``Decimal`` where they would have a float."""
        self._urls = server_urls(urls)
        self._http_urls = list(map(http_url, self._urls))
        self._proxies = proxies or {}
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._first = 0

    def deadline(self, timeout_ms: int | None = None, wait_ms: int = 0) -> float:
        """The deadline of a call that begins now, in milliseconds of the clock: waits are beside the default."""
        return self._now_ms() + (self._timeout_ms + wait_ms if timeout_ms is None else timeout_ms)

    def ask(
        self, request: Request, deadline_ms: float, refusal_in: RefusalIn = lambda _: None
    ) -> Plan[dict[str, Any]]:
        """The document that answers a request; raises ``Problem``.

        On 429, 502, 503 and 504 the other servers are asked, then all again after ``Retry-After``, if time
        permits; ``refusal_in`` tells what in a document counts as such an answer. An answer to another request is
        discarded with its connection, and the next server asked; a second one raises ``AnswerMismatch``.
        """
        problem: Problem | None = None
        refused: dict[int, float] = {}
        has_mismatched = False
        while True:
            response, server = yield from self._reach(request, deadline_ms, refused)
            if response is not None:
                assert isinstance(response, httpx.Response)
                content = content_of(request, response, self._via(server), decimals=self.decimals)
                if isinstance(content, str):
                    yield Discard(response)
                    self.turn_from(server)
                    if has_mismatched:
                        raise mismatched(f"{response.url}{self._via(server)}", content)
                    has_mismatched = True
                    continue
                problem = content if isinstance(content, Problem) else refusal_in(content)
                if problem is None or problem.status not in OF_THE_SERVER:
                    if isinstance(content, Problem):
                        raise content
                    return content
                refused[server] = _pause_s(problem)
                self.turn_from(server)
            assert problem is not None
            all_refused = response is None or len(refused) == len(self._urls)
            pause_s = min(refused.values()) if all_refused else 0.0
            if self._now_ms() + pause_s * 1000 >= deadline_ms:
                raise problem
            if all_refused:
                yield Pause(pause_s)
                refused.clear()

    def open(self, request: Request, deadline_ms: float) -> Plan[tuple[Opened, int]]:
        """The stream of the first server that provides one, and that server; raises ``Problem``."""
        for left in reversed(range(len(self._urls))):
            reply, server = yield from self._reach(request, deadline_ms, ())
            assert reply is not None
            if isinstance(reply, Opened):
                if reply.response.headers.get("content-type", "").startswith(EVENTS_MEDIA_TYPE):
                    return reply, server
                yield Close(reply)
                raise not_forebay(reply.response, "a stream of events", self._via(server))
            problem = problem_of_response(reply, self._via(server))
            if is_transient(problem):
                self.turn_from(server)
            if reply.status_code not in OF_THE_SERVER or not left or self._now_ms() >= deadline_ms:
                break
        raise problem

    @property
    def several(self) -> bool:
        """Whether there is another server to turn to."""
        return len(self._urls) > 1

    def turn_from(self, server: int) -> None:
        """Ask another server first from now on, unless it is another already."""
        if self._first == server:
            self._first = (self._first + 1) % len(self._urls)

    def _reach(
        self, request: Request, deadline_ms: float, refused: Container[int]
    ) -> Plan[tuple[httpx.Response | Opened | None, int]]:
        """The response of the first server that gives one, except those that refused, and that server; None if no
        other does."""
        attempts: list[dict[str, str]] = []
        first, tries = self._first, _TRIES_PER_URL * len(self._urls)
        to_ask = sum(number not in refused for number in range(len(self._urls)))
        for turn in range(tries):
            number = (first + turn) % len(self._urls)
            if number in refused:
                continue
            url = self._urls[number]
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                raise DeadlineExceeded(in_vain("No server answered in time", attempts), attempts=attempts)
            reply = yield request_step(request, self._http_urls[number], left_ms, max(1, to_ask - len(attempts)))
            if isinstance(reply, httpx.Response | Opened):
                return reply, number
            assert isinstance(reply, httpx.RequestError)
            # Not asked first next time: it may accept connections and never answer.
            self.turn_from(number)
            attempts.append({"host": url, "outcome": f"{type(reply).__name__}: {reply}{self._via(number)}"})
        if len(attempts) < tries:
            return None, first
        unreached = f"None of {', '.join(self._urls)} could be reached"
        raise NoReplica(in_vain(unreached, attempts), attempts=attempts)

    def _via(self, server: int) -> str:
        """What messages about a server add if it is reached through a proxy or a Unix socket."""
        url = self._urls[server]
        if is_unix(url):
            return f", through {url}"
        proxy = self._proxies.get(url)
        return "" if proxy is None else f", through {proxy}"

    def _now_ms(self) -> float:
        return self._clock() * 1000


def request_step(request: Request, url: str, left_ms: float, urls_left: int) -> Send:
    """The step that sends a request to one server, which leaves the servers that are left to ask their share of
    the time."""
    parameters = dict(request.parameters)
    # One that accepts connections and never answers must leave the others some time.
    wait_ms = min(parameters.get("wait_ms") or 0, left_ms)
    share_ms, grace_ms = (left_ms - wait_ms) / urls_left, _GRACE_MS
    connect_s = left_ms * min(_CONNECT_SHARE, 1 / urls_left) / 1000
    if request.streamed:
        grace_ms = _STREAM_GRACE_MS
        if urls_left > 1:
            grace_ms = min(grace_ms, share_ms / 2)
            share_ms -= grace_ms
    server_timeout_ms = wait_ms + share_ms
    if request.timed:
        parameters["timeout_ms"] = math.ceil(server_timeout_ms)
    query = query_string(parameters)
    url += f"{request.path}{'?' if query else ''}{query}"
    timeout = httpx.Timeout((server_timeout_ms + grace_ms) / 1000, connect=connect_s)
    if request.streamed:
        return Open("GET", url, None, timeout, request.last_event_id)
    method = "GET" if request.body is None else "POST"
    return Send(method, url, request.body, timeout)


def content_of(
    request: Request, response: httpx.Response, via: str = "", *, decimals: bool
) -> dict[str, Any] | Problem | str:
    """The document of an answer, the problem that it is, or how it belongs to another request.

    Raises ``Problem`` if no router or worker answers so.
    """
    document = _document(response, decimals)
    mismatch = None if document is None else understood(request.mismatch, document)
    if mismatch is not None:
        return mismatch
    if response.status_code != 200:
        return problem_of_response(response, via)
    if document is None:
        raise not_forebay(response, "a JSON object", via)
    return document


def not_forebay(response: httpx.Response, expected: str, via: str = "") -> Problem:
    """The problem for a 200 of something else than a router or worker."""
    return Problem(f"{response.url} answered 200 with something other than {expected}{via}.", status=200)


def _pause_s(problem: Problem) -> float:
    """When to retry a server that refused; a router or worker that does not say when means never."""
    if problem.retry_after_s is not None:
        return max(problem.retry_after_s, _MIN_PAUSE_S)
    return _PAUSE_S if type(problem) is Problem else math.inf


def _document(response: httpx.Response, decimals: bool) -> dict[str, Any] | None:
    """A response's JSON object, None if it is something else."""
    try:
        document = parse_document(response.content, decimals=decimals)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def understood(read: Callable[[dict[str, Any]], T], document: dict[str, Any]) -> T:
    """What is read in a document; raises ``Problem`` if that is not there."""
    try:
        return read(document)
    except MALFORMED:
        raise Problem(
            "The answer is a JSON object, but not that of a read: the server is neither a router nor a worker.",
            status=200,
        ) from None


def mismatched(request: str, mismatch: str) -> AnswerMismatch:
    """The error for answers to other requests."""
    return AnswerMismatch(
        f"{request} was answered with {mismatch}, on two connections; neither answer was used. Find the proxy "
        "that mixes up or caches answers."
    )


def in_vain(what: str, attempts: Sequence[Mapping[str, Any]]) -> str:
    """A message about attempts none of which had an answer."""
    return f"{what}, the last: {attempts[-1]['outcome']}" if attempts else f"{what}."


def problem_of_response(response: httpx.Response, via: str = "") -> Problem:
    """The exception for a failed response; the message points out one without a problem document, as from a proxy.

    ``via`` is added there, such as ``", through the proxy http://127.0.0.1:3128 of HTTP_PROXY"``.
    """
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = int(retry_after) if retry_after.isdecimal() else None
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "type" not in document:
        status_line = f"{response.status_code} {response.reason_phrase}"
        document = {
            "type": "about:blank",
            "title": response.reason_phrase,
            "status": response.status_code,
            "detail": f"{response.url} answered {status_line} without a problem document{via}: "
            "that server is neither a router nor a worker.",
        }
    problem = problem_of(document, retry_after_s)
    # Also for an unknown type.
    problem.status = response.status_code
    return problem
