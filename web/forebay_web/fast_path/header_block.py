"""Judges the header block of a request: whether it is ordinary, and its relevant contents.

Full HTTP parsers read everything judged ordinary here the same way; a transfer coding, an expectation,
``Connection: close`` or an odd byte is left to them, so that request smuggling is impossible here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE
from forebay_web.fast_path.heads import is_host
from forebay_web.forwarding import forwarded_chain

_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+\-.^_`|~]+):[ \t]*+([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?[ \t]*")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")
_LEFT_TO_THE_PARSER = frozenset({b"transfer-encoding", b"expect", b"te", b"trailer", b"upgrade"})
_ORDINARY_VALUES = {
    b"connection": frozenset({b"keep-alive"}),
    # Some parsers read it as the one above.
    b"proxy-connection": frozenset({b"keep-alive"}),
}
"""The elements that these may list; others are left to the parser."""
_FRAMES = FRAMES_MEDIA_TYPE.encode()


class HeaderBlock(NamedTuple):
    """The contents of an ordinary block; ``origin`` and ``authorization`` are empty if it has none.

    ``host`` is as received, port and all; ``forwarded`` the chain of hosts that proxies name. ``length`` is the
    body's, None if no header states it; ``frames`` whether frames are accepted, which routers ask workers for: all
    others get JSON, whatever they accept.
    """

    origin: bytes
    authorization: bytes
    host: bytes
    forwarded: bytes
    length: int | None
    frames: bool


def classify_headers(block: bytes) -> HeaderBlock | None:
    """The contents of a block whose lines are each preceded by CRLF; None if it needs the parser.

    An ordinary one has exactly one host, which can be one.
    """
    headers: dict[bytes, list[bytes]] = {}
    for line in block[2:].split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name, value = header[1].lower(), header[2] or b""
        allowed_values = _ORDINARY_VALUES.get(name)
        if allowed_values is not None and allowed_values.issuperset(map(bytes.strip, value.lower().split(b","))):
            continue
        if allowed_values is not None or name in _LEFT_TO_THE_PARSER:
            return None
        headers.setdefault(name, []).append(value)
    origins, accepted = headers.get(b"origin", []), headers.get(b"accept", [])
    # Of duplicates, some parsers take the first and some the last; there must be a host.
    if any(len(headers.get(name, ())) > 1 for name in (b"host", b"origin", b"authorization", b"content-length")):
        return None
    host = headers.get(b"host", [b""])[0]
    if not host or not is_host(host) or not all(origins):
        return None
    # With cookies, an origin's header lines depend on both.
    if origins and b"cookie" in headers:
        return None
    frames = accepted == [_FRAMES]
    if not frames and _FRAMES in accepted:
        return None
    length = None
    if b"content-length" in headers:
        if not _LENGTH.fullmatch(headers[b"content-length"][0]):
            return None
        length = int(headers[b"content-length"][0])
    authorization = b"".join(headers.get(b"authorization", ()))
    forwarded = forwarded_chain(headers.get(b"x-forwarded-for", ()), headers.get(b"forwarded", ()))
    return HeaderBlock(b"".join(origins), authorization, headers[b"host"][0], forwarded, length, frames)
