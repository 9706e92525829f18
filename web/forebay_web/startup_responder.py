"""Answers while a process starts, which may take long: it moves state, reads logs and joins its group first.

Its event loop does not run yet. Supervisors see that it lives, everyone else that it is not ready, from a thread.

Why: with the start in a thread beside the event loop, every route would have to cope with half a process.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forebay.errors import NotReady
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import HttpAnswer, json_answer, problem_answer
from forebay_web.server import cannot_listen
from forebay_web.unix_listeners import is_unix_listener

log = logging.getLogger(__name__)

_BACKLOG = 2048
_MOST_AT_ONCE = 64
_MOST_REQUEST_S = 5.0
_POLL_S = 0.05
_LIVE = json_answer({"live": True})


@contextmanager
def answering_meanwhile(listeners: Sequence[socket.socket], tls: ssl.SSLContext | None) -> Iterator[None]:
    """Answer on listeners until the end of the block; connections that wait to be accepted then are left to them.

    Raises ``ListenAddressInUse``.
    """
    with ExitStack() as stack:
        for listener in listeners:
            if is_unix_listener(listener):
                stack.enter_context(_answering(listener, None))
            else:
                _listen(listener)
                stack.enter_context(_answering(listener, tls))
        yield


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise cannot_listen(HostInfo(*listener.getsockname()[:2]), error) from None


@contextmanager
def _answering(listener: socket.socket, tls: ssl.SSLContext | None) -> Iterator[None]:
    server = _StartingServer(listener, tls)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _StartingServer(ThreadingHTTPServer):
    """A few connections at once, each for one request."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener.dup()
        self._tls = tls
        self._turns = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(_MOST_REQUEST_S)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            # The client left, or speaks no TLS.
            request.close()
        finally:
            self._turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request while starting failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(_LIVE if self.path == "/livez" else _not_ready())

    do_HEAD = do_GET

    def send_error(self, *_: Any) -> None:
        """For what has no method here, or cannot be understood."""
        self._send(_not_ready())

    def _send(self, answer: HttpAnswer) -> None:
        self.close_connection = True
        self.send_response_only(answer.status)
        for name, value in answer.headers():
            self.send_header(name.decode(), value.decode())
        self.send_header("content-length", str(len(answer.body)))
        self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""


def _not_ready() -> HttpAnswer:
    return problem_answer(NotReady("The process is starting.", retry_after_s=1))
