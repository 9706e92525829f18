"""A server of HTTP in this process, for as long as a test lasts."""

from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self


class LocalServer(ThreadingHTTPServer):
    """Serves at a free port of this machine; its handler counts requests, and answers 503 while it ``is_away``."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: Counter[str] = Counter()
        """How many there were for each path."""
        self.is_away = False
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
