"""Refuses heads of requests that every HTTP server must refuse, whichever path the requests take (RFC 9112).

The parser leaves these to its users. A proxy in front of it may read such a head as another request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay.errors import BadRequest, HttpVersionNotSupported, Problem, TransferCodingNotSupported

_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~\-]+)?\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)


def is_host(value: bytes) -> bool:
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
    if not all(map(is_host, hosts)):
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
