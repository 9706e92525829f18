"""Judges the header block of a request: whether it is ordinary, and what it says that matters here.

Whatever is judged ordinary, full HTTP parsers read the same way; a transfer coding, an upgrade, an expectation,
``Connection: close`` or an odd byte is left to them, so that request smuggling has no opening here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay.rest.scans import FRAMES_MEDIA_TYPE

_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+\-.^_`|~]+):[ \t]*+([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?[ \t]*")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")
_LEFT_TO_THE_PARSER = frozenset(
    {b"transfer-encoding", b"expect", b"upgrade", b"connection", b"te", b"trailer", b"http2-settings"}
)
_JSON_ACCEPTED = frozenset({b"*/*", b"application/json"})
_FRAMES = FRAMES_MEDIA_TYPE.encode()


class HeaderBlock(NamedTuple):
    """What an ordinary block says; ``origin`` and ``authorization`` are empty where it has none.

    ``length`` is the body's, None where no header tells; ``frames`` whether nothing but those is accepted, which
    a router asks of workers.
    """

    origin: bytes
    authorization: bytes
    length: int | None
    frames: bool


def judge(block: bytes) -> HeaderBlock | None:
    """What a block says, each line of it preceded by CRLF; None for what needs the parser.

    An ordinary one has one host.
    """
    told: dict[bytes, list[bytes]] = {}
    for line in block[2:].split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name, value = header[1].lower(), header[2] or b""
        if name == b"connection" and value.lower() == b"keep-alive":
            continue
        if name in _LEFT_TO_THE_PARSER:
            return None
        told.setdefault(name, []).append(value)
    origins, accepted = told.get(b"origin", []), told.get(b"accept", [])
    # What comes twice, some take the first of and some the last; a host must be there.
    if any(len(told.get(name, ())) > 1 for name in (b"host", b"origin", b"authorization", b"content-length")):
        return None
    if not told.get(b"host", [b""])[0] or not all(origins):
        return None
    # With cookies, what an origin is told depends on both.
    if origins and b"cookie" in told:
        return None
    frames = accepted == [_FRAMES]
    if not frames and not _JSON_ACCEPTED.issuperset(accepted):
        return None
    length = None
    if b"content-length" in told:
        if not _LENGTH.fullmatch(told[b"content-length"][0]):
            return None
        length = int(told[b"content-length"][0])
    return HeaderBlock(b"".join(origins), b"".join(told.get(b"authorization", ())), length, frames)
