"""URLs of servers and proxies, which ``httpx`` alone accepts with any number as port."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from forebay.ports import parse_port


def parse_http_url(url: str, schemes: Sequence[str]) -> httpx.URL:
    """Read a URL; raises ``ValueError``, saying why, unless it has one of the schemes, and a host."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in schemes or not parsed.host:
        raise ValueError(f"a URL begins with {':// or '.join(schemes)}:// and names a host")
    if parsed.port is not None:
        parse_port(str(parsed.port))
    return parsed
