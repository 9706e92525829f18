"""A server that answers reads of one store, over real connections, as no worker would: answers name the connection
that they are sent over, or whatever a test wants."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from forebay.position import Position, encode_position, log_digest

STORE = {"name": "s", "kind": "key-value", "key": "string", "value": "json", "partitioner": "murmur2"}
STORE |= {"topic": "t", "partitions": 1}
POSITION = encode_position(Position(log_digest("sqlite:log"), {0: 1}))
LAG = {"record_lag": 0, "time_lag_ms": 1, "age_ms": 2}
Reply = Callable[[dict[str, Any]], dict[str, Any]]


class AnsweringServer(ThreadingHTTPServer):
    """Answers each key with its name as the value and the client's port as the host.

    ``change`` changes answers, and ``describe`` the store's description.
    """

    daemon_threads = True
    request_queue_size = 256
    """Beyond the five of the library, connections that are begun together wait a second or three."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, _Handler)
        self.change: Reply = lambda answer: answer
        self.describe: Reply = lambda store: store
        self.ended = threading.Event()
        self.connections = 0
        self._counting = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._count(1)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self.connections += change

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.server_address[:2])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: AnsweringServer

    def do_GET(self) -> None:
        _, _, _, store, *rest = urlsplit(self.path).path.split("/")
        match rest:
            case []:
                self._send(self.server.describe({**STORE, "name": store}))
            case ["keys", key]:
                self._send(self._answer(unquote(key)))
            case ["keys", key, "changes"]:
                self._stream(unquote(key))

    def do_POST(self) -> None:
        keys = json.loads(self.rfile.read(int(self.headers["content-length"])))["keys"]
        self._send({"results": [self._answer(key) for key in keys]})

    def _answer(self, key: str) -> dict[str, Any]:
        answer = {"store": "s", "key": key, "value": key, "timestamp_ms": 3, "partition": 0, "position": POSITION}
        return self.server.change({**answer, "role": "active", "host": str(self.client_address[1]), "lag": LAG})

    def _send(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, key: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"event: value\ndata: {json.dumps(self._answer(key))}\n\n".encode())
        while not self.server.ended.wait(0.02) and not self._is_closed():
            pass
        self.close_connection = True

    def _is_closed(self) -> bool:
        """Whether the client ended its side."""
        with contextlib.suppress(BlockingIOError):
            return not self.connection.recv(1, socket.MSG_DONTWAIT)
        return False

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def answering_server(address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[AnsweringServer]:
    with AnsweringServer(address) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
