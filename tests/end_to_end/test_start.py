"""A worker whose start takes long says so, and is not taken for dead."""

import contextlib
import sqlite3

import httpx

from tests.support.cluster import running_cluster, wait_until


def test_worker_awaiting_its_group_is_alive_and_not_ready(tmp_path):
    """The group's database is locked."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        worker = cluster.start_worker()
        router = cluster.start_router()
        cluster.kill(worker)
        (group,) = cluster.directory.glob("log/group.db")
        with contextlib.closing(sqlite3.connect(group, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            cluster.start_worker(worker, ready=False)
            cluster.wait_alive(worker)
            before = cluster.logs().count("serves test")
            for path in ("/readyz", "/v1/stores/counts/keys/k", "/v1/identity"):
                answer = httpx.get(f"http://{worker}{path}")
                assert (answer.status_code, answer.json()["type"]) == (503, "urn:forebay:problem:not-ready")
                assert answer.headers["retry-after"] == "1"
            post = httpx.post(f"http://{worker}/v1/stores/counts/batch-get", json={"keys": ["k"]})
            assert post.status_code == 503
            assert httpx.head(f"http://{worker}/livez").status_code == 200
            assert cluster.get(router, "/v1/status")["rejected_addresses"] == []
            # All that was before it served.
            assert (before, cluster.logs().count("serves test")) == (1, 1)
            other.execute("ROLLBACK")
        cluster.wait_ready(worker)
        wait_until(
            lambda: httpx.get(f"http://{router}/v1/stores/counts/keys/k").status_code == 200,
            "a read by the router",
        )
