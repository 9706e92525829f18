"""One client at its worst beside one that reads as usual: the other keeps its answers, the process its memory."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from forebay.position import Position, decode_position, encode_position
from tests.support.cluster import Cluster, running_cluster, wait_until

ATTACK_S = 3.0
MAX_GROWTH_BYTES = 96 << 20
MAX_MS = 1_000.0
"""Of all but one in a hundred reads beside an attack, on two noisy cores; each held up others for seconds."""


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
        requests = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2_000
        with connected(address) as connection:
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection.sendall(requests)
                    connection.recv(1 << 20)

    for address in (worker, router):
        survives(cluster, address, attack)


def test_batches_of_large_values_that_are_not_read(attacked):
    """Three kilobytes of a request, hundreds of megabytes of an answer: refused, or bounded in all."""
    cluster, worker, router = attacked
    cluster.put("counts", {b"b%d" % i: b'"%b"' % (b"x" * (1 << 20)) for i in range(20)})
    cluster.wait_settled(worker, replicas=1)
    last = f"http://{router}/v1/stores/counts/keys/b1"
    wait_until(lambda: httpx.get(last, timeout=10).status_code == 200, "the value being read")
    refused = httpx.post(f"http://{router}/v1/stores/counts/batch-get", json={"keys": ["b1"] * 500}, timeout=10)
    assert (refused.status_code, refused.json()["type"]) == (413, "urn:forebay:problem:answer-too-large")
    body = b'{"keys":[%b]}' % b",".join(b'"b%d"' % i for i in range(20))

    def attack(address: str, stopped: threading.Event) -> None:
        with contextlib.ExitStack() as connections:
            for _ in range(60):
                connection = connections.enter_context(connected(address))
                connection.sendall(post("counts", body))
            stopped.wait()

    for address in (worker, router):
        # Unbounded, it is more than two gigabytes.
        survives(cluster, address, attack, max_growth_bytes=768 << 20, max_ms=2_000)


def test_bodies_that_stop_before_their_end(attacked):
    cluster, worker, router = attacked

    def attack(address: str, stopped: threading.Event) -> None:
        with contextlib.ExitStack() as connections:
            for _ in range(200):
                connection = connections.enter_context(connected(address))
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection.sendall(post("counts", b'{"keys":["' + b"x" * (2_000_000))[:-100])
            stopped.wait()

    for address in (worker, router):
        survives(cluster, address, attack, max_growth_bytes=280 << 20, attack_s=6.0)


def test_lists_begun_at_once_and_not_read(attacked):
    cluster, worker, router = attacked
    cluster.put("counts", {b"l%05d" % i: b'"%b"' % (b"x" * 10_000) for i in range(4_000)})
    cluster.wait_settled(worker, replicas=1)

    def attack(address: str, stopped: threading.Event) -> None:
        with contextlib.ExitStack() as connections:
            for _ in range(60):
                connection = connections.enter_context(connected(address))
                target = "/v1/stores/counts/entries?limit=3000"
                connection.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            stopped.wait()

    survives(cluster, router, attack, max_growth_bytes=320 << 20, max_ms=1_000)


def test_costly_keys(attacked):
    """Keys that are long, of many numbers, or not of the codec's type cost little more than to refuse them."""
    cluster, worker, router = attacked
    wide = b'{"keys":[[%b]]}' % b",".join([b"1.1"] * 400_000)

    def attack(address: str, stopped: threading.Event) -> None:
        while not stopped.is_set():
            for store, body in (("pairs", wide), ("counts", wide)):
                answer = httpx.post(f"http://{address}/v1/stores/{store}/batch-get", content=body, timeout=10)
                assert answer.status_code == 400
            answer = httpx.get(f"http://{address}/v1/stores/pairs/keys/[{'1.1,' * 15_000}1]", timeout=10)
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:forebay:problem:bad-key")

    for address in (worker, router):
        survives(cluster, address, attack)


def test_waiting_reads_whose_clients_have_left(attacked):
    """They end with their clients, and others that wait still find a place."""
    cluster, worker, router = attacked
    here = httpx.get(f"http://{worker}/v1/stores/counts/keys/k").json()["position"]
    position = decode_position(here)
    future = encode_position(Position(position.log, {part: at + 1_000 for part, at in position.offsets.items()}))
    request = (
        f"GET /v1/stores/counts/keys/k?min_position={future}&wait_ms=30000 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )

    def attack(address: str, stopped: threading.Event) -> None:
        for _ in range(600):
            with connected(address) as connection:
                connection.sendall(request.encode())
        stopped.wait()

    for address in (worker, router):
        survives(cluster, address, attack, attack_s=2.0)
        name = "forebay_waiting_reads" if address == worker else "forebay_router_waiting_reads"
        metrics = f"http://{address}/metrics"
        wait_until(
            lambda name=name, url=metrics: f"{name} 0.0" in httpx.get(url).text, "the end of all that waited"
        )


def test_silent_connections_leave_descriptors_to_stores(tmp_path):
    """A worker with few descriptors refuses connections in time to go on applying."""
    with running_cluster(tmp_path, worker_options=("--max-connections", "50")) as cluster:
        cluster.put("counts", {b"k": b"1"})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        with contextlib.ExitStack() as connections:
            refused = 0
            for _ in range(100):
                connection = connections.enter_context(connected(worker))
                with contextlib.suppress(TimeoutError):
                    connection.settimeout(0.05)
                    refused += b"429" in connection.recv(100)
            assert refused >= 50
        wait_until(lambda: httpx.get(f"http://{worker}/livez").status_code == 200, "a free connection")


def post(store: str, body: bytes) -> bytes:
    return b"POST /v1/stores/%b/batch-get HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (
        store.encode(),
        len(body),
        body,
    )


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=0.5) as connection:
        yield connection


def survives(
    cluster: Cluster,
    address: str,
    attack: Callable[[str, threading.Event], None],
    *,
    max_growth_bytes: int = MAX_GROWTH_BYTES,
    max_ms: float = MAX_MS,
    attack_s: float = ATTACK_S,
) -> None:
    """Another client reads all the time, and no answer is an error or late; memory stays."""
    process = {**cluster.workers, **cluster._routers}[address]
    before = resident_bytes(process.pid)
    stopped = threading.Event()
    attacker = threading.Thread(target=attack, args=(address, stopped))
    attacker.start()
    took_ms, max_bytes = [], before
    try:
        with httpx.Client(base_url=f"http://{address}") as client:
            until_s = time.monotonic() + attack_s
            while time.monotonic() < until_s:
                begun_s = time.perf_counter()
                answer = client.get("/v1/stores/counts/keys/k?timeout_ms=4000")
                took_ms.append((time.perf_counter() - begun_s) * 1000)
                assert answer.status_code == 200, answer.text
                max_bytes = max(max_bytes, resident_bytes(process.pid))
    finally:
        stopped.set()
        attacker.join()
    assert max_bytes - before < max_growth_bytes
    assert sorted(took_ms)[len(took_ms) * 99 // 100] < max_ms


def resident_bytes(pid: int) -> int:
    """The memory that a process takes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096
