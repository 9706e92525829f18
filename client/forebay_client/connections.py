"""The connections of a blocking client, which its threads share.

``forebay_client.async_connections`` has the same for an asynchronous client.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time

import httpx

from forebay.errors import ClientUnusable
from forebay_client import fork_safety
from forebay_client.client_connections import CLOSED, ClientConnections
from forebay_client.exchange import Open, Opened, Send
from forebay_client.httpx_clients import built, late, shut_down, with_body

Turn = threading.Lock
"""Threads that wait for the same changes take turns."""


class Connections(ClientConnections):
    """Sends requests and reads streams, over connections of this process."""

    _http: httpx.Client | None = None

    @property
    def http(self) -> httpx.Client:
        """The connections; raises ``ClientUnusable``."""
        with self._lock:
            if self._unusable is not None:
                raise ClientUnusable(self._unusable)
            if self._http is None:
                self._http = httpx.Client(**self._options(httpx.HTTPTransport))
            return self._http

    def on_fork(self) -> None:
        """Leave the parent its connections, and have others made when they are needed."""
        super().on_fork()
        fork_safety.leave_to_parent(self._http)
        self._http = None

    def send(self, step: Send) -> httpx.Response | Opened:
        """The response to a request, or its stream; raises ``httpx.RequestError``, or ``ClientUnusable``."""
        http = self.http
        response = http.send(built(http, step), stream=True)
        if isinstance(step, Open) and response.status_code == 200:
            return Opened(response, response.iter_bytes())
        return _received(response, step.timeout.read or math.inf)

    def receive(self, opened: Opened) -> bytes:
        """The next piece of a stream, nothing at its end; raises ``httpx.RequestError``."""
        piece: bytes = next(opened.pieces, b"")
        return piece

    def end(self, opened: Opened) -> None:
        opened.response.close()

    def interrupt(self, opened: Opened) -> None:
        """Have a thread that waits for a stream see its end."""
        shut_down(opened.response)

    def close(self) -> None:
        with self._lock:
            http, self._http = self._http, None
            self._unusable = CLOSED
        if http is not None:
            http.close()


def _received(response: httpx.Response, within_s: float) -> httpx.Response:
    """The response with its body; raises ``httpx.ReadTimeout``."""
    pieces, until_s = [], time.monotonic() + within_s
    with contextlib.closing(response):
        for piece in response.iter_bytes():
            if time.monotonic() > until_s:
                raise late(response)
            pieces.append(piece)
    return with_body(response, b"".join(pieces))
