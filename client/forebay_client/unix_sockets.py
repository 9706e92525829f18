"""URLs of servers on this machine's Unix sockets, such as ``unix:/run/forebay/router.sock``.

``httpx`` selects a transport by the host of a URL. So each socket stands for a host of its own, with a name below
``localhost``, which every process allows as ``Host`` (RFC 6761).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from forebay.listen_addresses import UnixAddress, is_unix

_DIGITS = 16


def http_url(url: str) -> str:
    """The URL that requests to a server have; raises ``ValueError`` if it begins like a socket's and is none."""
    if not is_unix(url):
        return url
    path = str(UnixAddress.parse(url).path)
    return f"http://{hashlib.sha256(path.encode()).hexdigest()[:_DIGITS]}.localhost"


def socket_paths(urls: Iterable[str]) -> dict[str, Path]:
    """The files of the sockets among servers, by the URL that requests have."""
    return {http_url(url): UnixAddress.parse(url).path for url in urls if is_unix(url)}
