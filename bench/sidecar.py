"""A router on a Unix socket against the same router on loopback TCP, as a program beside it reads."""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Callable, Sequence

from bench import credentials
from bench.comparison import Effort
from bench.deployment import OPTIONS, STORE, ask, served
from bench.figures import Row, interleaved, percentile

from forebay.client import Client
from tests.support.cluster import free_port, wait_until

_BATCH = 500
_MAX_ANSWER_BYTES = 64 << 10
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_AGAINST = "the same router, loopback TCP"
_TOKEN = credentials.AUTHORIZATION.removeprefix("Bearer ")


def sidecar(effort: Effort) -> list[Row]:
    with served(effort.directory) as (cluster, _, _, keys):
        port, path = free_port(), effort.directory / "router.sock"
        listen = f"127.0.0.1:{port},unix:{path}"
        cluster.launch_router("--listen", listen, *OPTIONS, *credentials.router_options(effort.directory))
        wait_until(lambda: ask(f"127.0.0.1:{port}", "/readyz")[0] == 200, "readiness")
        urls = f"unix:{path}", f"http://127.0.0.1:{port}"
        reads = interleaved(
            effort.rounds,
            _p50_ms(effort, socket.AF_UNIX, str(path), keys),
            _p50_ms(effort, socket.AF_INET, ("127.0.0.1", port), keys),
        )
        batches = interleaved(
            effort.rounds,
            *(_keys_per_second(effort, url, keys) for url in urls),
        )
    return [
        Row("one read over a Unix socket, one connection, p50", "ms", reads[0], _AGAINST, reads[1]),
        Row("client.get_many of 500 keys over a Unix socket", "keys/s", batches[0], _AGAINST, batches[1]),
    ]


def _p50_ms(
    effort: Effort, family: socket.AddressFamily, address: str | tuple[str, int], keys: Sequence[str]
) -> Callable[[], float]:
    """Measures single reads, one after the other; a client library would take longer than the socket."""
    head = f" HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials.AUTHORIZATION}\r\n\r\n"
    requests = itertools.cycle([f"GET /v1/stores/{STORE}/keys/{key}{head}".encode() for key in keys])

    def measure() -> float:
        times_ms, until_s = [], time.monotonic() + effort.seconds
        with socket.socket(family) as connection:
            connection.connect(address)
            while (begun_s := time.monotonic()) < until_s:
                connection.sendall(next(requests))
                _receive_answer(connection)
                times_ms.append((time.monotonic() - begun_s) * 1000)
        return percentile(times_ms, 50)

    return measure


def _receive_answer(connection: socket.socket) -> None:
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _body_bytes(received):
        received += connection.recv(_MAX_ANSWER_BYTES)
    assert received.startswith(b"HTTP/1.1 200"), received


def _body_bytes(answer: bytes) -> int:
    found = _CONTENT_LENGTH.search(answer)
    assert found is not None, answer
    return int(found[1])


def _keys_per_second(effort: Effort, url: str, keys: Sequence[str]) -> Callable[[], float]:
    batches = itertools.cycle([keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)])

    def measure() -> float:
        read, begun_s = 0, time.monotonic()
        with Client(url, token=_TOKEN) as client:
            while time.monotonic() < begun_s + effort.seconds:
                read += len(client.get_many(STORE, next(batches)))
            return read / (time.monotonic() - begun_s)

    return measure
