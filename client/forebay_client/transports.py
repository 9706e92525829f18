"""Pools of connections: direct, or through the proxies that the environment names."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path

import httpx

from forebay_client.addresses import AsyncBackend, Backend
from forebay_client.proxies import Proxy

CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""As many as there are concurrent reads: each followed key keeps one, and others must not wait for it."""

CLOSED = "This client was closed. Make another one."
OTHER_PROCESS = (
    "This client was given a transport, which belongs to the process that made it. Make a client in this process."
)
OTHER_LOOP = (
    "This client was given a transport, which belongs to the event loop that used it first. Make a client in this "
    "event loop."
)
NO_LOOP = "An asynchronous client needs a running asyncio event loop."

# httpx makes its pools with httpcore's own backends and takes no other, hence the private attributes.


def pool(
    verify: ssl.SSLContext, proxy: Proxy | None = None, socket_path: Path | None = None
) -> httpx.HTTPTransport:
    """A blocking pool, over TCP or to a Unix socket."""
    pooled = httpx.HTTPTransport(
        verify, limits=CONNECTIONS, proxy=_url(proxy), uds=None if socket_path is None else str(socket_path)
    )
    pooled._pool._network_backend = Backend()
    return pooled


def async_pool(
    verify: ssl.SSLContext, proxy: Proxy | None = None, socket_path: Path | None = None
) -> httpx.AsyncHTTPTransport:
    """A pool of one event loop, over TCP or to a Unix socket."""
    pooled = httpx.AsyncHTTPTransport(
        verify, limits=CONNECTIONS, proxy=_url(proxy), uds=None if socket_path is None else str(socket_path)
    )
    pooled._pool._network_backend = AsyncBackend()
    return pooled


def _url(proxy: Proxy | None) -> str | None:
    return None if proxy is None else proxy.url


def origin(url: str) -> str:
    """The servers' part of a URL, for which ``httpx`` mounts a transport."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def shut_down(response: httpx.Response) -> None:
    """End a response's connection for whoever reads it, and for the pool; it stays to be closed."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        # What uvloop gives has no way to shut down but by its descriptor.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)
