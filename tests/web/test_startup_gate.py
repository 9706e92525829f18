"""A process that is still starting says so, and is not taken for dead."""

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from forebay.errors import ConfigurationError, ListenAddressInUse
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from forebay_web.server import Service, serve
from tests.support.cluster import wait_until
from tests.support.serving import limits

STARTING = """
import sys
from pathlib import Path
from fastapi import FastAPI
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from forebay_web.server import Service, serve
from forebay_web.server import starting_protocol
from forebay_web.tls import listener_tls
from tests.support.serving import limits

app, held = FastAPI(), limits()
app.add_api_route("/started", lambda: True)

def start():
    sys.stdin.readline()
    return Service(app, starting_protocol(held), lambda: None)

tls = listener_tls(*map(Path, sys.argv[1:3])) if sys.argv[1:] else None
with bind(HostInfo("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    serve(start, [listener], held, listens_first=True, drain_ms=0, shutdown_timeout_ms=5000, tls=tls)
"""
TIMES = {"drain_ms": 0, "shutdown_timeout_ms": 5_000}


class Starting:
    """A process that starts until it is told to."""

    def __init__(self, process: subprocess.Popen[str], scheme: str, verify: ssl.SSLContext | bool) -> None:
        assert process.stdout is not None
        self.process = process
        self.port = int(process.stdout.readline())
        self.url = f"{scheme}://localhost:{self.port}"
        self._verify = verify
        wait_until(lambda: self.status("/livez") == 200, "a sign of life")

    def status(self, path: str) -> int | None:
        with contextlib.suppress(httpx.TransportError):
            return self.get(path).status_code
        return None

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, verify=self._verify)

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wait_until(lambda: self.status("/started") == 200, "the end of the start")


@contextlib.contextmanager
def starting(*files: Path, verify: ssl.SSLContext | bool = True) -> Iterator[Starting]:
    command = [sys.executable, "-c", STARTING, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Starting(process, "https" if files else "http", verify)
        finally:
            process.kill()


def test_a_connection_may_outlast_the_start():
    with starting() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as early:
        server.finish()
        early.sendall(b"GET /started HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert early.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_an_answer_while_starting_ends_its_connection():
    with starting() as server, httpx.Client() as client:
        answer = client.get(f"{server.url}/v1/status")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["connection"] == "close"
        assert answer.json()["type"] == "urn:forebay:problem:not-ready"


def test_over_tls_too_it_is_alive_and_others_are_turned_away(tmp_path):
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    issued = authority.issue_cert("localhost")
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    with starting(chain, key, verify=trusting) as server:
        assert server.get("/readyz").status_code == 503
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{server.port}/livez")
        server.finish()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_start_at_once(sent):
    with starting() as server:
        server.process.send_signal(sent)
        assert server.process.wait(10) == -sent


def test_why_a_start_fails_is_raised():
    with bind(HostInfo("127.0.0.1", 0)) as listener, socket.socket() as client:

        def start() -> Service:
            client.connect(listener.getsockname())
            client.sendall(b"GET /livez HTTP/1.1\r\n")
            raise ConfigurationError("The state is another worker's.")

        with pytest.raises(ConfigurationError, match="another worker's"):
            serve(start, [listener], limits(), listens_first=True, **TIMES)
        client.settimeout(10)
        assert client.recv(1) == b""


def test_an_address_in_use_is_said_before_anything_is_started():
    def start() -> Service:
        raise AssertionError("It started.")

    with bind(HostInfo("127.0.0.1", 0)) as first, bind(HostInfo(*first.getsockname())) as second:
        first.listen()
        with bind(HostInfo("127.0.0.1", 0)) as other, pytest.raises(ListenAddressInUse, match="in use"):
            serve(start, [other, second], limits(), listens_first=True, **TIMES)
