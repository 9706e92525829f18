"""A log that lost its newest records while a worker was away, and has others in their place now."""

import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from examples.broker import Broker
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.changelog import KafkaChangelog
from tests.conftest import need_kafka
from tests.support.cluster import ONE_PARTITION, Cluster, running_cluster, wait_until
from tests.support.kafka_log_files import cut_log
from tests.support.logs import KafkaLog

KEPT = {b"k%d" % n: b"1" for n in range(10)}
LOST = {b"lost%d" % n: b"1" for n in range(5)} | {b"k0": b"2"}
NEW = {b"new%d" % n: b"1" for n in range(20)}

Cut = Callable[[Cluster, dict[int, int]], None]


def on_sqlite(directory: Path) -> Iterator[tuple[Cluster, Callable[[], None], Cut]]:
    with running_cluster(directory, topology_text=ONE_PARTITION) as cluster:
        path = Path(cluster.changelog.path(TopicPartition(cluster.topology.stores["counts"].topic, 0)))
        copy = directory / "copy.db"

        def keep() -> None:
            with closing(sqlite3.connect(path)) as log, closing(sqlite3.connect(copy)) as to:
                log.backup(to)

        def cut(*_: object) -> None:
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            shutil.copy(copy, path)

        yield cluster, keep, cut


def on_kafka(directory: Path) -> Iterator[tuple[Cluster, Callable[[], None], Cut]]:
    need_kafka()
    with (
        Broker(directory / "kafka") as broker,
        running_cluster(directory, kafka=broker.url, topology_text=ONE_PARTITION) as cluster,
    ):

        def cut(cluster: Cluster, ends: dict[int, int]) -> None:
            broker.stop()
            cut_log(directory / "kafka", TopicPartition(cluster.topology.stores["counts"].topic, 0), ends[0])
            broker.start()
            # What the producers know of the log's end is of the log as it was.
            cluster.log = KafkaLog(KafkaChangelog(broker.url))

        yield cluster, lambda: None, cut


@pytest.fixture(params=[on_sqlite, pytest.param(on_kafka, marks=pytest.mark.kafka)], ids=["sqlite", "kafka"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, Callable[[], None], Cut]]:
    yield from request.param(tmp_path)


def test_what_is_left_of_a_log_that_was_cut(prepared):
    cluster, keep, cut = prepared
    ends = cluster.put("counts", KEPT)
    keep()
    worker = cluster.start_worker()

    def read(key: str, **bounds: object) -> httpx.Response:
        return httpx.get(f"http://{worker}/v1/stores/counts/keys/{key}", params=bounds)

    cluster.put("counts", LOST)
    wait_until(lambda: read("lost1", max_record_lag=0).status_code == 200, "the records")
    position = read("lost1").json()["position"]
    cluster.kill(worker, signal.SIGTERM)
    cut(cluster, ends)
    cluster.put("counts", NEW)
    # So slow that what is served meanwhile can be seen.
    cluster.start_worker(worker, "--apply-records-per-second", "4", ready=False)
    cluster.wait_alive(worker)
    wait_until(lambda: "lost records" in cluster.logs(), "the discovery")
    unknown = dict.fromkeys(("record_lag", "time_lag_ms", "age_ms"))
    wait_until(lambda: read("k0").json().get("lag") == unknown, "the store as it was")
    assert read("k0").json()["value"] == 2
    refused = read("k0", max_record_lag=1_000_000)
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:forebay:problem:log-diverged")
    assert read("new1").status_code == 503
    wait_until(lambda: "log-diverged" in str(cluster.get(worker, "/v1/health")["findings"]), "the finding")
    wait_until(lambda: read("new1", max_record_lag=0).status_code == 200, "the rebuild")
    assert read("lost1").status_code == 404
    assert read("k0").json()["value"] == 1
    gone = read("new1", min_position=position)
    assert (gone.status_code, gone.json()["type"]) == (409, "urn:forebay:problem:position-of-another-log")
    assert read("new1", min_position=read("new2").json()["position"]).status_code == 200
