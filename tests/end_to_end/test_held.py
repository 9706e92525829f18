"""Whatever clients do, and however they leave: what is counted for them is given back, on both tiers."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import ssl
import struct

import httpx
import pytest

from forebay.position import Position, decode_position, encode_position
from tests.end_to_end.test_tls import Authority
from tests.support.cluster import running_cluster, wait_until

OPERATIONS = 150
LARGE = b'"%b"' % (b"x" * (128 << 10))
NOW_AND_THEN = 0.3


def held(client: httpx.Client, url: str) -> dict[str, float]:
    """What a process holds, without connections, which routers keep to workers."""
    metrics = client.get(f"{url}/metrics").text
    found = dict(re.findall(r'^forebay_held\{what="(\w+)"\} (\S+)$', metrics, re.M))
    assert {"requests", "waiting", "memory", "streams", "connections"} <= found.keys()
    return {what: float(used) for what, used in found.items() if what != "connections" and float(used)}


def future(client: httpx.Client, url: str) -> str:
    """A position that no replica has reached."""
    log, offsets, *_ = decode_position(client.get(f"{url}/v1/stores/counts/keys/k1").json()["position"])
    return encode_position(Position(log, {partition: offset + 1_000 for partition, offset in offsets.items()}))


def requests(token: str) -> list[bytes]:
    waits = f"min_position={token}&wait_ms=20000&timeout_ms=20000"
    keys = json.dumps({"keys": [f"k{n}" for n in range(40)]}).encode()
    plain = [
        "keys/k1",
        "keys/large1",
        "keys/missing",
        "entries",
        "entries?limit=5",
        "changes",
        "keys/k2/changes",
        f"keys/k1?{waits}",
        f"entries?{waits}",
    ]
    gets = [f"GET /v1/stores/counts/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in plain]
    posts = [
        b"POST /v1/stores/counts/%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (path, len(keys), keys)
        for path in (b"batch-get", b"batch-get?" + waits.encode())
    ]
    return gets + posts


class Clients:
    """Clients of one address: each sends something, reads some of what comes, and leaves in some way."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, sent: list[bytes], seed: int) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._sent = sent
        self._rng = random.Random(seed)

    def one(self) -> None:
        rng = self._rng
        with contextlib.suppress(OSError):
            connection = socket.create_connection((self._host, self._port), 5)
            with contextlib.closing(connection):
                client = connection if self._tls is None else self._encrypted(connection)
                if client is None:
                    return
                for _ in range(rng.choice([1, 1, 2, 5])):
                    request = rng.choice(self._sent)
                    client.sendall(request if rng.random() > NOW_AND_THEN else request[: len(request) // 2])
                self._leave(client)

    def _encrypted(self, connection: socket.socket) -> socket.socket | None:
        if self._rng.random() < 0.1:
            # Not even a handshake.
            return None
        assert self._tls is not None
        return self._tls.wrap_socket(connection, server_hostname="localhost")

    def _leave(self, client: socket.socket) -> None:
        rng = self._rng
        client.settimeout(rng.choice([0.01, 0.05, 0.2]))
        with contextlib.suppress(TimeoutError):
            client.recv(rng.choice([1, 1_000, 100_000]))
        if rng.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_all_that_clients_held_is_given_back(tmp_path, encrypted):
    authority = Authority(tmp_path / "authority")
    tls = ssl.create_default_context(cafile=authority.file) if encrypted else None
    options = authority.options("localhost") if encrypted else ()
    with running_cluster(tmp_path) as cluster, httpx.Client(verify=tls or False) as http:
        cluster.put("counts", {b"k%d" % n: b"%d" % n for n in range(200)})
        cluster.put("counts", {b"large%d" % n: LARGE for n in range(20)})
        first, second = cluster.start_workers(2)
        router = cluster.launch_router(*options)
        url = f"https://localhost:{router.rpartition(':')[2]}" if encrypted else f"http://{router}"
        wait_until(lambda: serves(http, url), "the router")
        sent = requests(future(http, url))
        for number in range(OPERATIONS):
            Clients(router, tls, sent, number).one()
            if number % 3 == 0:
                Clients(first, None, sent, number).one()
            if number == OPERATIONS // 2:
                cluster.kill(second, signal.SIGKILL)
                cluster.start_worker(second, ready=False)
        for at in (url, f"http://{first}"):
            with contextlib.suppress(AssertionError):
                wait_until(lambda at=at: held(http, at) == {}, "nothing being held", 10)
            assert held(http, at) == {}, at
        assert http.get(f"{url}/v1/stores/counts/keys/k1").json()["value"] == 1


def serves(http: httpx.Client, url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get(f"{url}/readyz").status_code == 200
    return False
