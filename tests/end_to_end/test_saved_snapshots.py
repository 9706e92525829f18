"""Snapshots in a directory or an object store, from which a whole cluster begins."""

import contextlib
import itertools
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.end_to_end.test_snapshots import TOPOLOGY, log_of, put_many, read, wait_level
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.kafka_topics import configure
from tests.support.object_store import BUCKET, ObjectStore

BEGAN = "goes on from a copy of the snapshot of"
OFTEN = ("--snapshot-interval-ms", "1000")
EXTERNAL = TOPOLOGY + "external = true\naccept_uncompacted = true\n"


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def kafka(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else request.getfixturevalue("kafka_url")


def options_of(directory: Path) -> tuple[str, ...]:
    return ("--snapshots", f"file://{directory}", *OFTEN)


def manifests(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/counts/0/*.json"))


def only_in_newest(directory: Path) -> list[Path]:
    """The files of a repository that only the newest snapshot has."""
    *_, before, newest = [None, None, *manifests(directory)]
    if before is None or newest is None:
        return []
    others, own = (set(re.findall(r'"sha256": "(\w+)"', one.read_text())) for one in (before, newest))
    return [newest.parent / "files" / name for name in sorted(own - others)]


def spoil(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(content[-1:], b"?"))


def saved(cluster: Cluster, address: str) -> list[tuple[int, int]]:
    """The offset and the bytes written of each snapshot that a worker saved."""
    found = re.findall(r"snapshot saved at offset (\d+): (\d+) bytes", log_of(cluster, address))
    return [(int(offset), int(size)) for offset, size in found]


def wait_saved(cluster: Cluster, address: str) -> None:
    """Until one was saved that began from now on."""
    count = len(saved(cluster, address))
    wait_until(lambda: len(saved(cluster, address)) > count + 1, "a snapshot", 60)


@contextlib.contextmanager
def saving(
    directory: Path, options: tuple[str, ...], topology: str = TOPOLOGY, kafka: str | None = None
) -> Iterator[tuple[Cluster, str]]:
    """A worker that has many records and has saved them."""
    with running_cluster(directory, topology_text=topology, kafka=kafka, worker_options=options) as cluster:
        put_many(cluster)
        worker = cluster.start_worker()
        wait_level(worker)
        wait_saved(cluster, worker)
        yield cluster, worker


def begin_anew(cluster: Cluster, address: str, *options: str) -> None:
    """Stop a worker and start it without its state; its process is another one then, and so needs the address."""
    cluster.kill(address, signal.SIGTERM)
    shutil.rmtree(cluster.directory / "state-0")
    (cluster.directory / "state-0.log").unlink()
    cluster.start_worker(address, *options)
    wait_level(address)


def test_a_cluster_that_lost_its_state_begins_with_a_snapshot(tmp_path, kafka):
    directory = tmp_path / "kept"
    with saving(tmp_path, options_of(directory), kafka=kafka) as (cluster, worker):
        cluster.put("counts", {b"new": b"1", b"k000002": None})
        wait_level_of(worker, "new")
        wait_saved(cluster, worker)
        (_, whole), *_, (_, change) = saved(cluster, worker)
        assert change < whole / 10
        assert len(manifests(directory)) <= 3
        cluster.put("counts", {b"newer": b"1"})
        begin_anew(cluster, worker)
        assert BEGAN in log_of(cluster, worker)
        assert "restored at" not in log_of(cluster, worker)
        expected = {"k000000": 404, "k000001": 200, "k000002": 404, "new": 200, "newer": 200, "nobody": 404}
        assert {key: read(worker, key, max_record_lag=0).status_code for key in expected} == expected
        wait_until(lambda: newest_snapshot_epoch_s(worker), "the metric")
        assert 0 <= time.time() - newest_snapshot_epoch_s(worker) < 300


def newest_snapshot_epoch_s(worker: str) -> float:
    """As the worker's metrics have it, 0 if they have none."""
    metrics = httpx.get(f"http://{worker}/metrics").text
    found = re.search(r'forebay_snapshot_timestamp_seconds{.*store="counts".*} (.*)', metrics)
    return 0.0 if found is None else float(found[1])


def wait_level_of(address: str, key: str) -> None:
    wait_until(lambda: read(address, key, max_record_lag=0).status_code == 200, f"{key!r} in a level store", 60)


def test_an_object_store_serves_as_well(tmp_path, object_store: ObjectStore, monkeypatch):
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    options = ("--snapshots", f"s3://{BUCKET}/kept", *OFTEN)
    with saving(tmp_path, options) as (cluster, worker):
        begin_anew(cluster, worker)
        assert f"{BEGAN} " in log_of(cluster, worker)
        assert f"at s3://{BUCKET}/kept" in log_of(cluster, worker)
        assert read(worker, "k000000", max_record_lag=0).status_code == 404


@pytest.mark.kafka
def test_what_the_log_no_longer_has_comes_back(tmp_path, kafka_url):
    """Of a topic that deletes by time, workers hold more than can be read again."""
    with saving(tmp_path, options_of(tmp_path / "kept"), EXTERNAL, kafka_url) as (cluster, worker):
        cluster.put("counts", {b"new": b"1"})
        configure(cluster, "counts", cleanup_policy="delete", retention_ms="-1")
        admin = AdminClient(cluster.changelog.kafka.librdkafka())
        deleted = TopicPartition(cluster.topology.stores["counts"].topic, 0, saved(cluster, worker)[-1][0])
        admin.delete_records([deleted])[deleted].result(10)
        begin_anew(cluster, worker)
        expected = {"k000000": 404, "k000001": 200, "new": 200}
        assert {key: read(worker, key, max_record_lag=0).status_code for key in expected} == expected


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path):
    directory = tmp_path / "kept"
    options = (*options_of(directory), "--snapshot-interval-ms", "3000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options) as cluster:
        put_many(cluster)
        worker = cluster.start_worker()
        wait_level(worker)
        numbers = itertools.count()

        def differ() -> bool:
            cluster.put("counts", {b"n%d" % next(numbers): b"1"})
            return bool(only_in_newest(directory))

        wait_until(differ, "a snapshot with a file of its own", 60)
        cluster.kill(worker, signal.SIGTERM)
        spoilt = only_in_newest(directory)[0]
        spoil(spoilt)
        begin_anew(cluster, worker)
        assert "is not as it was saved" in log_of(cluster, worker)
        assert BEGAN in log_of(cluster, worker)
        cluster.kill(worker, signal.SIGTERM)
        assert not spoilt.exists()
        for file in directory.glob("*/counts/0/files/*"):
            spoil(file)
        begin_anew(cluster, worker, "--snapshot-interval-ms", "1000000")
        assert BEGAN not in log_of(cluster, worker)
        assert read(worker, "k000000", max_record_lag=0).status_code == 404


def test_a_place_that_refuses_costs_no_read_and_is_a_finding(tmp_path):
    directory = tmp_path / "kept"
    directory.write_text("no directory")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options_of(directory)) as cluster:
        put_many(cluster)
        worker = cluster.start_worker()
        wait_level(worker)

        def found() -> list[str]:
            return [one["kind"] for one in httpx.get(f"http://{worker}/v1/health").json()["findings"]]

        wait_until(lambda: "snapshot-failed" in found(), "the finding")
        directory.unlink()
        wait_until(lambda: "snapshot-failed" not in found(), "its end")
        assert manifests(directory)


def test_a_url_that_cannot_be_opened_ends_the_start_in_words(tmp_path):
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        worker = cluster.start_worker(None, "--snapshots", "ftp://host/kept", ready=False)
        assert cluster.workers[worker].wait(30) == 2
        assert "ftp://host/kept is no URL of a file system: use file://, s3://" in log_of(cluster, worker)
