"""``forebay spark follow`` beside a query and a worker: real processes, killed and stopped."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.command_process import CommandProcess
from tests.support.commands import forebay
from tests.support.object_store import KEY_ID, UploadedQuery
from tests.support.running_query import RunningQuery, content, records

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "tapped"
partitions = 3

[[subtopology.store]]
name = "tapped"

[subtopology.store.spark_state]
fields = [{ name = "count", position = 0, function = "count" }, { name = "sum", position = 1, function = "sum" }]
"""
NAME = "aggregation-changelog"


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def tapped_cluster(request, tmp_path) -> Iterator[Cluster]:
    kafka = request.getfixturevalue("kafka_url") if request.param == "kafka" else None
    with running_cluster(tmp_path, topology_text=TOPOLOGY, kafka=kafka) as cluster:
        yield cluster


@contextlib.contextmanager
def running_tap(
    cluster: Cluster,
    checkpoint: Path | str,
    log: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[CommandProcess]:
    arguments = ["spark", "follow", "--topology", cluster.topology_path, "--changelog", cluster.changelog.url]
    tap = CommandProcess([*map(str, arguments), "--checkpoint", str(checkpoint), *options], log, environment or {})
    try:
        yield tap
    finally:
        tap.kill()
        tap.wait(15)


def text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def expected(written: Any, batch: int) -> dict[str, Any]:
    states = {json.loads(key)[0]: value for key, value in written.expected(NAME)[batch].items()}
    return {json.dumps(key): {"count": value[0], "sum": value[1]} for key, value in states.items() if key}


def test_a_tap_that_is_killed_goes_on_and_its_store_is_read(spark_4_0, tapped_cluster, tmp_path):
    cluster, spec = tapped_cluster, tapped_cluster.topology.stores["tapped"]
    query = RunningQuery(spark_4_0.path(NAME), tmp_path / "checkpoint")
    log, url = tmp_path / "tap.log", cluster.start_worker()
    for batch in query.batches:
        with running_tap(cluster, query.path, log):
            query.end(batch)

            def is_followed(batch: int = batch) -> bool:
                return content(cluster.changelog, spec) == expected(spark_4_0, batch)

            wait_until(is_followed, f"batch {batch}")
            if batch == 0:
                wait_until(lambda: "has the state of batch 0" in text(log), "the first copy")
            # Killed after each batch, at whatever it does then.
    for key, value in expected(spark_4_0, query.batches[-1]).items():

        def is_served(key: str = key, value: Any = value) -> bool:
            answer = httpx.get(f"http://{url}/v1/stores/tapped/keys/{json.loads(key)}")
            return answer.status_code == 200 and answer.json()["value"] == value

        wait_until(is_served, key)
    assert httpx.get(f"http://{url}/v1/stores/tapped/keys/nobody").status_code == 404
    # It was copied once, and followed from there on.
    assert text(log).count("is copied to its log") == 1


def test_a_tap_waits_for_its_query_and_ends_in_order(spark_4_0, tapped_cluster, tmp_path):
    cluster, spec = tapped_cluster, tapped_cluster.topology.stores["tapped"]
    query = RunningQuery(spark_4_0.path(NAME), tmp_path / "later")
    query.path.rename(tmp_path / "hidden")
    with running_tap(cluster, query.path, tmp_path / "tap.log") as tap:
        wait_until(lambda: "waiting for the checkpoint" in text(tmp_path / "tap.log"), "the tap waits")
        (tmp_path / "hidden").rename(query.path)
        query.end(0)
        wait_until(lambda: content(cluster.changelog, spec) == expected(spark_4_0, 0), "the first batch")
        tap.send_signal(signal.SIGTERM)
        assert tap.wait(15) == 0


@pytest.mark.kafka
def test_a_second_tap_of_a_store_takes_the_place_of_the_first(spark_4_0, kafka_url, tmp_path):
    """The first is fenced by the brokers at its next batch, and ends with a sentence that names the store."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY, kafka=kafka_url) as cluster:
        spec = cluster.topology.stores["tapped"]
        query = RunningQuery(spark_4_0.path(NAME), tmp_path / "checkpoint")
        query.end(0)
        first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
        with running_tap(cluster, query.path, first_log) as first:
            wait_until(lambda: content(cluster.changelog, spec) == expected(spark_4_0, 0), "the first tap")
            with running_tap(cluster, query.path, second_log) as second:
                wait_until(lambda: "goes on after batch 0" in text(second_log), "the second tap")
                copied = len(records(cluster.changelog, spec))
                query.end(1)

                def both_have_written() -> bool:
                    """Whoever was first was fenced by the other, and learns so at its next write."""
                    changed = len(expected(spark_4_0, 1)) - 1
                    return len(records(cluster.changelog, spec)) >= copied + 2 * changed

                wait_until(lambda: first.poll() is not None or both_have_written(), "both write a batch")
                query.end(2)
                wait_until(lambda: first.poll() is not None or second.poll() is not None, "one ends")
                fenced = first_log if first.poll() is not None else second_log
                assert "Two queries write as 'tapped'" in text(fenced)
                wait_until(lambda: content(cluster.changelog, spec) == expected(spark_4_0, 2), "the other goes on")


def test_a_checkpoint_in_a_bucket_is_followed(spark_4_0, object_store, tmp_path):
    """With credentials from the environment. Batches are found by their names, and directories are listed for the
    first copy and again after a loss."""
    query = UploadedQuery(object_store, spark_4_0.path(NAME), "checkpoints/orders")
    log = tmp_path / "tap.log"
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        spec = cluster.topology.stores["tapped"]

        def is_followed(batch: int) -> bool:
            return content(cluster.changelog, spec) == expected(spark_4_0, batch)

        with running_tap(cluster, query.url, log, environment=object_store.environment):
            wait_until(lambda: "no batch that has ended" in text(log), "the tap waits")
            query.end(0)
            wait_until(lambda: "has the state of batch 0" in text(log), "the first copy")
            requested = object_store.requests(query.prefix)
            assert ("LIST", f"{query.prefix}/commits/") in {(operation, key) for operation, key, _ in requested}
            assert {key_id for _, _, key_id in requested} == {KEY_ID}
            query.end(1)
            wait_until(lambda: is_followed(1), "the next batch")
            assert "LIST" not in {request.operation for request in object_store.requests(query.prefix)}
            query.lose("state/0/0/3.changelog")
            query.end(3)
            query.end(2)
            wait_until(lambda: is_followed(3), "a copy of what was not lost")
            assert "LIST" in {request.operation for request in object_store.requests(query.prefix)}


def test_bootstrap_copies_the_state_once(spark_4_0, tapped_cluster, tmp_path):
    cluster, spec = tapped_cluster, tapped_cluster.topology.stores["tapped"]
    query = RunningQuery(spark_4_0.path(NAME), tmp_path / "checkpoint")
    last = query.end_all()
    command = ["spark", "bootstrap", "--topology", cluster.topology_path, "--changelog", cluster.changelog.url]
    done = forebay(*command, "--checkpoint", query.path, "--store", "tapped")
    assert (done.returncode, done.stdout) == (0, f"the logs have the state of batch {last}\n"), done.stderr
    assert content(cluster.changelog, spec) == expected(spark_4_0, last)
    refused = forebay(*command, "--checkpoint", query.path, "--store", "other")
    assert refused.returncode == 2
    assert "no such store" in refused.stderr
    assert "tapped" in refused.stderr


WINDOWS = """
application_id = "test"

[[subtopology]]
name = "tapped"
partitions = 3

[[subtopology.store]]
name = "tapped"
kind = "window"
window_size_ms = 60_000
retention_ms = 86_400_000

[subtopology.store.spark_state]
fields = [{ name = "count", position = 0, function = "count" }, { name = "avg", position = 1, function = "avg" }]
"""
GAP = {"from_ms": 1704067202000, "to_ms": 1704067395000}
"""From the watermark of the batch after which the tap goes away to that of the last."""


def test_windows_that_ended_while_the_tap_was_away_are_unproven(spark_4_0, tmp_path):
    """Router and worker say so with a list, among what is wrong, and on a terminal. A rebuilt replica knows it."""
    with running_cluster(tmp_path, topology_text=WINDOWS) as cluster:
        query, log = (
            RunningQuery(spark_4_0.path("windows-changelog"), tmp_path / "checkpoint"),
            tmp_path / "tap.log",
        )
        worker = cluster.start_worker()
        with running_tap(cluster, query.path, log):
            for batch in (0, 1):
                query.end(batch)
                wait_until(lambda batch=batch: followed_to(cluster, batch), f"batch {batch}")
        query.end_all()
        for batch in range(query.batches[-1]):
            (query.path / "commits" / str(batch)).unlink()
            (query.path / "offsets" / str(batch)).unlink()

        def windows(url: str, bounds: str = "") -> dict[str, Any]:
            return httpx.get(f"http://{url}/v1/stores/tapped/windows{bounds}").json()

        assert windows(worker)["complete"] is True
        with running_tap(cluster, query.path, log):
            wait_until(lambda: followed_to(cluster, query.batches[-1]), "the copy")
        cluster.kill(worker)
        rebuilt = cluster.start_worker()
        router = cluster.start_router()
        for url in (rebuilt, router):
            wait_until(
                lambda url=url: windows(url).get("unproven") == [GAP], f"the gap in {windows(url)} of {url}"
            )
            page = windows(url)
            assert page["complete"] is False
            assert {item["start_ms"] for item in page["windows"]} == {1704067380000}
            assert windows(url, f"?from={GAP['to_ms']}")["complete"] is True
            assert windows(url, f"?from={GAP['to_ms']}").get("unproven") is None

            def finding(url: str = url) -> list[dict[str, Any]]:
                found = httpx.get(f"http://{url}/v1/health").json()["findings"]
                return [one for one in found if one["kind"] == "entries-unproven"]

            wait_until(finding, f"a finding of {url}")
            assert "from 2024-01-01T00:00:02.000Z until 2024-01-01T00:03:15.000Z" in finding()[0]["detail"]
        checked = forebay("status", "--url", f"http://{router}", "--check")
        assert "ended from 2024-01-01T00:00:02.000Z until" in " ".join(checked.stdout.split())


def followed_to(cluster: Cluster, batch: int) -> bool:
    """Whether each partition says so: a tap may be killed between two of them."""
    last = cluster.changelog.last_heartbeats(cluster.topology.stores["tapped"].topic, "tapped")
    return all(beat is not None and beat.batch_id == batch for beat in last)


def test_writer_that_is_silent_is_named_until_it_writes_again(spark_4_0, tmp_path, monkeypatch):
    """A tap without a source, which states no age, too. Nothing else tells that it has stopped."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        spec = cluster.topology.stores["tapped"]
        query, worker = RunningQuery(spark_4_0.path(NAME), tmp_path / "checkpoint"), cluster.start_worker()
        router = cluster.start_router()
        query.end(0)

        def findings(url: str) -> list[dict[str, Any]]:
            found = httpx.get(f"http://{url}/v1/health").json()["findings"]
            return [one for one in found if one["kind"] == "writer-silent"]

        with running_tap(cluster, query.path, tmp_path / "tap.log"):
            wait_until(lambda: followed_to(cluster, 0), "the first batch")
        last = cluster.changelog.last_heartbeat(spec.topic, "tapped")
        stopped_s = time.time() - 300
        with monkeypatch.context() as earlier:
            earlier.setattr(time, "time", lambda: stopped_s)
            cluster.changelog.append_heartbeat(
                spec.topic, writer="tapped", query_id=last.query_id, value=last.value()
            )
        since = datetime.fromtimestamp(stopped_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for url in (worker, router):
            wait_until(lambda url=url: findings(url), f"a finding of {url}")
            assert f"no heartbeat came from the writer 'tapped' since {since}" in findings(url)[0]["detail"]
        with running_tap(cluster, query.path, tmp_path / "tap.log"):
            # It goes on where it was, and has no batch to write.
            for url in (worker, router):
                wait_until(lambda url=url: not findings(url), f"an end of the finding of {url}")
