"""One client at its worst beside one that reads as usual: the other keeps its answers, the process its memory."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, running_cluster

ATTACK_S = 3.0
MOST_GROWTH_BYTES = 96 << 20
MOST_MS = 250.0
"""Of the slowest of many reads beside an attack, on two noisy cores; each attack held up others for seconds."""


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[tuple[Cluster, str, str]]:
    """A cluster, its worker and its router."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        yield cluster, worker, cluster.start_router()


def test_endless_pipelining(attacked):
    """Requests without a pause on one connection, whose answers are not read."""
    cluster, worker, router = attacked

    def attack(address: str, stopped: threading.Event) -> None:
        requests = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000
        with connected(address) as connection:
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection.sendall(requests)
                    connection.recv(1 << 20)

    for address in (worker, router):
        survives(cluster, address, attack)


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=0.5) as connection:
        yield connection


def survives(cluster: Cluster, address: str, attack: Callable[[str, threading.Event], None]) -> None:
    """Another client reads all the time, and no answer is an error or late; memory stays."""
    process = {**cluster.workers, **cluster._routers}[address]
    before = resident_bytes(process.pid)
    stopped = threading.Event()
    attacker = threading.Thread(target=attack, args=(address, stopped))
    attacker.start()
    slowest_ms, most_bytes = 0.0, before
    try:
        with httpx.Client(base_url=f"http://{address}") as client:
            until_s = time.monotonic() + ATTACK_S
            while time.monotonic() < until_s:
                begun_s = time.perf_counter()
                answer = client.get("/v1/stores/counts/keys/k")
                slowest_ms = max(slowest_ms, (time.perf_counter() - begun_s) * 1000)
                assert answer.status_code == 200, answer.text
                most_bytes = max(most_bytes, resident_bytes(process.pid))
    finally:
        stopped.set()
        attacker.join()
    assert most_bytes - before < MOST_GROWTH_BYTES
    assert slowest_ms < MOST_MS


def resident_bytes(pid: int) -> int:
    """The memory that a process takes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096
