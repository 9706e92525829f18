"""Workers and routers over a Kafka of three brokers, of which one dies."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from examples.broker import Broker, Brokers
from forebay.errors import ChangelogUnreachable
from tests.cluster import Cluster, running_cluster, wait_until
from tests.conftest import need_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

KEYS = [f"k{i}" for i in range(100)]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    need_kafka()
    with Brokers(tmp_path / "kafka", 3) as brokers:
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


def test_a_dead_broker_costs_no_read_and_leaves_no_worker_behind(cluster, brokers):
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
