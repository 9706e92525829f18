"""What the connections of a blocking and of an asynchronous client have in common."""

from __future__ import annotations

import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import httpx

from forebay.bearer_tokens import token_headers
from forebay_client import fork_safety
from forebay_client.proxies import Proxy

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

    @abstractmethod
    def _begin(self) -> None:
        """Make what is there before the first request."""

    @abstractmethod
    def on_fork(self) -> None:
        """Leave the parent its connections, and have others made when they are needed."""
