"""The proxies that the environment names, which errors name in turn.

They are used as by programs in Go: ``HTTP_PROXY``, ``HTTPS_PROXY`` or else ``ALL_PROXY``, except for hosts in
``NO_PROXY`` and this machine's own addresses.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import httpx

from forebay.listen_addresses import is_unix
from forebay.streams_metadata import is_loopback
from forebay_client.server_urls import parse_http_url

_SCHEMES = ("http", "https", "socks5", "socks5h")
_PORTS = {"http": 80, "https": 443}
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>.*)\]|(?P<host>[^:]*))(?::(?P<port>\d+))?")


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
    host, port = server.host.rstrip("."), server.port or _PORTS[server.scheme]
    if is_loopback(host) or _is_exempt(host, port):
        return None
    name = f"{server.scheme.upper()}_PROXY"
    variable = name if _value(name) else "ALL_PROXY"
    text = _value(variable)
    if not text:
        return None
    proxy = Proxy(text if "://" in text else f"http://{text}", variable)
    _require_usable(proxy)
    return proxy


def proxies_of(urls: Iterable[str]) -> dict[str, Proxy]:
    """The proxies of the servers that have one, by the servers' URLs."""
    found = {url: proxy_of(url) for url in urls}
    return {url: proxy for url, proxy in found.items() if proxy is not None}


def _value(variable: str) -> str:
    return os.environ.get(variable) or os.environ.get(variable.lower(), "")


def _is_exempt(host: str, port: int) -> bool:
    """Whether ``NO_PROXY`` names a server."""
    entries = [entry.strip().lower() for entry in _value("NO_PROXY").split(",")]
    return "*" in entries or any(_names(entry, host, port) for entry in entries)


def _names(entry: str, host: str, port: int) -> bool:
    """Whether an entry is a server's network, its address, its name or a suffix of that."""
    address = _parsed(ipaddress.ip_address, host)
    network = _parsed(ipaddress.ip_network, entry, False) if "/" in entry else None
    if network is not None:
        return address is not None and address in network
    parts = _HOST_AND_PORT.fullmatch(entry)
    name = entry if parts is None else parts["ipv6"] or parts["host"]
    if not name or (parts is not None and parts["port"] and int(parts["port"]) != port):
        return False
    if address is not None:
        return bool(address == _parsed(ipaddress.ip_address, name))
    suffix = name[1:] if name.startswith("*.") else name
    return host == suffix or host.endswith(suffix if suffix.startswith(".") else f".{suffix}")


def _parsed(parse: Any, *arguments: Any) -> Any:
    try:
        return parse(*arguments)
    except ValueError:
        return None


def _require_usable(proxy: Proxy) -> None:
    remedy = f"Correct {proxy.variable}, or list the servers in NO_PROXY."
    try:
        parsed = parse_http_url(proxy.url, _SCHEMES)
    except ValueError as error:
        form = f"{proxy.variable} is not the URL of a proxy, such as http://127.0.0.1:3128"
        raise ValueError(f"{form}: {error}. {remedy}") from None
    if parsed.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ValueError(f"{proxy} needs the package socksio: install httpx[socks]. {remedy}")
