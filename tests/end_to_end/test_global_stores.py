"""Stores that every worker holds whole."""

import signal
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "facts"
partitions = 3

[[subtopology.store]]
name = "facts"

[[subtopology]]
name = "tables"
partitions = 3
global = true

[[subtopology.store]]
name = "countries"
"""
KEYS = [b"k%d" % n for n in range(20)]


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    kafka = None if request.param == "sqlite" else request.getfixturevalue("kafka_url")
    no_standbys = ("--num-standby-replicas", "0")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, kafka=kafka, worker_options=no_standbys) as cluster:
        for store in cluster.topology.stores:
            cluster.put(store, dict.fromkeys(KEYS, b'"old"'))
        yield cluster


def answered(address: str, store: str) -> list[Any]:
    """The values that a worker itself has, level with the log; the status of what it does not answer."""
    url = f"http://{address}/v1/stores/{store}/keys/"
    found = [httpx.get(url + key.decode(), params={"max_record_lag": 0}) for key in KEYS]
    return [one.json()["value"] if one.status_code == 200 else one.status_code for one in found]


def hold_all(addresses: list[str], value: str) -> None:
    everything = [value] * len(KEYS)
    wait_until(lambda: all(answered(one, "countries") == everything for one in addresses), "all on each", 60)


def test_every_worker_answers_every_key(cluster: Cluster):
    workers = cluster.start_workers(3)
    hold_all(workers, "old")
    # Of another store each has its own part, and no standbys.
    assert all(421 in answered(worker, "facts") for worker in workers)
    cluster.put("countries", dict.fromkeys(KEYS, b'"new"'))
    hold_all(workers, "new")
    metadata = cluster.get(workers[0], "/v1/metadata/stores/countries/keys/k1")
    assert {metadata["active_host"], *metadata["standby_hosts"]} == set(workers)
    own = [cluster.roles(worker, "countries") for worker in workers]
    roles = [[role for of_one in own for role in of_one[partition].values()] for partition in range(3)]
    assert [sorted(of_one) for of_one in roles] == [["active", "standby", "standby"]] * 3


def test_who_joins_while_another_is_away_holds_all(cluster: Cluster):
    """The place of a worker that may come back is no reason to have less."""
    first, second = cluster.start_workers(2)
    hold_all([first, second], "old")
    cluster.kill(second)
    third = cluster.start_worker()
    hold_all([first, third], "old")
    cluster.kill(first, signal.SIGTERM)
    fourth = cluster.start_worker()
    hold_all([third, fourth], "old")
