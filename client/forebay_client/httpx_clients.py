"""What every ``httpx`` client has here: how its servers are reached, in which time, and no cookies."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import httpx

from forebay_client.exchange import Send
from forebay_client.proxies import Proxy

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""As many as there are concurrent reads: each followed key keeps one, and others must not wait for it."""


class NoCookies(CookieJar):
    """Stores nothing, and takes no lock.

    Why: a signal handler that raises can leave a lock held, and then every other thread waits for ever.
    """

    def extract_cookies(self, response: Any, request: Any) -> None:
        pass


def client_options(
    kind: type[httpx.HTTPTransport] | type[httpx.AsyncHTTPTransport],
    verify: ssl.SSLContext,
    proxies: Mapping[str, Proxy],
    sockets: Mapping[str, Path],
) -> dict[str, Any]:
    """The arguments of an ``httpx`` client, by the URLs of servers that have a proxy or a Unix socket."""
    mounts = {_origin(url): kind(verify, limits=_LIMITS, proxy=proxy.url) for url, proxy in proxies.items()}
    mounts |= {url: kind(verify, limits=_LIMITS, uds=str(path)) for url, path in sockets.items()}
    return {"verify": verify, "limits": _LIMITS, "mounts": mounts, "trust_env": False}


def _origin(url: str) -> str:
    """The servers' part of a URL, for which ``httpx`` mounts a transport."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def extensions(url: str) -> dict[str, Any]:
    """Those of a request: a certificate names a host without the dot at its end."""
    host = httpx.URL(url).host
    return {"sni_hostname": host.rstrip(".")} if host.endswith(".") else {}


def built(http: httpx.Client | httpx.AsyncClient, step: Send) -> httpx.Request:
    """The request that a step sends."""
    others: dict[str, Any] = {"timeout": step.timeout, "extensions": extensions(step.url)}
    return http.build_request(step.method, step.url, content=step.body, headers=step.headers, **others)


def with_body(response: httpx.Response, body: bytes) -> httpx.Response:
    """A response whose body has been received, and decoded."""
    headers = response.headers.copy()
    headers.pop("content-encoding", None)
    return httpx.Response(
        response.status_code,
        headers=headers,
        content=body,
        request=response.request,
        extensions=response.extensions,
    )


def late(response: httpx.Response) -> httpx.ReadTimeout:
    """The error for a body that takes longer than a piece of it may: ``httpx`` begins anew with each piece."""
    return httpx.ReadTimeout("The body did not arrive in time.", request=response.request)


def shut_down(response: httpx.Response) -> None:
    """End a response's connection for whoever reads it, and for the pool; it stays to be closed."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        # What uvloop gives has no way to shut down but by its descriptor.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)
