"""A worker that cannot renew its lease in the group: it goes on serving, and is active for nothing."""

import contextlib
import sqlite3

import httpx

from tests.support.cluster import Cluster, wait_until


def test_a_worker_that_cannot_renew_its_lease_is_standby(cluster: Cluster):
    cluster.put("counts", {b"k": b"1"})
    worker = cluster.start_worker()
    url = f"http://{worker}/v1/stores/counts/keys/k"
    group = cluster.directory / "log" / "group.db"

    def role() -> str:
        return httpx.get(url).headers["forebay-role"]

    wait_until(lambda: role() == "active", "its being active")
    with contextlib.closing(sqlite3.connect(group, isolation_level=None)) as other:
        # As somebody does who holds the database's lock, stopped in the middle.
        other.execute("BEGIN IMMEDIATE")
        wait_until(lambda: role() == "standby", "the end of its lease", 10)
        refused = httpx.get(url, params={"require_active": "true"})
        assert (refused.status_code, refused.json()["type"]) == (412, "urn:forebay:problem:not-active")
        # What it knows of the log has nothing to do with the group.
        cluster.put("counts", {b"k": b"2"})
        wait_until(
            lambda: httpx.get(url, params={"max_time_lag_ms": 2_000}).json().get("value") == 2, "the change"
        )
        assert {row["role"] for row in cluster.get(worker, "/v1/lags")["lags"]} == {"standby"}
    wait_until(lambda: role() == "active", "its being active again")
