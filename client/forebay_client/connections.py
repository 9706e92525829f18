"""The connections of a blocking client, which its threads share.

``forebay_client.async_connections`` has the same for an asynchronous client.
"""

from __future__ import annotations

import threading

import httpx

from forebay.errors import ClientUnusable
from forebay_client import fork_safety
from forebay_client.bounded_body import read_whole
from forebay_client.client_connections import ClientConnections
from forebay_client.exchange import Open, Opened, Send
from forebay_client.transports import CLOSED, OTHER_PROCESS, origin, pool, shut_down

Turn = threading.Lock
"""Threads that wait for the same changes take turns."""


class Connections(ClientConnections[httpx.BaseTransport]):
    """Sends requests and reads streams, over connections of this process."""

    def _begin(self) -> None:
        self._pools: list[httpx.HTTPTransport] = []
        self._http: httpx.Client | None = self._connect()

    @property
    def http(self) -> httpx.Client:
        """The connections; raises ``ClientUnusable``."""
        with self._lock:
            if self._unusable is not None:
                raise ClientUnusable(self._unusable)
            if self._http is None:
                self._http = self._connect()
            return self._http

    def _connect(self) -> httpx.Client:
        if self._verify is None:
            return httpx.Client(headers=self._headers, transport=self._own_transport)
        direct = pool(self._verify)
        mounts = {origin(url): pool(self._verify, proxy) for url, proxy in self._proxies.items()}
        mounts |= {url: pool(self._verify, None, path) for url, path in self._sockets.items()}
        self._pools = [direct, *mounts.values()]
        return httpx.Client(headers=self._headers, transport=direct, mounts=mounts, trust_env=False)

    def on_fork(self) -> None:
        """Leave the parent its connections, and have others made when they are needed."""
        fork_safety.leave_to_parent(self._http)
        self._lock, self._http = threading.Lock(), None
        if self._own_transport is not None:
            self._unusable = OTHER_PROCESS
        for inherited in self._pools:
            for connection in inherited._pool.connections:
                # Closes the descriptor of this process. The server sees nothing of it.
                connection.close()

    def send(self, step: Send) -> httpx.Response | Opened:
        """The response to a request, or its stream; raises ``httpx.RequestError``, or ``ClientUnusable``."""
        request = self.http.build_request(
            step.method, step.url, content=step.body, headers=step.headers, timeout=step.timeout
        )
        response = self.http.send(request, stream=True)
        if isinstance(step, Open) and response.status_code == 200:
            return Opened(response, response.iter_bytes())
        read_whole(response, step.timeout)
        return response

    def receive(self, opened: Opened) -> bytes:
        """The next piece of a stream, nothing at its end; raises ``httpx.RequestError``."""
        piece: bytes = next(opened.pieces, b"")
        return piece

    def end(self, opened: Opened) -> None:
        """Close a stream."""
        opened.response.close()

    def interrupt(self, opened: Opened) -> None:
        """Have a thread that waits for a stream see its end."""
        shut_down(opened.response)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            http, self._http = self._http, None
            self._unusable = CLOSED
        if http is not None:
            http.close()
