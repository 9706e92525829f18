"""Clients that send each read to a worker that holds its key: real workers, and no router on the way."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.client import Answer, AsyncClient, Client
from forebay.errors import LagExceedsTolerance, NoReplica, UnknownKey, UnknownPartitioner
from tests.client.test_client import Awaiting
from tests.client.test_fork_safety import Child
from tests.support.cluster import TOPOLOGY, Cluster, free_port, running_cluster, wait_until

KEYS = [f"k{number}" for number in range(100)]
UNKNOWN = """
[[subtopology]]
name = "elsewhere"
partitions = 2

[[subtopology.store]]
name = "elsewhere"
partitioner = "unknown"
"""

Connect = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["blocking", "awaiting"])
def connect(request: pytest.FixtureRequest) -> Connect:
    def make(*urls: str) -> AbstractContextManager[Any]:
        if request.param == "blocking":
            return Client(urls, partition_aware=True)
        return Awaiting(AsyncClient(urls, partition_aware=True), asyncio.Runner())

    return make


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, Path]]:
    """A cluster of three workers, a router that only looks, and the socket of the first worker."""
    directory = tmp_path_factory.mktemp("workers")
    with running_cluster(directory, topology_text=TOPOLOGY + UNKNOWN) as cluster:
        cluster.put("counts", {key.encode(): b"%d" % number for number, key in enumerate(KEYS)})
        cluster.put("hours", {b"jfk" + (1000).to_bytes(8, "big"): b"1"})
        cluster.put("elsewhere", {})
        address, path = f"127.0.0.1:{free_port()}", directory / "worker.sock"
        cluster.start_worker(address, "--listen", f"{address},unix:{path}", ready=False)
        for other in [*cluster.workers, *(cluster.start_worker(ready=False) for _ in range(2))]:
            cluster.wait_ready(other)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router, path


def actives(cluster: Cluster, router: str, store: str = "counts") -> dict[int, str]:
    roles = cluster.roles(router, store)
    return {p: next(host for host, role in of.items() if role == "active") for p, of in roles.items()}


def test_each_read_goes_to_the_active_of_its_key(served, connect):
    cluster, router, _ = served
    active = actives(cluster, router)
    assert len(set(active.values())) > 1
    # Any one worker is enough to learn of the others.
    for seed in cluster.workers:
        with connect(f"http://{seed}") as client:
            found = [client.get("counts", key) for key in KEYS[:20]]
            assert [(one.value, one.host, one.role) for one in found] == [
                (number, active[one.partition], "active") for number, one in enumerate(found)
            ]
            window = next(client.windows("hours", "jfk"))
            assert (window.start_ms, window.value) == (1000, 1)
            with pytest.raises(UnknownKey) as missed:
                client.get("counts", "nobody")
            assert missed.value.lag.record_lag == 0


def test_a_batch_is_one_request_to_each_active(served, connect):
    cluster, router, _ = served
    active = actives(cluster, router)
    with connect(f"http://{next(iter(cluster.workers))}") as client:
        client.get("counts", KEYS[0])
        before = {worker: batches(worker) for worker in cluster.workers}
        results = client.get_many("counts", [*KEYS, "nobody", 7])
        requested = {worker: batches(worker) - before[worker] for worker in before}
    assert [one.value for one in results[:-2]] == list(range(len(KEYS)))
    assert all(one.host == active[one.partition] for one in results[:-2])
    assert [type(one).__name__ for one in results[-2:]] == ["UnknownKey", "BadKey"]
    assert requested == {worker: int(worker in active.values()) for worker in cluster.workers}


@pytest.mark.parametrize(
    "bounds",
    [{}, {"page_size": 7}, {"reverse": True, "limit": 30}, {"prefix": "k1"}, {"start": "k2", "end": "k7"}],
)
def test_a_list_over_all_keys_is_that_of_a_router(served, connect, bounds):
    """Each partition's part is read from its active, and no worker holds all."""
    cluster, router, _ = served
    with connect(f"http://{next(iter(cluster.workers))}") as client, Client(f"http://{router}") as other:
        listed = client.entries("counts", max_record_lag=0, **bounds)
        assert list(listed) == list(other.entries("counts", **bounds))
        assert {source.partition: source.host for source in listed.partitions} == actives(cluster, router)
        assert (listed.complete, listed.lag.record_lag) == (True, 0)
        # Also where a key is unknown, it is in some partition.
        assert list(client.entries("elsewhere")) == []
        assert [(window.key, window.start_ms) for window in client.windows("hours")] == [("jfk", 1000)]


def test_a_list_over_all_keys_keeps_its_bounds(served, connect):
    cluster, _, _ = served
    with connect(f"http://{next(iter(cluster.workers))}") as client:
        with pytest.raises(LagExceedsTolerance) as refused:
            next(client.entries("counts", max_age_ms=0))
        assert len(refused.value.members["attempts"]) == 2
        session = client.session()
        assert len(list(session.entries("counts"))) == len(KEYS)
        token = session.position("counts")
        assert len(list(client.entries("counts", min_position=token))) == len(KEYS)


def batches(worker: str) -> int:
    lines = httpx.get(f"http://{worker}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("forebay_reads_total") and 'batch-get"' in line]
    return sum(int(float(line.split()[-1])) for line in counts)


def test_prefer_any_spreads_reads_within_the_bound(served, connect):
    cluster, router, _ = served
    with connect(*(f"http://{worker}" for worker in cluster.workers)) as client:
        one = client.get("counts", KEYS[0])
        holders = set(cluster.roles(router, "counts")[one.partition])
        found = {client.get("counts", KEYS[0], prefer="any", max_record_lag=0).host for _ in range(30)}
        assert found == holders
        assert len(found) == 2
        with pytest.raises(LagExceedsTolerance) as refused:
            client.get("counts", KEYS[0], prefer="any", max_age_ms=0)
        assert {attempt["host"] for attempt in refused.value.members["attempts"]} == holders


def test_local_socket_worker_is_preferred_after_a_fork(served, connect):
    """A worker is read through its socket on this machine, in a forked process too."""
    cluster, router, path = served
    local = next(iter(cluster.workers))
    held = {partition for partition, hosts in cluster.roles(router, "counts").items() if local in hosts}
    with connect(f"unix:{path}") as client:

        def read() -> dict[int, str]:
            answers = [client.get("counts", key, prefer="any") for key in KEYS]
            assert [one.value for one in answers] == list(range(len(KEYS)))
            return {one.partition: one.host for one in answers}

        # Where it holds the key, the worker on this machine is preferred.
        for hosts in (read(), {int(p): host for p, host in Child(read).result().items()}):
            assert {partition for partition, host in hosts.items() if host == local} == held


def test_where_a_key_is_must_be_known(served, connect):
    cluster, _, _ = served
    seed = f"http://{next(iter(cluster.workers))}"
    with connect(seed) as client:
        with pytest.raises(UnknownPartitioner, match="Ask a router"):
            client.get("elsewhere", "k")
        with pytest.raises(TypeError, match="make a client of routers"):
            next(client.changes("counts", prefix="k"))


@pytest.mark.parametrize("connect", ["blocking"], indirect=True)
def test_reads_go_on_when_a_worker_dies_and_follow_the_map(tmp_path, connect):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {key.encode(): b"%d" % number for number, key in enumerate(KEYS)})
        cluster.start_workers(3)
        router = cluster.start_router()
        cluster.wait_settled(router)
        with connect(*(f"http://{worker}" for worker in cluster.workers)) as client:
            dying = client.get("counts", KEYS[0]).host
            with client.changes("counts", KEYS[0]) as changes:
                assert next(changes).host == dying
                cluster.kill(dying, signal.SIGKILL)
                answers = [client.get("counts", KEYS[0]), *client.get_many("counts", KEYS)]
                assert [one.value for one in answers] == [0, *range(len(KEYS))]
                assert dying not in {one.host for one in answers}
                listed = client.entries("counts")
                assert [entry.key for entry in listed] == sorted(KEYS)
                assert dying not in {source.host for source in listed.partitions}
                cluster.put("counts", {KEYS[0].encode(): b"-1"})
                assert any(isinstance(one, Answer) and one.value == -1 and one.host != dying for one in changes)

            def served_by_new_actives() -> bool:
                found = client.get_many("counts", KEYS)
                return all(isinstance(one, Answer) and one.role == "active" for one in found)

            wait_until(served_by_new_actives, "reads from the new actives")
            left = [worker for worker in cluster.workers if worker != dying]
            added = cluster.start_worker()
            wait_until(
                lambda: added in {client.get("counts", key).host for key in KEYS}, "reads from a new worker"
            )
            for worker in [*left, added]:
                cluster.kill(worker, signal.SIGKILL)
            with pytest.raises(NoReplica, match=r"partition \d of 'counts'"):
                client.get("counts", KEYS[0], timeout_ms=400)
