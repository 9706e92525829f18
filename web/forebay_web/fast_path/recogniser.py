"""Strictly recognises complete, ordinary single-key GETs and batches in received bytes.

Full HTTP parsers read everything accepted here as the same request; an unexpected body, an absolute target or an
odd byte is left to them, as are all headers that are not ordinary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from forebay.request_trace import RequestTrace, cut_out
from forebay.wire.batches import MAX_BODY_BYTES
from forebay_web.fast_path.header_block import classify_headers

_HEAD_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = 4_096
# A longer query is left to the parser and not cached.
_SEGMENT = rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]++|%[0-9A-Fa-f]{2})++"
_WHOLE_SEGMENT = re.compile(_SEGMENT)
_REQUEST_LINE = re.compile(
    rb"GET /v1/stores/([A-Za-z0-9_][A-Za-z0-9_.\-]*+)/keys/(" + _SEGMENT + rb")"
    rb"(?:\?([A-Za-z0-9\-._~!$&'()*+,;=:@/?%]{0,1024}+))? HTTP/1\.1(?=\r\n)"
)
_BATCH_LINE = re.compile(
    rb"POST /v1/stores/([A-Za-z0-9_][A-Za-z0-9_.\-]*+)/batch-get"
    rb"(?:\?([A-Za-z0-9\-._~!$&'()*+,;=:@/?%]{0,1024}+))? HTTP/1\.1(?=\r\n)"
)
_MAX_BLOCKS = 4096
_MAX_TEMPLATES = 8192
"""In each of two generations: a router asks for each partition in a form of its own."""
_MAX_REMEMBERED_BYTES = 1024
"""Longer forms are parsed each time: what is remembered must be bounded in bytes."""
_DOTS = frozenset({b".", b".."})
_BEFORE_NONE = bytes(_MAX_HEAD_BYTES + 1)
"""Longer than anything compared with it, so nothing starts with it."""


T = TypeVar("T")

_ByParts = dict[bytes, dict[bytes, T]]
"""By the bytes of a request before its key, then by those after it."""


class RequestTemplate(NamedTuple):
    """Everything in a recognised request except its key: what clients repeat with every read.

    ``query`` is as received; ``origin`` is the browser's, ``authorization`` and ``host`` are those headers',
    ``forwarded`` is the chain of hosts that proxies name. Each is empty if absent, which a host never is.
    """

    store: str
    query: bytes
    origin: bytes
    authorization: bytes
    host: bytes
    forwarded: bytes = b""


class RecognisedRead(NamedTuple):
    """A recognised read of one key: its form, the key's segment as received, and where its bytes end."""

    template: RequestTemplate
    segment: bytes
    end: int


class RecognisedBatch(NamedTuple):
    """A recognised batch: its form, its body, whether the answer is to be in frames, and what follows it."""

    template: RequestTemplate
    body: bytes
    frames: bool
    trace: RequestTrace | None = None

    def target(self) -> tuple[str, str]:
        return "POST", f"/v1/stores/{self.template.store}/batch-get"


@lru_cache(maxsize=_MAX_BLOCKS)
def _ordinary(block: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
    """Origin, authorization, host and forwarded of a header block that is ordinary for a request without a body,
    else None. Clients repeat theirs."""
    headers = classify_headers(block)
    return None if headers is None or headers.length or headers.frames else headers[:4]


def is_segment(segment: bytes) -> bool:
    """Whether a path can have these bytes as a segment of its own."""
    return segment.isalnum() or (_WHOLE_SEGMENT.fullmatch(segment) is not None and segment not in _DOTS)


def recognise(data: bytes, at: int = 0) -> RecognisedRead | None:
    """The request that begins at ``at``, None unless it is complete, ordinary and reads a single key."""
    line = _REQUEST_LINE.match(data, at)
    if line is None:
        return None
    line_end = line.end()
    head_end = data.find(_HEAD_END, line_end)
    if head_end < 0 or head_end - at > _MAX_HEAD_BYTES:
        return None
    headers = _ordinary(data[line_end:head_end])
    if headers is None:
        return None
    store, segment, query = line.groups(b"")
    if segment in _DOTS:
        return None
    return RecognisedRead(RequestTemplate(store.decode(), query, *headers), segment, head_end + 4)


def recognise_batch(data: bytes) -> RecognisedBatch | None:
    """The request in ``data``, None unless it is exactly one complete and ordinary ``batch-get``."""
    line = _BATCH_LINE.match(data)
    if line is None:
        return None
    line_end = line.end()
    head_end = data.find(_HEAD_END, line_end)
    if head_end < 0 or head_end > _MAX_HEAD_BYTES:
        return None
    # Not cached: its length makes nearly every block different.
    block, trace = cut_out(data[line_end : head_end + 2])
    headers = classify_headers(block[:-2])
    if headers is None or headers.length != len(data) - head_end - 4 or headers.length > MAX_BODY_BYTES:
        return None
    store, query = line.groups(b"")
    if b"explain=" in query:
        return None
    template = RequestTemplate(store.decode(), query, *headers[:4])
    return RecognisedBatch(template, data[head_end + 4 :], headers.frames, trace)


class PreparedRequests(Generic[T]):
    """What is prepared for each form that clients' requests have, once for all connections.

    Clients send the same each time except for the key. A request in a known form is not parsed again; its key is
    all that is looked at. A bounded number of forms is remembered.
    """

    def __init__(
        self,
        prepare: Callable[[RequestTemplate], T],
        traced: Callable[[T, RequestTrace], T] = lambda prepared, _: prepared,
    ) -> None:
        self._prepare = prepare
        self._traced = traced
        self._known: _ByParts[T] = {}
        self._known_before: _ByParts[T] = {}
        """The generation before: what is not asked for again goes with it."""
        self._remembered = 0

    def find(self, data: bytes, at: int = 0) -> tuple[T, int, int, int] | None:
        """What is prepared for the request that begins at ``at``, its segment's begin and end, and its own end.

        None for whatever ``recognise`` does not recognise.
        """
        target_end = data.find(b" ", at + len(b"GET "))
        segment_end = data.find(b"?", at, target_end) if target_end >= 0 else -1
        if segment_end < 0:
            segment_end = target_end
        begin = data.rfind(b"/", at, segment_end) + 1 if segment_end >= 0 else 0
        end = data.find(_HEAD_END, segment_end) + len(_HEAD_END) if begin > at else 0
        known = self._known.get(data[at:begin]) if at < begin < segment_end < end else None
        prepared = None if known is None else known.get(data[segment_end:end])
        if prepared is not None and is_segment(data[begin:segment_end]) and end - at <= _MAX_HEAD_BYTES:
            return prepared, begin, segment_end, end
        return self._learn(data, at)

    def _learn(self, data: bytes, at: int) -> tuple[T, int, int, int] | None:
        end = data.find(_HEAD_END, at) + len(_HEAD_END)
        if len(_HEAD_END) <= end - at <= _MAX_HEAD_BYTES:
            head, trace = cut_out(data[at:end])
            if len(head) < end - at:
                return self._find_traced(head, trace, at, end)
        request = recognise(data, at)
        if request is None:
            return None
        begin = at + len(b"GET /v1/stores//keys/") + len(request.template.store)
        segment_end = begin + len(request.segment)
        before, after = data[at:begin], data[segment_end : request.end]
        prepared = self._known_before.get(before, {}).get(after)
        if prepared is None:
            prepared = self._prepare(request.template)
        if len(before) + len(after) <= _MAX_REMEMBERED_BYTES and after not in self._known.get(before, {}):
            if self._remembered >= _MAX_TEMPLATES:
                self._known, self._known_before, self._remembered = {}, self._known, 0
            self._known.setdefault(before, {})[after] = prepared
            self._remembered += 1
        return prepared, begin, segment_end, request.end

    def _find_traced(
        self, head: bytes, trace: RequestTrace | None, at: int, end: int
    ) -> tuple[T, int, int, int] | None:
        """The same for a request in ``at`` to ``end`` that has a trace; without, it is in the form of others."""
        found = self.find(head)
        if found is None:
            return None
        prepared, begin, segment_end, _ = found
        return prepared if trace is None else self._traced(prepared, trace), at + begin, at + segment_end, end


class Recogniser(Generic[T]):
    """Recognises the requests of one connection that come one at a time: most are in the form of the last one."""

    __slots__ = ("_after", "_before", "_prepared", "_prepared_requests")

    def __init__(self, prepared_requests: PreparedRequests[T]) -> None:
        self._prepared_requests = prepared_requests
        self._before, self._after = _BEFORE_NONE, b""
        self._prepared: T

    def recognise(self, data: bytes) -> tuple[T, bytes] | None:
        """What is prepared for a request, and its segment; None unless ``data`` is exactly one that ``recognise``
        recognises."""
        before, after = self._before, self._after
        if data.startswith(before) and data.endswith(after) and len(data) <= _MAX_HEAD_BYTES:
            segment = data[len(before) : len(data) - len(after)]
            if is_segment(segment):
                return self._prepared, segment
        found = self._prepared_requests.find(data)
        if found is None:
            return None
        prepared, begin, segment_end, end = found
        if end != len(data):
            return None
        self._prepared = prepared
        self._before, self._after = data[:begin], data[segment_end:]
        return prepared, data[begin:segment_end]
