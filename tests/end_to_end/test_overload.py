"""A router's concurrent requests to a worker: within its limit, and increasing step by step after a loss."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from forebay.position import Position, decode_position, encode_position
from tests.support.cluster import Cluster, wait_until

MOST = 4
ORDINARY = {"te": "trailers"}
"""A TE header is harmless, and enough for a read not to take the fast path."""


def served(cluster: Cluster, workers: int, *options: str) -> str:
    cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
    cluster.start_workers(workers)
    router = cluster.start_router(*options)
    cluster.wait_settled(router, replicas=workers)
    for _ in range(20):
        # The fast path takes reads once all connections to a worker are open.
        assert read(router).status_code == 200
    return router


def read(router: str, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
    return httpx.get(f"http://{router}/v1/stores/counts/keys/k1", params=parameters, headers=headers, timeout=30)


def worker_row(router: str, worker: str) -> dict[str, Any]:
    status = httpx.get(f"http://{router}/v1/status").json()
    return next(row for row in status["workers"] if row["host"] == worker)


@contextlib.contextmanager
def waiting_reads(cluster: Cluster, router: str, worker: str) -> Iterator[None]:
    """As many reads as a worker is given, that wait there for a record until the end."""
    log, offsets, *_ = decode_position(read(router, require_active="true").json()["position"])
    token = encode_position(Position(log, {partition: offset + 1 for partition, offset in offsets.items()}))
    waiting = {"min_position": token, "wait_ms": 30_000, "timeout_ms": 30_000, "require_active": "true"}
    with ThreadPoolExecutor(MOST) as pool:
        reads = [pool.submit(read, router, **waiting) for _ in range(MOST)]
        try:
            wait_until(lambda: worker_row(router, worker)["waiting"] == MOST, "reads that wait at the worker")
            yield
        finally:
            cluster.put("counts", {b"k1": b'"newer"'})
        assert [done.result().status_code for done in reads] == [200] * MOST


@pytest.mark.parametrize("headers", [{}, ORDINARY], ids=["hot", "ordinary"])
def test_reads_that_wait_at_a_worker_take_no_others_place(cluster, headers):
    router = served(cluster, 2, "--max-in-flight-per-worker", str(MOST))
    active = cluster.active_for(router, "counts", "k1")
    with waiting_reads(cluster, router, active):
        assert worker_row(router, active)["in_flight"] == 0
        assert read(router, headers, require_active="true").json()["role"] == "active"
        listed = httpx.get(f"http://{router}/v1/stores/counts/entries", params={"require_active": "true"})
        assert listed.status_code == 200


def test_unread_list_gives_its_place_back(cluster):
    """A client that does not read its list stops counting as in flight."""
    cluster.put("counts", {b"big%d" % i: b'"%b"' % (b"x" * 20_000) for i in range(1_000)})
    router = served(cluster, 1, "--max-in-flight", "1")
    host, port = router.split(":")
    with contextlib.ExitStack() as clients:

        def is_in_flight() -> bool:
            slow = clients.enter_context(socket.create_connection((host, int(port))))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.sendall(
                b"GET /v1/stores/counts/entries?limit=1000&timeout_ms=1500 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            # Refused itself where another read was not quite over.
            return any(read(router).status_code == 429 for _ in range(20))

        wait_until(is_in_flight, "the list to be in flight")
        wait_until(lambda: read(router).status_code == 200, "its place")


@pytest.mark.parametrize("headers", [{}, ORDINARY], ids=["hot", "ordinary"])
def test_a_router_full_of_waiting_reads_still_answers_others(cluster, headers):
    """Waiting is counted apart from reading: one more is refused at once, what need not wait is answered."""
    router = served(cluster, 1, "--max-in-flight", str(MOST))
    (worker,) = cluster.workers
    with waiting_reads(cluster, router, worker):
        refused = read(router, headers, wait_ms=1_000)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["type"] == "urn:forebay:problem:overloaded"
        assert read(router, headers).status_code == 200


@pytest.mark.parametrize("headers", [{}, ORDINARY], ids=["hot", "ordinary"])
def test_a_router_with_all_that_it_takes_on_refuses_at_once(cluster, headers):
    router = served(cluster, 1, "--max-in-flight", str(MOST))
    (worker,) = cluster.workers
    cluster.kill(worker, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(MOST) as pool:
            for _ in range(MOST):
                pool.submit(read, router, timeout_ms=5_000)
            wait_until(lambda: worker_row(router, worker)["in_flight"] == MOST, "reads in flight")
            refused = read(router, headers)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["type"] == "urn:forebay:problem:overloaded"
            cluster.kill(worker, signal.SIGCONT)
    finally:
        cluster.kill(worker, signal.SIGCONT)


@pytest.mark.chaos
def test_resumed_worker_is_probed_before_its_full_share(cluster):
    router = served(cluster, 2)
    stopped = cluster.active_for(router, "counts", "k1")
    cluster.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: read(router).status_code == 200 and worker_row(router, stopped)["recovering"], "a loss")
    won = re.search(r"^forebay_router_hedges_won_total (\S+)", httpx.get(f"http://{router}/metrics").text, re.M)
    assert float(won[1]) >= 1
    cluster.kill(stopped, signal.SIGCONT)
    # It answers the router's polls, but nobody has read from it.
    wait_until(lambda: not worker_row(router, stopped)["suspect"], "a poll that is answered")
    assert worker_row(router, stopped)["recovering"]
    with ThreadPoolExecutor(16) as pool:

        def back() -> bool:
            answers = list(pool.map(lambda _: read(router, prefer="any"), range(64)))
            assert {answer.status_code for answer in answers} == {200}
            hosts = {answer.json()["host"] for answer in answers}
            return hosts == set(cluster.workers) and not worker_row(router, stopped)["recovering"]

        wait_until(back, "a share of the reads")
