"""The proxies that the environment names, which errors name in turn.

They are used as by other programs: ``HTTP_PROXY``, ``HTTPS_PROXY`` or else ``ALL_PROXY``, except for hosts in
``NO_PROXY``. As in Go, none is used for this machine's own addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.request import getproxies, proxy_bypass

import httpx

from forebay.listen_addresses import is_unix
from forebay.streams_metadata import is_loopback
from forebay_client.http_urls import parse_http_url

_SCHEMES = ("http", "https", "socks5", "socks5h")


@dataclass(frozen=True)
class Proxy:
    """A proxy and the variable that names it."""

    url: str
    variable: str

    def __str__(self) -> str:
        # Without the credentials that the URL may contain.
        url = httpx.URL(self.url)
        return f"the proxy {url.copy_with(userinfo=b'')} of {self.variable}"


def proxy_of(url: str) -> Proxy | None:
    """The proxy for a server, None if it is reached directly; raises ``ValueError`` for one that is not usable."""
    if is_unix(url):
        return None
    server = httpx.URL(url)
    if is_loopback(server.host) or proxy_bypass(server.netloc.decode()):
        return None
    proxies = getproxies()
    scheme = server.scheme if proxies.get(server.scheme) else "all"
    text = proxies.get(scheme)
    if not text:
        return None
    proxy = Proxy(text if "://" in text else f"http://{text}", f"{scheme.upper()}_PROXY")
    _require_usable(proxy)
    return proxy


def proxies_of(urls: Iterable[str]) -> dict[str, Proxy]:
    """The proxies of the servers that have one, by the servers' URLs."""
    found = {url: proxy_of(url) for url in urls}
    return {url: proxy for url, proxy in found.items() if proxy is not None}


def _require_usable(proxy: Proxy) -> None:
    remedy = f"Correct {proxy.variable}, or list the servers in NO_PROXY."
    try:
        parsed = parse_http_url(proxy.url, _SCHEMES)
    except ValueError as error:
        form = f"{proxy.variable} is not the URL of a proxy, such as http://127.0.0.1:3128"
        raise ValueError(f"{form}: {error}. {remedy}") from None
    if parsed.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ValueError(f"{proxy} needs the package socksio: install httpx[socks]. {remedy}")
