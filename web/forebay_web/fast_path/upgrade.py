"""Requests that offer to speak another protocol, read as if they did not, as RFC 9110 allows.

Java's own client offers HTTP/2 with every body that it posts, and the parser then accepts no body.
"""

from __future__ import annotations

from collections.abc import Sequence

_OF_UPGRADES = frozenset({b"upgrade", b"http2-settings"})


def head_without_upgrade(
    method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """The head of a request as a parser read it, names in lower case, without the lines that offer an upgrade."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _OF_UPGRADES)
        if name not in _OF_UPGRADES:
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
