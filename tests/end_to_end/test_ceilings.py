"""Ceilings of lag, which apply to every read whatever it asks for."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

PROBLEM = "urn:forebay:problem:"
READS = ["counts/keys/k1", "counts/entries", "hours/keys/jfk/windows", "hours/windows"]
BOUNDS = ["", "max_age_ms=60000", "max_record_lag=0"]
ORDINARY = {"te": "trailers"}
"""A TE header is harmless, and enough for a read not to take the fast path."""


@pytest.fixture(scope="module", params=["router", "worker"])
def strict(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str]]:
    """A tier whose workers may answer only with data of this very moment: no heartbeat is that recent."""
    with running_cluster(tmp_path_factory.mktemp("strict"), worker_options=("--age-ceiling-ms", "0")) as cluster:
        yield serve(cluster, request.param)


def serve(cluster: Cluster, tier: str) -> str:
    cluster.put("counts", {b"k1": b"1"})
    cluster.put("hours", {b"jfk" + (1000).to_bytes(8, "big"): b"1"})
    (worker,) = cluster.start_workers(1)
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    return worker if tier == "worker" else router


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("path", READS)
def test_read_is_held_to_the_ceiling(strict, path, bound):
    """The ceiling applies however wide the request's own bound is."""
    for headers in ({}, ORDINARY):
        answer = httpx.get(f"http://{strict}/v1/stores/{path}?{bound}", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (412, PROBLEM + "lag-exceeds-tolerance")
        assert answer.json()["tolerance"]["max_age_ms"] == 0
        assert answer.json()["lag"]["age_ms"] > 0


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_batch_and_a_stream_are_held_to_it_too(strict, bound):
    url = f"http://{strict}/v1/stores/counts"
    [result] = httpx.post(f"{url}/batch-get?{bound}", json={"keys": ["k1"]}).json()["results"]
    assert result["problem"]["type"] == PROBLEM + "lag-exceeds-tolerance"
    with httpx.stream("GET", f"{url}/keys/k1/changes?timeout_ms=100&{bound}", timeout=10) as response:
        first = next(line for line in response.iter_lines() if line.startswith("event:"))
    assert first == "event: problem"


def test_stricter_bound_applies_within_the_ceilings(tmp_path):
    wide = ("--record-lag-ceiling", "0", "--time-lag-ceiling-ms", "60000", "--age-ceiling-ms", "60000")
    with running_cluster(tmp_path, worker_options=wide) as cluster:
        router = serve(cluster, "router")
        url = f"http://{router}/v1/stores/counts/keys/k1"
        assert httpx.get(url).json()["value"] == 1
        assert httpx.get(f"{url}?max_age_ms=0").status_code == 412


KEYS = [f"k{i}" for i in range(20)]
TWO_STORES = """
application_id = "test"
[[subtopology]]
name = "a"
partitions = 2
[[subtopology.store]]
name = "counts"
[[subtopology.store]]
name = "elsewhere"
partitioner = "unknown"
"""


def stated_lag_ms(document: dict[str, Any]) -> int:
    """The largest time lag with which anything is answered."""
    reported = document.get("results", [document])
    return max(
        (each["lag"]["time_lag_ms"] for each in reported if each.get("lag") and each.get("status") != 412),
        default=0,
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "counts/entries", None),
        ("POST", "counts/batch-get", {"keys": KEYS}),
        ("GET", "elsewhere/keys/nobody", None),
    ],
    ids=["list", "batch", "search"],
)
def test_what_waited_for_another_worker_is_held_to_the_ceiling(tmp_path, method, path, body):
    options = ("--num-standby-replicas", "0", "--time-lag-ceiling-ms", "300", "--session-timeout-ms", "6000")
    with running_cluster(tmp_path, topology_text=TWO_STORES, worker_options=options) as cluster:
        cluster.put("counts", {key.encode(): b"1" for key in KEYS})
        cluster.log.append(
            cluster.topology.stores["elsewhere"], {0: [(b"a", b"0", 1)], 1: [(b"b", b"1", 1)]}, "w", 9
        )
        stopped, _ = cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        worker = cluster.workers[stopped]
        worker.send_signal(signal.SIGSTOP)
        threading.Timer(0.8, worker.send_signal, (signal.SIGCONT,)).start()
        url = f"http://{router}/v1/stores/{path}?wait_ms=3000&timeout_ms=5000"
        answer = httpx.request(method, url, json=body, timeout=10)
        assert stated_lag_ms(json.loads(answer.text)) <= 300


def test_request_queued_in_a_stopped_router_is_not_fresh(tmp_path):
    """The time for which a router was stopped counts towards lag and deadline."""
    with running_cluster(tmp_path, topology_text=TWO_STORES) as cluster:
        cluster.put("counts", {key.encode(): b"1" for key in KEYS})
        elsewhere = cluster.topology.stores["elsewhere"]
        cluster.log.append(elsewhere, {0: [(b"a", b"1", 1)]}, "w", 9)
        (worker,) = cluster.start_workers(1)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        with httpx.Client(base_url=f"http://{router}/v1/stores/", timeout=10) as client:
            for _ in range(50):
                # Its connections to the worker are open, and it knows how fast that is.
                client.get("counts/keys/k1")
        requested = [
            (method, path, body, bound, headers)
            for bound in ("timeout_ms=5000", "timeout_ms=5000&max_time_lag_ms=1000", "timeout_ms=1000")
            for method, path, body in (
                ("GET", "counts/keys/k1", None),
                ("GET", "elsewhere/keys/a", None),
                ("GET", "elsewhere/keys/nobody", None),
                ("GET", "counts/entries", None),
                ("POST", "counts/batch-get", {"keys": KEYS}),
            )
            for headers in ({}, ORDINARY)
        ]

        def ask(case: tuple[str, str, Any, str, dict[str, str]]) -> httpx.Response:
            method, path, body, bound, headers = case
            url = f"http://{router}/v1/stores/{path}?{bound}"
            return httpx.request(method, url, json=body, headers=headers, timeout=20)

        with ThreadPoolExecutor(len(requested)) as threads:
            before = answered(worker)
            cluster.kill(worker, signal.SIGSTOP)
            answers = threads.map(ask, requested)
            wait_until(lambda: in_flight(router) == len(requested), "all reads' being under way")
            router_process = cluster.router_process(router)
            router_process.send_signal(signal.SIGSTOP)
            cluster.kill(worker, signal.SIGCONT)
            wait_until(lambda: answered(worker) >= before + len(requested), "the worker's answers")
            cluster.put("counts", {key.encode(): b"2" for key in KEYS})
            cluster.log.append(elsewhere, {0: [(b"a", b"2", 1), (b"nobody", b"2", 1)]}, "w", 10)
            time.sleep(1.1)
            router_process.send_signal(signal.SIGCONT)
            for case, answer in zip(requested, answers, strict=True):
                document = answer.json()
                reported = document.get("results") or document.get("entries") or [document]
                lags = [lag["time_lag_ms"] for each in reported if (lag := each.get("lag", document.get("lag")))]
                old = answer.status_code in (200, 404) and any(each.get("value", 1) == 1 for each in reported)
                assert not old or all(lag > 1_000 for lag in lags), case
                assert "max_time_lag_ms" not in case[3] or answer.status_code == 412 or max(lags) <= 1_000, case
                assert "timeout_ms=1000" not in case[3] or "urn:forebay:problem:deadline" in answer.text, case


def in_flight(router: str) -> int:
    [line] = [
        line
        for line in httpx.get(f"http://{router}/metrics").text.splitlines()
        if line.startswith("forebay_router_in_flight ")
    ]
    return int(float(line.split()[1]))


def answered(worker: str) -> float:
    """How many reads a worker has answered."""
    lines = httpx.get(f"http://{worker}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("forebay_reads_total"))
