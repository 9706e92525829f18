"""Every route of both tiers: the shapes of its answer and its problems, and the lag of everything it reads."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from forebay.wire.server_sent_events import EventReader
from openapi.generate import router_document, worker_document
from tests.support.cluster import Cluster, running_cluster

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 2

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 100000000

[[subtopology.store]]
name = "visits"
kind = "session"
gap_ms = 1000
retention_ms = 100000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 100000000
"""
PATHS = {"worker": worker_document()["paths"], "router": router_document()["paths"]}
REPLICA_INFO = {"partition", "position", "role", "host", "lag"}
ONE = {"store", "key", "value", "timestamp_ms"} | REPLICA_INFO
LIST = {"store", "next", "complete", "lag", "partitions"}
PROBLEM = {"type", "title", "status", "detail"}
STATUS = {"tier", "application_id", "process_id", "incarnation", "sequence", "state", "generation"}
HEALTH = {"tier", "application_id", "state", "now_ms", "surveyed_ms", "generation", "summary"}
HEALTH |= {"workers", "findings", "stores"}
LAG = {"record_lag", "time_lag_ms", "age_ms"}
ENDS = {"end_offset", "high_watermark", "open_transaction_records"}
ROW = {"store", "partition", "task", "role", "host", "offset", "restored"} | ENDS | LAG


@dataclass(frozen=True)
class Route:
    """A request to a route and its result; without ``wrong`` there is no invalid request."""

    right: str
    members: set[str]
    wrong: str | None = None
    problem: str = "unknown-store"
    body: Any = None


ROUTES = {
    "/livez": Route("/livez", {"live"}),
    "/readyz": Route("/readyz", {"ready"}),
    "/metrics": Route("/metrics", set()),
    "/v1/identity": Route("/v1/identity", {"tier", "application_id", "process_id", "incarnation"}),
    "/v1/status": Route("/v1/status", STATUS),
    "/v1/lags": Route("/v1/lags", {"lags"}),
    "/v1/metadata": Route("/v1/metadata", {"application_id", "topology", "incarnation", "generation", "hosts"}),
    "/v1/metadata/stores/{store}": Route(
        "/v1/metadata/stores/counts", {"store", "active", "standby"}, "/v1/metadata/stores/nope"
    ),
    "/v1/metadata/stores/{store}/keys/{key}": Route(
        "/v1/metadata/stores/counts/keys/k",
        {"store", "key", "active_host", "standby_hosts", "partition"},
        "/v1/metadata/stores/counts/keys/%FF",
        "bad-key",
    ),
    "/v1/health": Route("/v1/health", HEALTH),
    "/v1/timeline": Route("/v1/timeline", {"events"}),
    "/v1/stores/{store}/replicas": Route(
        "/v1/stores/counts/replicas?from=1&limit=1",
        {"store", "generation", "partitions", "next"},
        "/v1/stores/counts/replicas?limit=1001",
        "bad-parameter",
    ),
    "/v1/stores/{store}/history": Route(
        "/v1/stores/counts/history?after_ms=1",
        {"store", "interval_ms", "samples", "served"},
        "/v1/stores/nope/history",
    ),
    "/v1/tickets": Route(
        "/v1/tickets", {"ticket", "expires_ms"}, "/v1/tickets?store=counts", "bad-parameter", {"store": "counts"}
    ),
    "/v1/stores": Route("/v1/stores", {"application_id", "topology", "stores"}),
    "/v1/stores/{store}": Route(
        "/v1/stores/counts",
        {"name", "kind", "key", "value", "partitioner", "topic", "partitions"},
        "/v1/stores/nope",
    ),
}
READS = {
    "/v1/stores/{store}/keys/{key}": Route(
        "/v1/stores/counts/keys/k", ONE, "/v1/stores/counts/keys/nobody", "unknown-key"
    ),
    "/v1/stores/{store}/keys/{key}/changes": Route(
        "/v1/stores/counts/keys/k/changes", ONE, "/v1/stores/hours/keys/k/changes", "wrong-store-kind"
    ),
    "/v1/stores/{store}/changes": Route(
        "/v1/stores/counts/changes",
        {"store", "entries", "partition", "position", "role", "host", "lag"},
        "/v1/stores/nope/changes",
    ),
    "/v1/stores/{store}/batch-get": Route(
        "/v1/stores/counts/batch-get", {"results"}, "/v1/stores/nope/batch-get", body={"keys": ["k"]}
    ),
    "/v1/stores/{store}/entries": Route(
        "/v1/stores/counts/entries", LIST | {"entries"}, "/v1/stores/counts/entries?limit=0", "bad-parameter"
    ),
    "/v1/stores/{store}/windows": Route(
        "/v1/stores/hours/windows", LIST | {"windows"}, "/v1/stores/counts/windows", "wrong-store-kind"
    ),
    "/v1/stores/{store}/sessions": Route(
        "/v1/stores/visits/sessions",
        LIST | {"sessions"},
        "/v1/stores/visits/sessions?max_age_ms=0",
        "lag-exceeds-tolerance",
    ),
    "/v1/stores/{store}/keys/{key}/windows": Route(
        "/v1/stores/hours/keys/k/windows", LIST | {"key", "windows"}, "/v1/stores/nope/keys/k/windows"
    ),
    "/v1/stores/{store}/keys/{key}/sessions": Route(
        "/v1/stores/visits/keys/k/sessions",
        LIST | {"key", "sessions"},
        "/v1/stores/visits/keys/k/sessions?from=x",
        "bad-parameter",
    ),
    "/v1/stores/{store}/keys/{key}/versions": Route(
        "/v1/stores/prices/keys/k/versions",
        LIST | {"key", "versions"},
        "/v1/stores/prices/keys/%FF/versions",
        "bad-key",
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_cluster(tmp_path_factory.mktemp("routes"), topology_text=TOPOLOGY) as cluster:
        write(cluster)
        (worker,) = cluster.start_workers(1)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield {"worker": worker, "router": router}


def write(cluster: Cluster) -> None:
    at = (1000).to_bytes(8, "big")
    for store, suffix in (("counts", b""), ("hours", at), ("visits", at + at), ("prices", b"")):
        cluster.put(store, {b"k" + suffix: b"1"})


def ask(address: str, route: Route, path: str) -> httpx.Response:
    """The answer; of a stream, its first event that has any content as the body."""
    url = f"http://{address}{path}"
    if not path.endswith("/changes"):
        return httpx.request("GET" if route.body is None else "POST", url, json=route.body)
    with httpx.stream("GET", url) as response:
        reader = EventReader()
        if response.status_code != 200:
            response.read()
            return response
        events = (event for piece in response.iter_bytes() for event in reader.feed(piece))
        event = next(event for event in events if event.name != "reset")
    return httpx.Response(200, headers={"content-type": response.headers["content-type"]}, content=event.data)


def lags_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The lag of everything that a read's answer holds."""
    answers = [document, *document.get("partitions", ())]
    return [answer["lag"] for answer in document.get("results", answers)]


@pytest.mark.parametrize("tier", PATHS)
def test_every_route_is_in_the_tables(tier):
    assert PATHS[tier].keys() == ROUTES.keys() | READS.keys()


@pytest.mark.parametrize("tier", PATHS)
@pytest.mark.parametrize("path", [*ROUTES, *READS])
def test_an_answer_has_its_members(served, tier, path):
    route = {**ROUTES, **READS}[path]
    answer = ask(served[tier], route, route.right)
    assert answer.status_code == 200, answer.text
    (documented,) = PATHS[tier][path]["post" if route.body else "get"]["responses"]["200"]["content"]
    assert answer.headers["content-type"].partition(";")[0] == documented
    if path == "/metrics":
        return
    document = answer.json()
    own = {
        "worker": {
            "topology",
            "host",
            "rack",
            "ceiling",
            "acceptable_recovery_lag",
            "num_standby_replicas",
            "storage_fault",
            "tasks",
        },
        "router": {"workers", "processes", "rejected_addresses", "auth_rejected_by"},
    }[tier]
    missing, extra = route.members - document.keys(), document.keys() - route.members
    assert not missing
    if path == "/v1/status":
        assert extra == own
    elif path != "/v1/stores/{store}":
        # A store has further members by its kind.
        assert not extra


@pytest.mark.parametrize("tier", PATHS)
@pytest.mark.parametrize("path", READS)
def test_whatever_is_read_comes_with_its_lag(served, tier, path):
    document = ask(served[tier], READS[path], READS[path].right).json()
    lags = lags_of(document)
    assert lags
    for lag in lags:
        assert lag.keys() == LAG
        assert lag["record_lag"] == 0
        assert lag["time_lag_ms"] >= 0
        assert lag["age_ms"] > 0


@pytest.mark.parametrize("tier", PATHS)
@pytest.mark.parametrize("path", [path for path, route in {**ROUTES, **READS}.items() if route.wrong])
def test_a_problem_has_its_members(served, tier, path):
    route = {**ROUTES, **READS}[path]
    answer = ask(served[tier], route, route.wrong)
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert problem.keys() >= PROBLEM
    assert problem["type"] == f"urn:forebay:problem:{route.problem}"
    assert problem["status"] == answer.status_code
    assert str(answer.status_code) in PATHS[tier][path]["post" if route.body else "get"]["responses"]
    assert json.dumps(problem["detail"]) != '""'


@pytest.mark.parametrize("tier", PATHS)
def test_a_replica_is_listed_with_its_lag(served, tier):
    rows = httpx.get(f"http://{served[tier]}/v1/lags").json()["lags"]
    assert len(rows) == 4 * 2
    assert all(row.keys() == ROW for row in rows)


@pytest.mark.parametrize("tier", PATHS)
@pytest.mark.parametrize("path", [path for path in {**ROUTES, **READS} if path.startswith("/v1/")])
def test_unknown_parameter_is_refused_by_name(served, tier, path):
    route = {**ROUTES, **READS}[path]
    answer = ask(served[tier], route, f"{route.right.partition('?')[0]}?misspelt=1")
    if path.endswith("/changes"):
        answer = httpx.get(f"http://{served[tier]}{route.right}?misspelt=1")
    assert (answer.status_code, answer.json()["parameter"]) == (400, "misspelt")
    assert answer.json()["type"] == "urn:forebay:problem:bad-parameter"
    documented = PATHS[tier][path]["post" if route.body else "get"]["responses"]["400"]["description"]
    assert "`bad-parameter`" in documented


@pytest.mark.parametrize("tier", PATHS)
def test_lags_of_one_store_and_holders_of_a_partition(served, tier):
    """Both can be requested on their own, and the API's description names the parameters."""
    url = f"http://{served[tier]}/v1"
    assert {row["store"] for row in httpx.get(f"{url}/lags?store=hours").json()["lags"]} == {"hours"}
    assert httpx.get(f"{url}/lags?store=nope").json()["type"] == "urn:forebay:problem:unknown-store"
    key = f"{url}/metadata/stores/counts/keys/k"
    assert [httpx.get(f"{key}?partition={n}").json()["partition"] for n in (0, 1)] == [0, 1]
    for wrong in ("2", "x"):
        refused = httpx.get(f"{key}?partition={wrong}")
        assert (refused.status_code, refused.json()["parameter"]) == (400, "partition")
    named = {tier: {"lags": ["store"], "metadata_for_key": ["partition"]} for tier in PATHS}
    for operation in (operations.get("get", {}) for operations in PATHS[tier].values()):
        expected = named[tier].get(operation.get("operationId"))
        if expected is not None:
            queries = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
            assert queries == expected
