"""A log that is gone under workers: they say so, serve what they have, and claim nothing of its end."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import forebay

pytestmark = pytest.mark.chaos


def read(address: str, **bounds: int) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/counts/keys/a", params=bounds)


def rows(address: str) -> list[dict[str, Any]]:
    lags = httpx.get(f"http://{address}/v1/lags").json()["lags"]
    return [row for row in lags if row["store"] == "counts"]


def failed_of_health(cluster: Cluster, address: str) -> list[dict[str, Any]]:
    findings = cluster.get(address, "/v1/health")["findings"]
    return [finding for finding in findings if finding["kind"] == "replica-failed"]


def take_away(cluster: Cluster, topic: str) -> Path:
    """Remove a topic as an operator's mistake does; returns where a copy of it is."""
    if cluster.kafka is not None:
        cluster.changelog._topics.delete(topic)
        return Path()
    directory = cluster.changelog.directory / topic
    return directory.rename(cluster.directory / "away")


def test_a_topic_that_is_gone(either_cluster):
    cluster = either_cluster
    topic = cluster.topology.stores["counts"].topic
    cluster.put("counts", {b"a": b"1"})
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    assert all("failure" not in row and row["record_lag"] == 0 for row in rows(router))

    away = take_away(cluster, topic)
    for address in (worker, router):
        wait_until(lambda address=address: all("failure" in row for row in rows(address)), "the failure")
        wait_until(lambda address=address: all(row["record_lag"] is None for row in rows(address)), "no end")
        assert all(topic in row["failure"] and "is gone" in row["failure"] for row in rows(address))
        assert read(address, max_record_lag=1_000_000).status_code == 412
        wait_until(lambda address=address: read(address).json()["lag"]["record_lag"] is None, "no record lag")
        assert read(address).json()["value"] == 1
    # Once ready, only a worker that drains or has no disk is not.
    assert httpx.get(f"http://{worker}/readyz").status_code == 200
    status = httpx.get(f"http://{worker}/v1/status").json()
    assert {row["store"] for row in status["tasks"] if "failure" in row} == {"counts"}
    shown = " ".join(forebay("status", "--url", f"http://{router}").stdout.split())
    assert "not applied: counts-0 on" in shown
    assert "is gone" in shown
    wait_until(lambda: failed_of_health(cluster, router), "the finding")
    assert "is gone" in failed_of_health(cluster, router)[0]["detail"]
    assert failed_of_health(cluster, router)[0]["remedy"]
    metrics = httpx.get(f"http://{worker}/metrics").text.splitlines()
    failed = [line for line in metrics if line.startswith("forebay_replica_failed{") and 'store="counts"' in line]
    assert {line.split()[-1] for line in failed} == {"1.0"}
    lines = [line for line in cluster.logs().splitlines() if "not applied are" in line]
    assert len(lines) == 1
    assert "and 3 more" in lines[0]

    if cluster.kafka is None:
        shutil.move(away, cluster.changelog.directory / topic)
        wait_until(lambda: all("failure" not in row for row in rows(router)), "the log")
        wait_until(lambda: read(router, max_record_lag=0).status_code == 200, "the end")
