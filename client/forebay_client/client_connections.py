"""What the connections of a blocking and of an asynchronous client have in common."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx

from forebay.bearer_tokens import token_headers
from forebay.errors import ClientUnusable
from forebay_client import fork_safety
from forebay_client.httpx_clients import NoCookies, client_options
from forebay_client.proxies import Proxy

CLOSED = "This client was closed. Make another one."
OTHER_PROCESS = (
    "This client was given a transport, which belongs to the process that made it. Make a client in this process."
)
OTHER_LOOP = (
    "This client was given a transport, which belongs to the event loop that used it first. Make a client in this "
    "event loop."
)
NO_LOOP = "An asynchronous client needs a running asyncio event loop."
NOT_PARTITION_AWARE = (
    "partition_aware is no more: run a router beside the program, which all languages share, and give the client "
    "its URL. See docs/routers.md."
)

T = TypeVar("T")


def maker(kind: Callable[..., T], arguments: Mapping[str, Any]) -> partial[T]:
    """What makes a client in any process; raises ``ClientUnusable`` if its arguments are of this process only."""
    if arguments["transport"] is not None or isinstance(arguments["verify"], ssl.SSLContext):
        raise ClientUnusable(
            "A client that was given a transport or an ssl.SSLContext cannot be pickled. Make it in the "
            "process that reads, or name the authorities to trust in the variable SSL_CERT_FILE there."
        )
    return partial(kind, **arguments)


class ClientConnections:
    """How a client connects, and whether it still may; every process that shares it has connections of its own."""

    def __init__(
        self,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        proxies: Mapping[str, Proxy] | None = None,
        sockets: Mapping[str, Path] | None = None,
    ) -> None:
        self._headers = token_headers(token)
        self._own_transport = transport
        self._proxies = proxies or {}
        self._sockets = sockets or {}
        self._verify = None if transport is not None else httpx.create_ssl_context(verify)
        self._lock = threading.Lock()
        self._unusable: str | None = None
        """Why there are no connections any more."""
        fork_safety.renew_on_fork(self)

    def _options(self, kind: type[httpx.HTTPTransport] | type[httpx.AsyncHTTPTransport]) -> dict[str, Any]:
        """The arguments of the ``httpx`` client, whose pools are of this kind unless it has its own transport."""
        options = {"headers": self._headers, "cookies": NoCookies()}
        if self._verify is None:
            return {**options, "transport": self._own_transport}
        return {**options, **client_options(kind, self._verify, self._proxies, self._sockets)}

    def on_fork(self) -> None:
        """A thread of the parent may hold the lock, and a transport is the parent's."""
        self._lock = threading.Lock()
        if self._own_transport is not None:
            self._unusable = OTHER_PROCESS
