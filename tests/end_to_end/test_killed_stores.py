"""Workers killed in the middle of a log: what their stores have afterwards, compared with the log's fold."""

import os
import random
import threading

import httpx
import pytest

from forebay.task_ids import TopicPartition
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.installed import install_file_store

TOPOLOGY = """
application_id = "killed"
[[subtopology]]
name = "s"
partitions = 2
[[subtopology.store]]
name = "filed"
supplier = "file"
[[subtopology.store]]
name = "remembered"
supplier = "memory"
[[subtopology.store]]
name = "kept"
"""
STORES = ("filed", "remembered", "kept")
KILLS = 2
KEYS = 50
BATCHES_BEFORE_A_KILL = 20


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    packages = tmp_path / "packages"
    packages.mkdir()
    install_file_store(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    monkeypatch.syspath_prepend(packages)
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        yield cluster


def test_killed_workers_have_the_fold_of_the_log(cluster):
    """Checkpoints are written all the while, by the file alone, which continues from one of them."""
    options = ("--statestore-checkpoint-interval-ms", "20", "--num-standby-replicas", "0")
    rng, fold = random.Random(7), {store: {} for store in STORES}
    worker = cluster.start_worker(None, *options)
    for _ in range(KILLS):
        written = threading.Thread(target=write, args=(cluster, rng, fold))
        before = checkpoint(cluster)
        written.start()
        wait_until(lambda before=before: checkpoint(cluster) != before, "a checkpoint in the middle of the log")
        cluster.kill(worker)
        written.join()
        cluster.start_worker(worker, *options)
        cluster.wait_settled(worker, replicas=1)
        assert {store: content(worker, store) for store in STORES} == fold
    assert applied(worker, "filed") < applied(worker, "remembered") == end(cluster, "remembered")


def write(cluster: Cluster, rng: random.Random, fold: dict[str, dict[str, int]]) -> None:
    """Some keys at a time, each deleted now and then."""
    for _ in range(BATCHES_BEFORE_A_KILL):
        for store in STORES:
            keys = [f"k{rng.randrange(KEYS)}" for _ in range(5)]
            values = {key: None if rng.random() < 0.3 else rng.randrange(1000) for key in keys}
            cluster.put(store, {key.encode(): None if one is None else b"%d" % one for key, one in values.items()})
            merged = {**fold[store], **values}
            fold[store] = {key: value for key, value in merged.items() if value is not None}


def checkpoint(cluster: Cluster) -> list[str]:
    """The offsets of all tasks that are on the disk."""
    return [path.read_text() for path in sorted(cluster.directory.glob("state-0/killed/*/.checkpoint"))]


def content(worker: str, store: str) -> dict[str, int]:
    answer = httpx.get(f"http://{worker}/v1/stores/{store}/entries?limit=1000")
    assert answer.status_code == 200, answer.text
    return {entry["key"]: entry["value"] for entry in answer.json()["entries"]}


def applied(worker: str, store: str) -> float:
    """Records of all partitions since the worker's start."""
    lines = httpx.get(f"http://{worker}/metrics").text.splitlines()
    name, label = "forebay_records_applied_total", f'store="{store}"'
    return sum(float(line.split()[1]) for line in lines if line.startswith(name) and label in line)


def end(cluster: Cluster, store: str) -> int:
    spec = cluster.topology.stores[store]
    tps = [TopicPartition(spec.topic, partition) for partition in range(spec.partitions)]
    return sum(cluster.changelog.end_offsets(tps).values())
