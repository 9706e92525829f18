"""What the connections of a blocking and of an asynchronous client have in common."""

from __future__ import annotations

import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from forebay.bearer_tokens import token_headers
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

TransportT = TypeVar("TransportT", httpx.BaseTransport, httpx.AsyncBaseTransport)


class ClientConnections(ABC, Generic[TransportT]):
    """How a client connects, and whether it still may; every process that shares it has connections of its own."""

    def __init__(
        self,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: TransportT | None = None,
        proxies: Mapping[str, Proxy] | None = None,
        sockets: Mapping[str, Path] | None = None,
    ) -> None:
        self._headers = token_headers(token)
        self._own_transport: TransportT | None = transport
        self._proxies = proxies or {}
        self._sockets = sockets or {}
        self._verify = None if transport is not None else httpx.create_ssl_context(verify)
        self._lock = threading.Lock()
        self._unusable: str | None = None
        """Why there are no connections any more."""
        self._begin()
        fork_safety.renew_on_fork(self)

    def _options(self, kind: type[httpx.HTTPTransport] | type[httpx.AsyncHTTPTransport]) -> dict[str, Any]:
        """The arguments of the ``httpx`` client, whose pools are of this kind unless it has its own transport."""
        options = {"headers": self._headers, "cookies": NoCookies()}
        if self._verify is None:
            return {**options, "transport": self._own_transport}
        return {**options, **client_options(kind, self._verify, self._proxies, self._sockets)}

    @abstractmethod
    def _begin(self) -> None:
        """Make what is there before the first request."""

    @abstractmethod
    def on_fork(self) -> None:
        """Leave the parent its connections, and have others made when they are needed."""
