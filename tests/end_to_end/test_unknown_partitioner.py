"""Stores whose keys are wherever their writer put them: every partition is asked before a miss is reported."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.client import Client
from forebay.errors import UnknownKey, UnknownPartitioner
from forebay.position import Position, decode_position, encode_position
from tests.support.cluster import Cluster, running_cluster, unstamped

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 3

[[subtopology.store]]
name = "names"
partitioner = "unknown"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000
partitioner = "unknown"

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000
partitioner = "unknown"
"""
KEYS = [f"k{i}" for i in range(30)]
PROBLEM = "urn:forebay:problem:"


def place(key: str) -> int:
    """The writer's placement of a key, known only to the writer."""
    return int(key[1:]) * 7 % 10 % 3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("unknown"), topology_text=TOPOLOGY) as cluster:
        write(cluster)
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router


def write(cluster: Cluster) -> None:
    time8 = (5000).to_bytes(8, "big")
    for store, suffix, stamps in (("names", b"", [1]), ("hours", time8, [1]), ("prices", b"", [1000, 2000])):
        split: dict[int, list[Any]] = {}
        for key in KEYS:
            rows = [(key.encode() + suffix, b"%d" % stamp, stamp) for stamp in stamps]
            split.setdefault(place(key), []).extend(rows)
        cluster.log.append(cluster.topology.stores[store], split, store, 1)


def get(address: str, path: str, **parameters: Any) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/{path}", params=parameters, timeout=10)


@pytest.mark.parametrize("parameters", [{}, {"prefer": "any"}, {"max_record_lag": 0}, {"wait_ms": 100}])
def test_a_key_is_found_in_whichever_partition_has_it(served, parameters):
    _, router = served
    for key in KEYS:
        body = get(router, f"names/keys/{key}", **parameters).json()
        assert (body["key"], body["value"], body["partition"]) == (key, 1, place(key))
        assert body["lag"]["record_lag"] == 0


def test_that_there_is_no_such_key_is_said_of_all_partitions(served):
    _, router = served
    answer = get(router, "names/keys/nobody")
    body = answer.json()
    assert (answer.status_code, body["type"]) == (404, PROBLEM + "unknown-key")
    assert [source["partition"] for source in body["partitions"]] == [0, 1, 2]
    for figure, worst in body["lag"].items():
        assert worst == max(source["lag"][figure] for source in body["partitions"])
        assert answer.headers[f"forebay-{figure.replace('_', '-')}"] == str(worst)
    assert decode_position(body["position"]).offsets.keys() == {0, 1, 2}
    assert answer.headers["forebay-position"] == body["position"]


def test_miss_requires_min_position_in_every_partition(served):
    """A hit needs it in the key's own partition only."""
    _, router = served
    seen = get(router, "names/keys/nobody").json()["position"]
    assert get(router, "names/keys/nobody", min_position=seen).status_code == 404
    log, offsets, *_ = decode_position(seen)
    for partition in range(3):
        ahead = encode_position(Position(log, {**offsets, partition: offsets[partition] + 100}))
        refused = get(router, "names/keys/nobody", min_position=ahead)
        assert (refused.status_code, refused.json()["type"]) == (412, PROBLEM + "position-not-reached")
        assert refused.json()["partition"] == partition
        statuses = {key: get(router, f"names/keys/{key}", min_position=ahead).status_code for key in KEYS}
        assert statuses == {key: 412 if place(key) == partition else 200 for key in KEYS}


def test_several_keys_at_once(served):
    _, router = served
    requested = [*KEYS, "nobody", 7]
    answer = httpx.post(f"http://{router}/v1/stores/names/batch-get", json={"keys": requested})
    *found, missing, bad = answer.json()["results"]
    assert [(item["key"], item["value"], item["partition"]) for item in found] == [(k, 1, place(k)) for k in KEYS]
    assert missing["key"] == "nobody"
    assert missing["problem"]["type"] == PROBLEM + "unknown-key"
    assert [source["partition"] for source in missing["problem"]["partitions"]] == [0, 1, 2]
    assert bad["problem"]["type"] == PROBLEM + "bad-key"


def test_lists_of_one_key(served):
    _, router = served
    for key in KEYS:
        windows = get(router, f"hours/keys/{key}/windows").json()
        assert unstamped(windows["windows"]) == [{"start_ms": 5000, "end_ms": 6000, "value": 1}]
        assert [source["partition"] for source in windows["partitions"]] == [0, 1, 2]
        versions = get(router, f"prices/keys/{key}/versions", limit=1)
        assert unstamped(versions.json()["versions"]) == [{"valid_from_ms": 1000, "value": 1000}]
        more = get(router, f"prices/keys/{key}/versions", limit=1, cursor=versions.json()["next"]).json()
        assert unstamped(more["versions"]) == [{"valid_from_ms": 2000, "value": 2000}]
        assert get(router, f"prices/keys/{key}", as_of=1500).json()["value"] == 1000


def test_client_session_keeps_positions_of_all_partitions(served):
    _, router = served
    with Client(f"http://{router}") as client:
        session = client.session()
        assert [answer.value for answer in session.get_many("names", KEYS)] == [1] * len(KEYS)
        with pytest.raises(UnknownKey) as miss:
            session.get("names", "nobody")
        assert miss.value.lag is not None
        assert session.get("names", "k1").partition == place("k1")
        with pytest.raises(UnknownPartitioner):
            next(client.changes("names", "k1"))


@pytest.mark.parametrize("path", ["stores/names/keys/k1/changes", "metadata/stores/names/keys/k1"])
def test_what_needs_the_one_partition_of_a_key_is_refused(served, path):
    _, router = served
    answer = httpx.get(f"http://{router}/v1/{path}")
    assert (answer.status_code, answer.json()["type"]) == (409, PROBLEM + "unknown-partitioner")


def test_a_worker_wants_the_partition_named(served):
    cluster, _ = served
    worker = next(iter(cluster.workers))
    refused = get(worker, "names/keys/k1")
    assert (refused.status_code, refused.json()["type"]) == (409, PROBLEM + "unknown-partitioner")
    assert "partition=" in refused.json()["detail"]
    assert get(worker, "names/keys/k1", partition=place("k1")).json()["value"] == 1


def test_unreachable_partition_turns_misses_into_no_replica(tmp_path):
    """A hit in another partition is a hit."""
    alone = ("--num-standby-replicas", "0", "--session-timeout-ms", "20000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=alone) as cluster:
        write(cluster)
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        killed = next(iter(cluster.workers))
        lost = {p for p, hosts in cluster.roles(router, "names").items() if killed in hosts}
        cluster.kill(killed)
        batch = httpx.post(f"http://{router}/v1/stores/names/batch-get", json={"keys": [*KEYS, "nobody"]}).json()
        for key, result in zip([*KEYS, "nobody"], batch["results"], strict=True):
            single = get(router, f"names/keys/{key}")
            if key != "nobody" and place(key) not in lost:
                assert (single.status_code, single.json()["value"], result["value"]) == (200, 1, 1)
                continue
            assert single.status_code == 503
            for problem in (single.json(), result["problem"]):
                assert problem["type"] == PROBLEM + "no-replica"
                assert problem["partition"] in lost
        refused = get(router, "hours/keys/k1/windows")
        assert (refused.status_code, refused.json()["partition"] in lost) == (503, True)


PLACING = """
class ByLastByte:
    def partition(self, key, partitions):
        return key[-1] % partitions
"""


def test_a_router_without_a_stores_partitioner_says_so(tmp_path, monkeypatch):
    installed = tmp_path / "installed"
    metadata = installed / "placing-1.0.dist-info"
    metadata.mkdir(parents=True)
    (installed / "placing.py").write_text(PLACING)
    (metadata / "METADATA").write_text("Name: placing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[forebay.partitioners]\nlast-byte = placing:ByLastByte\n")
    monkeypatch.syspath_prepend(installed)
    text = """
application_id = "test"

[[subtopology]]
name = "placed"
partitions = 3

[[subtopology.store]]
name = "names"
partitioner = "last-byte"
"""
    with running_cluster(tmp_path, topology_text=text) as cluster:
        cluster.put("names", {key.encode(): b"1" for key in KEYS})
        with monkeypatch.context() as environment:
            environment.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
            cluster.start_worker()
            knowing = cluster.start_router()
            cluster.wait_settled(knowing, replicas=1)
        assert get(knowing, "names/keys/k7").json()["partition"] == ord("7") % 3
        without = cluster.start_router()
        for path in ("names/keys/k7", "names/keys/k7/changes"):
            refused = get(without, path)
            assert (refused.status_code, refused.json()["type"]) == (503, PROBLEM + "partitioner-missing")
            assert "'last-byte'" in refused.json()["detail"]
        batch = httpx.post(f"http://{without}/v1/stores/names/batch-get", json={"keys": ["k7"]})
        assert "partitioner-missing" in batch.text
        assert get(without, "names/entries", limit=100).json()["next"] is None
        assert "keys of the store 'names' cannot be read" in (log := cluster.logs())
        assert "Traceback" not in log
