"""Strictly recognises complete, ordinary single-key GETs and batches in received bytes.

Full HTTP parsers read everything accepted here as the same request; an unexpected body, an absolute target or an
odd byte is left to them, as are all headers that are not ordinary.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay.hot_path.header_block import judge
from forebay.rest.batches import MOST_BODY_BYTES

_HEAD_END = b"\r\n\r\n"
_MOST_HEAD_BYTES = 8192
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
_MOST_BLOCKS = 4096
_DOTS = frozenset({b".", b".."})
_BEFORE_NONE = bytes(_MOST_HEAD_BYTES + 1)
"""Longer than anything compared with it, so nothing starts with it."""


class RequestForm(NamedTuple):
    """Everything in a recognised request except its key: what clients repeat with every read.

    ``query`` is as received; ``origin`` is the browser's and ``authorization`` that header's value. Each is empty
    if absent.
    """

    store: str
    query: bytes
    origin: bytes
    authorization: bytes


class HotRequest(NamedTuple):
    """A recognised read of one key: its form, the key's segment as received, and where its bytes end."""

    form: RequestForm
    segment: bytes
    end: int

    def target(self) -> tuple[str, str]:
        """Its method and path."""
        return "GET", f"/v1/stores/{self.form.store}/keys/{self.segment.decode()}"


class HotBatch(NamedTuple):
    """A recognised batch: its form, its body, whether the answer is to be in frames, and where its bytes end."""

    form: RequestForm
    body: bytes
    frames: bool
    end: int

    def target(self) -> tuple[str, str]:
        """Its method and path."""
        return "POST", f"/v1/stores/{self.form.store}/batch-get"


class _HeaderBlocks(dict[bytes, tuple[bytes, bytes] | None]):
    """Which header blocks are ordinary. Clients repeat theirs, so a bounded number of verdicts is cached.

    The verdict is origin and authorization for a block that is ordinary for a request without a body, else None.
    """

    def __missing__(self, block: bytes) -> tuple[bytes, bytes] | None:
        if len(self) >= _MOST_BLOCKS:
            self.clear()
        told = judge(block)
        return self.setdefault(block, None if told is None or told.length or told.frames else told[:2])


_BLOCKS = _HeaderBlocks()


def recognise(data: bytes, at: int = 0) -> HotRequest | None:
    """The request that begins at ``at``, None unless it is complete, ordinary and reads a single key."""
    line = _REQUEST_LINE.match(data, at)
    if line is None:
        return None
    line_end = line.end()
    head_end = data.find(_HEAD_END, line_end)
    if head_end < 0 or head_end - at > _MOST_HEAD_BYTES:
        return None
    told = _BLOCKS[data[line_end:head_end]]
    if told is None:
        return None
    store, segment, query = line.groups(b"")
    if segment in _DOTS:
        return None
    return HotRequest(RequestForm(store.decode(), query, *told), segment, head_end + 4)


def recognise_batch(data: bytes) -> HotBatch | None:
    """The request in ``data``, None unless it is exactly one complete and ordinary ``batch-get``."""
    line = _BATCH_LINE.match(data)
    if line is None:
        return None
    line_end = line.end()
    head_end = data.find(_HEAD_END, line_end)
    if head_end < 0 or head_end > _MOST_HEAD_BYTES:
        return None
    # Not cached: its length makes nearly every block different.
    told = judge(data[line_end:head_end])
    if told is None or told.length != len(data) - head_end - 4 or told.length > MOST_BODY_BYTES:
        return None
    store, query = line.groups(b"")
    form = RequestForm(store.decode(), query, told.origin, told.authorization)
    return HotBatch(form, data[head_end + 4 :], told.frames, len(data))


class Recogniser:
    """Recognises the requests of one connection, one at a time.

    Clients send the same each time except for the key. A request that differs from the last in nothing else is not
    parsed again.
    """

    __slots__ = ("_after", "_before", "_form")

    def __init__(self) -> None:
        self._before, self._after = _BEFORE_NONE, b""
        self._form = RequestForm("", b"", b"", b"")

    def recognise(self, data: bytes) -> HotRequest | None:
        """The same result as the function of that name for a request at the start of ``data``."""
        before, after = self._before, self._after
        if data.startswith(before) and data.endswith(after) and len(data) <= _MOST_HEAD_BYTES:
            segment = data[len(before) : len(data) - len(after)]
            if segment.isalnum() or (_WHOLE_SEGMENT.fullmatch(segment) and segment not in _DOTS):
                return HotRequest(self._form, segment, len(data))
        request = recognise(data)
        if request is not None and request.end == len(data):
            self._form = request.form
            self._before = b"GET /v1/stores/%b/keys/" % request.form.store.encode()
            self._after = data[len(self._before) + len(request.segment) :]
        return request
