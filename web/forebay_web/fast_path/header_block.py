"""Judges the header block of a request: whether it is ordinary, and whether every HTTP server must refuse it.

Full HTTP parsers read everything judged ordinary here the same way; a transfer coding, an expectation,
``Connection: close`` or an odd byte is left to them, so that request smuggling is impossible here.

What must be refused (RFC 9112), the parser leaves to its users. A proxy in front of it may read such a head as
another request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from forebay.errors import BadRequest, HttpVersionNotSupported, Problem, TransferCodingNotSupported
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE
from forebay_web.forwarding import forwarded_chain

_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+\-.^_`|~]+):[ \t]*+([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?[ \t]*")
_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~\-]+)?\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
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
    if not host or not _is_host(host) or not all(origins):
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


def _is_host(value: bytes) -> bool:
    """Whether a header may name this host: a name or address, perhaps with a port, or nothing (RFC 9112, 3.2)."""
    return _HOST.fullmatch(value) is not None


def refusal_of_head(version: str, headers: Iterable[tuple[bytes, bytes]], *, upgrades: bool) -> Problem | None:
    """Why a head is refused, None if it is not; ``version`` is such as ``1.1``, header names are in lower case.

    One that ``upgrades`` offers to speak another protocol and has a body, which the parser does not read then.
    """
    major, _, minor = version.partition(".")
    if major != "1":
        return HttpVersionNotSupported(f"HTTP/{version} is not spoken here; use HTTP/1.1.")
    if upgrades:
        return BadRequest(
            "No other protocol is spoken here: send no Upgrade header with a body, as Java's HttpClient does not "
            "once it is built with version(HTTP_1_1)."
        )
    hosts = [value.strip(b" \t") for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and minor != "0"):
        return BadRequest(f"The request has {len(hosts)} Host headers; send one.")
    if not all(map(_is_host, hosts)):
        return BadRequest("The Host header is neither a host nor a host and its port.")
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding").lower()
    if codings and minor == "0":
        return BadRequest("HTTP/1.0 has no Transfer-Encoding.")
    # The parser has refused those that do not end with chunked, or have a length beside them.
    if codings.strip(b" \t,") not in (b"", b"chunked"):
        return TransferCodingNotSupported(
            "Only the transfer coding chunked is understood; send the body as it is."
        )
    return None
