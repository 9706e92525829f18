"""Workers and routers over a Kafka of three brokers, of which one dies or freezes."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from examples.broker import Broker, Brokers
from forebay.errors import ChangelogUnreachable
from tests.conftest import need_kafka
from tests.support.cluster import Cluster, running_cluster, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

KEYS = [f"k{i}" for i in range(100)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    need_kafka()
    with Brokers(tmp_path_factory.mktemp("kafka"), 3) as brokers:
        yield brokers


@pytest.fixture
def cluster(brokers: Brokers, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=brokers.url) as cluster:
        yield cluster


def leader_of_most(brokers: Brokers, topic: str) -> Broker:
    admin = AdminClient({"bootstrap.servers": brokers.url.removeprefix("kafka://")})
    partitions = admin.list_topics(topic, 10).topics[topic].partitions.values()
    [(number, _)] = Counter(partition.leader for partition in partitions).most_common(1)
    return brokers.brokers[number - 1]


def wrote(cluster: Cluster, value: str) -> bool:
    """Whether all keys were written; raises what would end a query of the sink's."""
    try:
        cluster.put("counts", {key.encode(): f'"{value}"'.encode() for key in KEYS})
    except ChangelogUnreachable:
        return False
    return True


def shown(address: str, **bounds: int) -> set[object]:
    """The values of all keys, or what was said instead of one."""
    url = f"http://{address}/v1/stores/counts/batch-get"
    results = httpx.post(url, json={"keys": KEYS}, params=bounds, timeout=10).json()["results"]
    return {result["value"] if "value" in result else result["problem"]["type"] for result in results}


def test_dead_broker_costs_no_read(cluster, brokers):
    """Every worker knows the end offsets soon after new leaders are elected."""
    assert wrote(cluster, "old")
    workers = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    dead = leader_of_most(brokers, cluster.topology.stores["counts"].topic)
    dead.kill()
    assert shown(router) == {"old"}
    wait_until(lambda: wrote(cluster, "new"), "new leaders", 60)
    for address in (*workers, router):
        # Librdkafka alone would ask the dead one for five minutes.
        wait_until(
            lambda: shown(address, max_time_lag_ms=2_000) == {"new"},  # noqa: B023
            f"{address} knowing the logs' ends",
            40,
        )
    # A worker that dies meanwhile is replaced, though the group may have lost its coordinator.
    cluster.kill(workers[0])
    wait_until(lambda: shown(router, max_time_lag_ms=2_000) == {"new"}, "the other worker's taking over", 40)
    roles = cluster.roles(workers[1], "counts")
    wait_until(
        lambda: all(cluster.roles(workers[1], "counts")[p] == {workers[1]: "active"} for p in roles), "actives", 60
    )
    dead.start()
    assert wrote(cluster, "newest")
    wait_until(lambda: shown(router, max_time_lag_ms=2_000) == {"newest"}, "the newest")


def coordinator(cluster: Cluster, brokers: Brokers) -> Broker:
    """The broker that keeps the worker group."""
    admin = AdminClient({"bootstrap.servers": brokers.url.removeprefix("kafka://")})
    group = cluster.topology.application_id
    return brokers.brokers[admin.describe_consumer_groups([group])[group].result(10).coordinator.id - 1]


def test_frozen_coordinator_revokes_actives_until_reelection(cluster, brokers):
    """Reads go on meanwhile."""
    assert wrote(cluster, "value")
    workers = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    frozen = coordinator(cluster, brokers)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "active" not in roles(workers), "the lease's end")
        assert shown(router) == {"value"}
        # Requests to a coordinator usually wait for 30 s and more.
        wait_until(lambda: roles(workers) == {"active"}, "the new coordinator", 25)
        assert shown(router) == {"value"}
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


def roles(workers: list[str]) -> set[str]:
    """In which roles keys are answered, if the active is asked of all workers."""
    url = "http://{}/v1/stores/counts/keys/{}"
    answers = [[httpx.get(url.format(worker, key), timeout=10) for worker in workers] for key in KEYS[:20]]
    found = [{answer.headers.get("forebay-role", "none") for answer in those} for those in answers]
    return {"active" if "active" in those else "standby" for those in found}
