"""Answers as bytes: made once, sent identically by every route of a tier; and problems read back as exceptions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from forebay.errors import PROBLEM_MEDIA_TYPE, Problem, Unauthenticated
from forebay.lag import Lag

JSON_HEAD = b"content-type: application/json\r\n"
PROBLEM_HEAD = b"content-type: " + PROBLEM_MEDIA_TYPE.encode() + b"\r\n"
NO_STORE = b"cache-control: no-store\r\n"
_OWN_HEAD = JSON_HEAD + NO_STORE
_NAMED = re.compile(rb"forebay-problem: ([a-z-]+)\r\n")
CHALLENGE = b"www-authenticate: Bearer\r\n"

MAX_ANSWER_BYTES = 64 << 20
"""The longest body that a worker sends, and that a router takes from one: whatever is there, it cannot fill
either."""

WITH_LAG = frozenset({200, 404})
"""A replica has read the key, and states its lag; bounds do not apply to refusals."""
AT_FAULT = frozenset({400, 409, 413})
"""The request cannot be answered, by whichever replica."""
FINAL = WITH_LAG | AT_FAULT | {410}
"""No replica would answer otherwise."""
OF_THE_REPLICA = frozenset({412, 421, 503})
"""Another replica may answer."""
OF_THE_SERVER = frozenset({429, 502, 503, 504})
"""Another server, or this one a moment later, may answer; includes a proxy's own."""
TRANSIENT = OF_THE_REPLICA | OF_THE_SERVER
"""A later attempt may be answered."""

_PREFIX = "urn:forebay:problem:"
_CLASSES = {kind.name: kind for kind in Problem.__subclasses__()}
_OWN_MEMBERS = ("type", "title", "status", "detail", "retry_after_s")


class HttpAnswer(NamedTuple):
    """Status, header lines (each ended by CRLF, without content-length) and body."""

    status: int
    head: bytes
    body: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.body)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The header lines as ASGI wants them."""
        return header_lines(self.head)


def header_lines(head: bytes) -> list[tuple[bytes, bytes]]:
    """Header lines as ASGI wants them."""
    split = [line.partition(b": ") for line in head.split(b"\r\n")[:-1]]
    return [(name, value) for name, _, value in split]


class ReplicaInfo(NamedTuple):
    """The source of an answer: a replica, its role, and how far it was."""

    partition: int
    position: str
    role: str
    host: str
    lag: Lag


def lag_json(lag: Lag) -> bytes:
    """The ``lag`` member."""
    record_lag, time_lag_ms, age_ms = lag
    return b'{"record_lag":%b,"time_lag_ms":%b,"age_ms":%b}' % (
        b"null" if record_lag is None else b"%d" % record_lag,
        b"null" if time_lag_ms is None else b"%d" % time_lag_ms,
        b"null" if age_ms is None else b"%d" % age_ms,
    )


@lru_cache(maxsize=4096)
def _lasting(partition: int, position: str, role: str, host: str) -> tuple[bytes, bytes]:
    """The parts of a provenance that do not change every millisecond: as document members, and as header lines."""
    figures = (position.encode(), role.encode(), host.encode())
    members = b'"partition":%d,"position":"%b","role":"%b","host":"%b","lag":' % (partition, *figures)
    return members, b"forebay-position: %b\r\nforebay-role: %b\r\nforebay-host: %b\r\n" % figures


@lru_cache(maxsize=4096)
def _forms(partition: int, position: str, role: str, host: str) -> tuple[bytes, bytes]:
    """The header lines and the members of a provenance without the figures of its lag, which are all known.

    Why: with a thousand replicas most reads are the first of their millisecond at theirs.
    """
    members, lines = (part.replace(b"%", b"%%") for part in _lasting(partition, position, role, host))
    head = b"forebay-record-lag: %d\r\nforebay-time-lag-ms: %d\r\nforebay-age-ms: %d\r\n"
    return _OWN_HEAD + head + lines, members + b'{"record_lag":%d,"time_lag_ms":%d,"age_ms":%d}'


def provenance_members(source: ReplicaInfo) -> dict[str, Any]:
    """The same members as JSON values, for problems."""
    return {**source._asdict(), "lag": source.lag.document()}


def lag_head(lag: Lag) -> bytes:
    """The header lines of a lag; those of unknown figures are absent."""
    record_lag, time_lag_ms, age_ms = lag
    return b"%b%b%b" % (
        b"" if record_lag is None else b"forebay-record-lag: %d\r\n" % record_lag,
        b"" if time_lag_ms is None else b"forebay-time-lag-ms: %d\r\n" % time_lag_ms,
        b"" if age_ms is None else b"forebay-age-ms: %d\r\n" % age_ms,
    )


def replica_info_head(source: ReplicaInfo) -> bytes:
    """The ``forebay-`` header lines."""
    partition, position, role, host, lag = source
    return lag_head(lag) + _lasting(partition, position, role, host)[1]


class EncodedReplicaInfo(NamedTuple):
    """A provenance with the bytes that it adds to every answer."""

    source: ReplicaInfo
    json_head: bytes
    """The header lines of a JSON answer."""
    members: bytes
    """The members of the document, without braces."""
    tail: bytes
    """The same as the rest of a document, with its closing brace."""


def encode_replica_info(source: ReplicaInfo) -> EncodedReplicaInfo:
    """A provenance in bytes, reused until it changes."""
    partition, position, role, host, lag = source
    if None not in lag:
        head, members = _forms(partition, position, role, host)
        shown = members % lag
        return EncodedReplicaInfo(source, head % lag, shown, b",%b}" % shown)
    lasting_members, lasting_lines = _lasting(partition, position, role, host)
    members = lasting_members + lag_json(lag)
    return EncodedReplicaInfo(source, _OWN_HEAD + lag_head(lag) + lasting_lines, members, b",%b}" % members)


def is_problem(answer: HttpAnswer, kind: type[Problem]) -> bool:
    """Whether an answer is a problem of this kind, by its header."""
    return _named_in_head(kind.name) in answer.head


def problem_name(answer: HttpAnswer) -> str:
    """The name of the problem that an answer is, by its header; nothing if it is none."""
    found = _NAMED.search(answer.head)
    return "" if found is None else found[1].decode()


@lru_cache(maxsize=256)
def _named_in_head(name: str) -> bytes:
    return b"forebay-problem: %b\r\n" % name.encode()


def problem_answer(problem: Problem, source: ReplicaInfo | None = None, lines: bytes = b"") -> HttpAnswer:
    """A problem as an answer, with the headers of the replica that found it, or other header lines of several."""
    head = PROBLEM_HEAD + NO_STORE + lines
    if source is not None:
        head += replica_info_head(source)
    if isinstance(problem, Unauthenticated):
        head += CHALLENGE
    if problem.retry_after_s is not None:
        head += b"retry-after: %d\r\n" % problem.retry_after_s
    return HttpAnswer(problem.status, head + _named_in_head(problem.name), problem.body())


def json_answer(document: Any, status: int = 200) -> HttpAnswer:
    """Any document, an object of ``forebay.wire.answer_schemas`` or JSON values, as an answer."""
    return HttpAnswer(status, JSON_HEAD + NO_STORE, json_body(document))


def json_body(document: Any) -> bytes:
    """A document in JSON; what a name of a file has beside characters becomes question marks."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        builtins = msgspec.to_builtins(document)
        return json.dumps(builtins, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def problem_of(document: Mapping[str, Any], retry_after_s: int | None = None) -> Problem:
    """The exception for a problem document: the class of its type, else ``Problem`` with the whole document.

    If the document states a lag, the exception has it as ``lag``.
    """
    detail = str(document.get("detail", ""))
    kind = _CLASSES.get(str(document.get("type", "")).removeprefix(_PREFIX))
    own = _OWN_MEMBERS if kind else ("detail", "retry_after_s")
    retry_after = document.get("retry_after_s")
    retry_after_s = retry_after if retry_after_s is None and isinstance(retry_after, int) else retry_after_s
    members = {name: value for name, value in document.items() if name not in own}
    problem = (kind or Problem)(detail, retry_after_s=retry_after_s, **members)
    lag = document.get("lag")
    if isinstance(lag, Mapping):
        problem.lag = Lag(*(lag.get(figure) for figure in Lag._fields))
    return problem
