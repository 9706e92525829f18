"""The URLs of servers: of HTTP, or of this machine's Unix sockets, such as ``unix:/run/forebay/router.sock``.

``httpx`` selects a transport by the host of a URL. So each socket stands for a host of its own, with a name below
``localhost``, which every process allows as ``Host`` (RFC 6761).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import httpx

from forebay.listen_addresses import UnixAddress, is_unix
from forebay.networks import parse_port

_DIGITS = 16


def server_urls(urls: str | Sequence[str]) -> list[str]:
    """One or several URLs as a list, without slashes at the end; raises ``ValueError`` unless they are of HTTP or
    of Unix sockets."""
    checked = [_checked(url) for url in ([urls] if isinstance(urls, str) else urls)]
    if not checked:
        raise ValueError("A client needs the URL of at least one router or worker.")
    return checked


def _checked(url: str) -> str:
    try:
        if is_unix(url):
            return str(UnixAddress.parse(url))
        parse_http_url(url, ("http", "https"))
    except ValueError as error:
        form = f"{url!r} is not the URL of a server, such as http://127.0.0.1:8080 or unix:/run/forebay.sock: "
        raise ValueError(f"{'' if is_unix(url) else form}{error}.") from None
    return url.rstrip("/")


def parse_http_url(url: str, schemes: Sequence[str]) -> httpx.URL:
    """Read a URL, whose port ``httpx`` does not check; raises ``ValueError``, saying why, unless it has one of the
    schemes, and a host."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in schemes or not parsed.host:
        raise ValueError(f"a URL begins with {':// or '.join(schemes)}:// and names a host")
    if parsed.port is not None:
        parse_port(str(parsed.port))
    return parsed


def http_url(url: str) -> str:
    """The URL that requests to a server have; raises ``ValueError`` if it begins like a socket's and is none."""
    if not is_unix(url):
        return url
    path = str(UnixAddress.parse(url).path)
    return f"http://{hashlib.sha256(path.encode()).hexdigest()[:_DIGITS]}.localhost"


def socket_paths(urls: Iterable[str]) -> dict[str, Path]:
    """The files of the sockets among servers, by the URL that requests have."""
    return {http_url(url): UnixAddress.parse(url).path for url in urls if is_unix(url)}
