"""Ceilings of lag, which apply to every read whatever it asks for."""

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, running_cluster

PROBLEM = "urn:forebay:problem:"
READS = ["counts/keys/k1", "counts/entries", "hours/keys/jfk/windows", "hours/windows"]
BOUNDS = ["", "max_age_ms=60000", "max_record_lag=0"]
ORDINARY = {"te": "trailers"}
"""A TE header is harmless, and enough for a read not to take the hot path."""


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
def test_a_read_is_held_to_the_ceiling_however_wide_its_own_bound(strict, path, bound):
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


def test_what_is_within_the_ceilings_is_answered_but_not_beyond_a_stricter_bound(tmp_path):
    wide = ("--record-lag-ceiling", "0", "--time-lag-ceiling-ms", "60000", "--age-ceiling-ms", "60000")
    with running_cluster(tmp_path, worker_options=wide) as cluster:
        router = serve(cluster, "router")
        url = f"http://{router}/v1/stores/counts/keys/k1"
        assert httpx.get(url).json()["value"] == 1
        assert httpx.get(f"{url}?max_age_ms=0").status_code == 412


KEYS = [f"k{i}" for i in range(20)]


def stated_lag_ms(document: dict[str, Any]) -> int:
    """The largest time lag with which anything is answered."""
    told = document.get("results", [document])
    return max(
        (each["lag"]["time_lag_ms"] for each in told if each.get("lag") and each.get("status") != 412), default=0
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
    topology = """
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
    options = ("--num-standby-replicas", "0", "--time-lag-ceiling-ms", "300", "--session-timeout-ms", "6000")
    with running_cluster(tmp_path, topology_text=topology, worker_options=options) as cluster:
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
