"""``explain=true``: an answer says how it came about, on either tier and of every kind of read."""

import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster

STORE = "/v1/stores/counts"
TOPOLOGY = """
application_id = "test"
[[subtopology]]
name = "only"
partitions = 2
[[subtopology.store]]
name = "counts"
max_time_lag_ms = 60000
"""


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    options = ("--record-lag-ceiling", "1000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(20)})
        cluster.start_workers(2)
        yield cluster


def explain(answer: httpx.Response) -> dict[str, Any]:
    found = answer.json()["explain"]
    times = [event["at_ms"] for event in found["events"]]
    assert times == sorted(times)
    assert times[-1] <= found["took_ms"]
    return dict(found)


def events(answer: httpx.Response, *names: str) -> list[dict[str, Any]]:
    return [event for event in explain(answer)["events"] if event["event"] in names]


BOUNDS = {
    "request": {"max_record_lag": 5},
    "store": {"max_time_lag_ms": 60_000},
    "ceiling": {"max_record_lag": 1_000},
    "effective": {"max_record_lag": 5},
}


def test_every_read_states_its_bounds_and_its_requests(cluster):
    router = cluster.start_router()
    cluster.wait_settled(router)
    query = "explain=true&max_record_lag=5"
    for address, tier in ((router, "router"), (next(iter(cluster.workers)), "worker")):
        with httpx.Client(base_url=f"http://{address}{STORE}") as client:
            answers = [
                client.get(f"/keys/k1?{query}"),
                client.get(f"/keys/none?{query}"),
                client.get(f"/entries?{query}"),
                client.post(f"/batch-get?{query}", json={"keys": ["k1", "k2", "k3"]}),
            ]
        assert [answer.status_code for answer in answers] == [200, 404, 200, 200]
        for answer in answers:
            found = explain(answer)
            assert (found["tier"], found["bounds"]) == (tier, BOUNDS)
        for answer in answers[:2]:
            of_one = events(answer, "replica", "candidates")
            assert len(of_one) == 1
            assert of_one[0]["partition"] == answer.json()["partition"]
            if tier == "router":
                [candidates] = of_one
                active, standby = candidates["hosts"]
                assert (active["role"], active["host"]) == ("active", answer.json()["host"])
                assert (standby["role"], standby["lag"]["record_lag"], standby["alive"]) == ("standby", 0, True)
                [request, answered, final] = events(answer, "asked", "answered", "final")
                assert {request["host"], answered["host"], final["host"]} == {active["host"]}
                assert answered["status"] == answer.status_code
            else:
                assert of_one[0]["lag"]["record_lag"] == 0
        # What was read of a list or a batch is of all partitions.
        for answer in answers[2:]:
            assert {one["partition"] for one in events(answer, "replica", "candidates")} == {0, 1}


def test_a_failover_and_a_refusal_are_explained(cluster):
    router = cluster.start_router()
    cluster.wait_settled(router)
    with httpx.Client(base_url=f"http://{router}{STORE}/keys", timeout=10) as client:
        refused = client.get("k1?explain=true&max_age_ms=0")
        assert refused.status_code == 412
        # Where what is known of them has changed meanwhile, they are asked once more.
        assert {one["host"] for one in events(refused, "asked")} == {*cluster.workers}
        assert {one["problem"] for one in events(refused, "answered")} == {"lag-exceeds-tolerance"}
        [gave_up] = events(refused, "gave-up")
        assert gave_up["why"] == "unanswered"
        active = cluster.active_for(router, "counts", "k1")
        assert active is not None
        cluster.kill(active, signal.SIGKILL)
        answer = client.get("k1?explain=true")
        assert answer.status_code == 200
        assert [one["host"] for one in events(answer, "asked", "failed")][:2] == [active, active]
        assert events(answer, "final")[0]["host"] == answer.json()["host"] != active


def test_the_parameter_stays_here(cluster):
    """Neither a worker nor a cursor has it, and nothing else takes it."""
    router = cluster.start_router()
    cluster.wait_settled(router)
    with httpx.Client(base_url=f"http://{router}{STORE}") as client:
        page = client.get("/entries?limit=3&explain=1").json()
        assert "explain" in page
        following = client.get("/entries", params={"limit": 3, "cursor": page["next"]}).json()
        assert following["entries"]
        assert "explain" not in following
        assert "explain" not in client.get("/keys/k1?explain=false").json()
        for refused in (client.get("/keys/k1?explain=yes"), client.get("/keys/k1?explain=true&explain=true")):
            assert (refused.status_code, refused.json()["parameter"]) == (400, "explain")
        for path in ("/keys/k1/changes?explain=true", "/changes?explain=true"):
            assert client.get(path).json()["parameter"] == "explain"


def test_an_answer_in_one_piece_has_its_length(cluster):
    """So it has an end over HTTP/1.0 as well; lists, which have none, are refused there."""
    router = cluster.start_router()
    cluster.wait_settled(router)
    host, port = router.split(":")
    for path, status in (("/keys/k1", b"200"), ("/keys/none", b"404"), ("/entries", b"505")):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"GET {STORE}{path}?explain=true HTTP/1.0\r\nHost: {router}\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert b"transfer-encoding" not in head.lower()
        assert b"content-length: %d" % len(body) in head.lower()
        assert json.loads(body)["explain"]["tier"] == "router"
