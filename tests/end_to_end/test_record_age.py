"""Bounds on when a value itself was written, which no lag tells: a replica may be level, and the value old."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from forebay.client import Client
from forebay.errors import RecordTooOld, UnknownKey
from tests.support.cluster import Cluster, running_cluster, wait_until

HOUR_MS = 3_600_000
TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 3

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000000
"""
OLD, YOUNG = [f"old{n}" for n in range(10)], [f"young{n}" for n in range(20)]
BOUND = {"max_record_age_ms": HOUR_MS}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str]]]:
    with running_cluster(tmp_path_factory.mktemp("age"), topology_text=TOPOLOGY) as cluster:
        now_ms = int(time.time() * 1000)
        for store in ("counts", "prices", "hours"):
            start = (5_000).to_bytes(8, "big") if store == "hours" else b""
            cluster.put(
                store, dict.fromkeys((key.encode() + start for key in OLD), b"1"), None, now_ms - 2 * HOUR_MS
            )
            cluster.put(
                store, dict.fromkeys((key.encode() + start for key in YOUNG), b"1"), None, now_ms - HOUR_MS // 2
            )
        worker = cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield cluster, {"worker": worker, "router": router}


@pytest.fixture(params=["worker", "router"])
def client(request: pytest.FixtureRequest, served: tuple[Cluster, dict[str, str]]) -> Iterator[Client]:
    with Client(f"http://{served[1][request.param]}") as client:
        yield client


@pytest.mark.parametrize("store", ["counts", "prices"])
def test_a_value_is_refused_that_was_written_too_long_ago(client, store):
    assert client.get(store, "young1", **BOUND).value == 1
    assert client.get(store, "old1", max_record_age_ms=3 * HOUR_MS).value == 1
    with pytest.raises(RecordTooOld, match="max_record_age_ms is 3600000") as refusal:
        client.get(store, "old1", **BOUND)
    members = refusal.value.members
    assert members["lag"]["record_lag"] == 0
    age_ms = time.time() * 1000 - members["timestamp_ms"]
    assert 2 * HOUR_MS <= age_ms < 3 * HOUR_MS
    # What was never written has no age.
    with pytest.raises(UnknownKey):
        client.get(store, "nobody", **BOUND)


@pytest.mark.parametrize("store", ["counts", "prices"])
def test_of_a_batch_each_value_is_judged(client, store):
    found = client.get_many(store, ["old1", "young1", "nobody", "old2", "young2"], **BOUND)
    assert [getattr(one, "value", type(one)) for one in found] == [RecordTooOld, 1, UnknownKey, RecordTooOld, 1]


def test_a_list_is_refused_or_leaves_out_what_is_old(client):
    with pytest.raises(RecordTooOld):
        list(client.entries("counts", **BOUND))
    assert len(list(client.entries("counts", prefix="young", **BOUND))) == len(YOUNG)
    items = client.entries("counts", skip_old=True, **BOUND)
    assert sorted(item.key for item in items) == sorted(YOUNG)
    assert items.skipped_old == len(OLD)
    # Page by page, whatever the size of pages.
    paged = client.entries("counts", skip_old=True, page_size=3, **BOUND)
    assert sorted(item.key for item in paged) == sorted(YOUNG)


def test_windows_and_versions_too(client):
    assert [window.value for window in client.windows("hours", "young1", **BOUND)] == [1]
    for listed in (client.windows("hours", "old1", **BOUND), client.versions("prices", "old1", **BOUND)):
        with pytest.raises(RecordTooOld):
            list(listed)
    windows = client.windows("hours", skip_old=True, **BOUND)
    assert sorted(window.key for window in windows) == sorted(YOUNG)
    assert list(client.versions("prices", "old1", skip_old=True, **BOUND)) == []


def test_a_read_may_wait_for_a_newer_record(served):
    cluster, address = served
    url = f"http://{address['router']}/v1/stores/counts/keys/old9"
    metrics = f"http://{address['worker']}/metrics"
    with ThreadPoolExecutor() as pool:
        waiting = {**BOUND, "wait_ms": 15_000, "timeout_ms": 20_000}
        reading = pool.submit(httpx.get, url, params=waiting, timeout=30)
        wait_until(lambda: 'forebay_held{what="waiting"} 1.0' in httpx.get(metrics).text, "a read that waits")
        cluster.put("counts", {b"old9": b"2"})
        answer = reading.result()
    assert (answer.status_code, answer.json().get("value")) == (200, 2)
    wait_until(lambda: httpx.get(url, params=BOUND).status_code == 200, "the same without waiting")


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_parameters_that_mean_nothing_are_refused(served, tier):
    url = f"http://{served[1][tier]}/v1/stores/counts"
    for path in (
        "/entries?skip_old=true",
        "/keys/old1?max_record_age_ms=-1",
        "/keys/old1/changes?max_record_age_ms=1",
    ):
        assert httpx.get(f"{url}{path}").status_code == 400
    shown = httpx.get(f"{url}/entries?skip_old=true").json()
    assert "max_record_age_ms" in shown["detail"]
    assert "skipped_old" not in httpx.get(f"{url}/entries").json()
    empty = httpx.get(f"{url}/entries", params={"skip_old": "true", "max_record_age_ms": 3 * HOUR_MS}).json()
    assert empty["skipped_old"] == 0
