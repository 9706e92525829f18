"""What reads pay for a worker that hangs: hedge delays within their budget, and no time-out."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.cluster import ONE_PARTITION, Cluster, running_cluster, wait_until

pytestmark = pytest.mark.chaos

TOGETHER = 40
"""Reads at once: more than may be hedged."""
TIMEOUT_MS = 10_000
"""What each read allows, and would take if it waited for the worker that hangs: far from a hedge delay, so that a
busy machine is no failure."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, str]]:
    with running_cluster(tmp_path_factory.mktemp("hedges"), topology_text=ONE_PARTITION) as cluster:
        for store in ("counts", "prices"):
            cluster.put(store, {b"k": b"1"})
        # Its role stays with the one that hangs, so only hedges help.
        cluster.worker_options = ("--session-timeout-ms", "30000")
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        # A poll that a busy machine delays hides a worker for a moment.
        wait_until(lambda: cluster.active_for(router, "counts", "k"), "the active")
        active = cluster.active_for(router, "counts", "k")
        assert active is not None
        yield cluster, router, active


def hedges(cluster: Cluster, router: str) -> float:
    lines = httpx.get(f"http://{router}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("forebay_router_hedges_total"))


@pytest.mark.parametrize("store", ["counts", "prices"])
def test_a_hung_worker_costs_hedge_delays_only(served, store):
    """One of the stores is read by the fast path, the other by its route."""
    cluster, router, active = served
    with (
        httpx.Client(
            limits=httpx.Limits(max_connections=TOGETHER, max_keepalive_connections=TOGETHER), timeout=30
        ) as client,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):

        def read(_: int) -> tuple[int, float]:
            begun = time.monotonic()
            answer = client.get(f"http://{router}/v1/stores/{store}/keys/k?timeout_ms={TIMEOUT_MS}")
            return answer.status_code, (time.monotonic() - begun) * 1000

        warm = [status for status, _ in pool.map(read, range(TOGETHER))]
        assert set(warm) == {200}
        before = hedges(cluster, router)
        cluster.kill(active, signal.SIGSTOP)
        try:
            answers = list(pool.map(read, range(TOGETHER)))
            more = list(pool.map(read, range(TOGETHER)))
        finally:
            cluster.kill(active, signal.SIGCONT)
    assert {status for status, _ in answers + more} == {200}
    assert max(took_ms for _, took_ms in answers + more) < TIMEOUT_MS / 2
    assert 0 < hedges(cluster, router) - before <= 10 + 3 * TOGETHER / 10
    assert cluster.get(router, "/v1/status")["workers"]
