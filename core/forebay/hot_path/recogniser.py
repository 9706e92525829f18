"""Recognises whole, ordinary single-key GETs in received bytes, strictly.

Whatever is accepted, full HTTP parsers read as the same request; a body, a transfer coding, an upgrade, an
expectation, ``Connection: close``, an absolute target or an odd byte is left to them, so that request
smuggling has no opening here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEAD_END = b"\r\n\r\n"
_MOST_HEAD_BYTES = 8192
# A query that is longer is left to the parser: what it says is not remembered.
_SEGMENT = rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]++|%[0-9A-Fa-f]{2})++"
_WHOLE_SEGMENT = re.compile(_SEGMENT)
_REQUEST_LINE = re.compile(
    rb"GET /v1/stores/([A-Za-z0-9_][A-Za-z0-9_.\-]*+)/keys/(" + _SEGMENT + rb")"
    rb"(?:\?([A-Za-z0-9\-._~!$&'()*+,;=:@/?%]{0,1024}+))? HTTP/1\.1(?=\r\n)"
)
_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+\-.^_`|~]+):[ \t]*+([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?[ \t]*")
_LEFT_TO_THE_PARSER = frozenset(
    {
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"upgrade",
        b"connection",
        b"te",
        b"trailer",
        b"accept",
        b"http2-settings",
    }
)
_MOST_BLOCKS = 4096
_DOTS = frozenset({b".", b".."})
_BEFORE_NONE = bytes(_MOST_HEAD_BYTES + 1)
"""Longer than what is compared with it, so nothing begins with it."""


class RequestForm(NamedTuple):
    """All of a recognised request but its key: what clients say again with every read.

    ``query`` is as received; ``origin`` is the browser's and ``authorization`` that header's value. Each is empty
    where there is none.
    """

    store: str
    query: bytes
    origin: bytes
    authorization: bytes


class HotRequest(NamedTuple):
    """A recognised request: its form, its key's segment as received, and where its bytes end."""

    form: RequestForm
    segment: bytes
    end: int


class _HeaderBlocks(dict[bytes, tuple[bytes, bytes] | None]):
    """Which header blocks are ordinary. Clients repeat theirs, so the verdicts are kept, a bounded number.

    Of an ordinary block they are origin and authorization, empty where it has none; None for what needs the
    parser. A block has each line preceded by CRLF; an ordinary one has one host.
    """

    def __missing__(self, block: bytes) -> tuple[bytes, bytes] | None:
        if len(self) >= _MOST_BLOCKS:
            self.clear()
        return self.setdefault(block, _judge(block))


def _judge(block: bytes) -> tuple[bytes, bytes] | None:
    if not block:
        return None
    hosts: list[bytes] = []
    origins: list[bytes] = []
    authorizations: list[bytes] = []
    cookies = False
    for line in block[2:].split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name = header[1].lower()
        if name == b"accept" and header[2] in (b"*/*", b"application/json"):
            continue
        if name == b"connection" and header[2] is not None and header[2].lower() == b"keep-alive":
            continue
        if name in _LEFT_TO_THE_PARSER:
            return None
        cookies = cookies or name == b"cookie"
        if name == b"host":
            hosts.append(header[2] or b"")
        elif name == b"origin":
            origins.append(header[2] or b"")
        elif name == b"authorization":
            authorizations.append(header[2] or b"")
    if len(hosts) != 1 or not hosts[0] or len(origins) > 1 or not all(origins):
        return None
    if len(authorizations) > 1:
        return None
    # With cookies, what an origin is told depends on both.
    if origins and cookies:
        return None
    return b"".join(origins), b"".join(authorizations)


_BLOCKS = _HeaderBlocks()


def recognise(data: bytes, at: int = 0) -> HotRequest | None:
    """The request that begins at ``at``, None unless it is whole, ordinary and reads a single key."""
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


class Recogniser:
    """Recognises the requests of one connection, one at a time.

    Clients say the same each time but for the key. What differs from the last request in nothing else is not taken
    apart again.
    """

    __slots__ = ("_after", "_before", "_form")

    def __init__(self) -> None:
        self._before, self._after = _BEFORE_NONE, b""
        self._form = RequestForm("", b"", b"", b"")

    def recognise(self, data: bytes) -> HotRequest | None:
        """The same as the function of that name says of a request at the beginning of ``data``."""
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
