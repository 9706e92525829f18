"""A worker in the middle of a replay: it says so, gives what it has, and proves nothing by what it lacks."""

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.cluster import ONE_PARTITION, Cluster, running_cluster, wait_until

KEYS = [f"k{i:03}" for i in range(400)]


@pytest.fixture(scope="module", params=["cold", "resumed"])
def replaying(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, bool]]:
    """A worker that applies a compacted log slowly; and whether it had reached an end of the log before."""
    with running_cluster(tmp_path_factory.mktemp("replaying"), topology_text=ONE_PARTITION) as cluster:
        address, resumed = None, request.param == "resumed"
        if resumed:
            for store in ("counts", "prices"):
                cluster.put(store, {b"k000": b"2"})
            address = cluster.start_worker()
            cluster.kill(address, signal.SIGTERM)
        for value in (b"1", b"2"):
            cluster.put("counts", {key.encode(): value for key in KEYS})
        cluster.put("prices", {key.encode(): b"2" for key in KEYS})
        cluster.changelog.compact(cluster.topology.stores["counts"], CompactionLimits(0, 0))
        worker = cluster.start_worker(address, "--apply-records-per-second", "20", ready=False)
        wait_until(lambda: len(rows(worker)) == 2 and all(row["offset"] > 2 for row in rows(worker)), "records")
        wait_until(lambda: rows(worker)[0]["role"] != "standby", "its being designated")
        yield cluster, worker, resumed


def rows(worker: str) -> list[dict[str, Any]]:
    try:
        return list(httpx.get(f"http://{worker}/v1/lags").json().get("lags", []))
    except httpx.TransportError:
        return []


def test_a_replaying_replica_answers_no_miss_or_list(replaying):
    cluster, worker, resumed = replaying
    router = cluster.start_router(ready=False)
    wait_until(lambda: cluster.get(router, "/v1/lags").get("lags"), "the router's knowing the worker")
    paths = ["counts/keys/nobody", "counts/entries", "counts/entries?from=x"]
    if not resumed:
        # Nothing of this log was compacted: once at an end, it is at a point of history at every offset.
        paths += ["prices/keys/nobody", "prices/keys/nobody/versions"]
    for address, kinds in ((worker, {"not-ready"}), (router, {"not-ready", "no-replica"})):
        for path in paths:
            answer = httpx.get(f"http://{address}/v1/stores/{path}")
            assert answer.status_code == 503, (path, answer.text)
            assert answer.json()["type"].removeprefix("urn:forebay:problem:") in kinds
        url = f"http://{address}/v1/stores/counts/batch-get"
        results = httpx.post(url, json={"keys": ["k000", "nobody"]}).json()["results"]
        assert [result.get("problem", {}).get("status") for result in results] == [None, 503]


def test_a_replaying_replica_answers_unbounded_hits(replaying):
    _, worker, resumed = replaying
    [end] = [row["end_offset"] for row in rows(worker) if row["store"] == "counts"]
    url = f"http://{worker}/v1/stores/counts/keys/k000"
    found = httpx.get(url)
    assert (found.status_code, found.json()["value"]) == (200, 2)
    lag = found.json()["lag"]
    # It counts from the last offset up to which it had all, or from where the log begins.
    assert lag["record_lag"] == (end - 2 if resumed else len(KEYS) + 1)
    assert httpx.get(f"{url}?max_record_lag=400").status_code == 412
    assert (lag["time_lag_ms"] is None) == (not resumed)
    if not resumed:
        for bound in ("max_time_lag_ms", "max_age_ms"):
            assert httpx.get(f"{url}?{bound}=3600000").status_code == 412


def test_a_replaying_active_is_restoring(replaying):
    _, worker, _ = replaying
    assert {row["role"] for row in rows(worker)} == {"restoring"}
    found = httpx.get(f"http://{worker}/v1/stores/counts/keys/k000")
    assert (found.json()["role"], found.headers["forebay-role"]) == ("restoring", "restoring")
    refused = httpx.get(f"http://{worker}/v1/stores/counts/keys/k000?require_active=true")
    assert (refused.status_code, refused.json()["type"]) == (412, "urn:forebay:problem:not-active")
    ready = httpx.get(f"http://{worker}/readyz")
    # Its lag alone would be acceptable.
    assert ready.status_code == 503
    assert "counts-0" in ready.json()["behind"]


def test_a_replaying_replica_sends_no_absent_event(replaying):
    _, worker, _ = replaying
    with httpx.stream("GET", f"http://{worker}/v1/stores/counts/keys/nobody/changes", timeout=10) as stream:
        text = "".join(stream.iter_text())
    assert "event: absent" not in text
    [event] = [part for part in text.split("\n\n") if "event: problem" in part]
    assert '"type":"urn:forebay:problem:not-ready"' in event
