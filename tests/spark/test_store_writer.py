"""Heartbeats of all that a run of a query writes, in a real log."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import BatchConflict, SinkError
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay.unproven import UnprovenRange
from forebay_changelog import Heartbeat
from forebay_changelog.sqlite.batches import append_batch
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.log_file import WriteRefused

pytestmark = pytest.mark.spark

STORES = [{"name": "first"}, {"name": "second"}]
TOPOLOGY = {"application_id": "t", "subtopology": [{"name": "all", "partitions": 1, "store": STORES}]}


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path)
    for spec in parse_topology(TOPOLOGY).stores.values():
        changelog.ensure(spec)
    return changelog


@pytest.fixture
def run(changelog: SqliteChangelog) -> Any:
    """A run of a query that writes both stores."""
    from forebay_spark.store_writer import QueryRun, SinkLog, StoreWriter

    log, run = SinkLog(changelog, ()), QueryRun("q", "r")
    for spec in parse_topology(TOPOLOGY).stores.values():
        writer = StoreWriter(log, spec, "w")
        run.writers[writer.output] = writer
    return run


def as_ofs(changelog: SqliteChangelog, store: str) -> list[int | None]:
    consumer = changelog.consumer()
    consumer.assign(TopicPartition(f"t-{store}-changelog", 0), 0)
    found = [json.loads(record[2])["as_of_ms"] for batch in consumer.poll(100) for record in batch.records]
    consumer.close()
    return found


def test_store_lacking_a_batch_gets_older_heartbeats_only(changelog, run):
    """Heartbeats of later batches are written again once the store has the batch."""
    from forebay_spark.store_writer import beat_run

    first = next(iter(run.writers))
    run.failed[first] = 3
    for as_of_ms, batch_id in ((1_000, 2), (2_000, 3), (3_000, 4), (4_000, -1)):
        beat_run(run, as_of_ms, batch_id)
    assert as_ofs(changelog, "first") == [1_000]
    assert as_ofs(changelog, "second") == [1_000, 2_000, 3_000, 4_000]
    del run.failed[first]
    beat_run(run, 5_000, -1)
    assert as_ofs(changelog, "first") == [1_000, 5_000]


@pytest.mark.parametrize(("limit_ms", "expected"), [(None, 2_000), (1_500, 1_500), (-1, None)])
def test_available_now_heartbeat_is_no_newer_than_its_start(changelog, run, limit_ms, expected):
    """A query that reads its sources' latest offsets once, at its start, is no newer than that."""
    from forebay_spark.store_writer import beat_run

    run.as_of_limit_ms = limit_ms
    beat_run(run, 2_000, 0)
    assert as_ofs(changelog, "first") == [expected]


def test_idle_run_that_holds_records_back_claims_nothing_newer(changelog, run):
    """Records may wait at its source for up to `maxTriggerDelay`. So it is after a batch that left a backlog."""
    from forebay_spark.store_writer import beat_run

    run.holds_records_back = True
    for as_of_ms, batch_id in ((1_000, 0), (2_000, -1), (3_000, 1), (4_000, -1), (None, 2)):
        beat_run(run, as_of_ms, batch_id)
    assert as_ofs(changelog, "first") == [1_000, 1_000, 3_000, 3_000, 3_000]


def test_partition_lost_under_a_query_refuses_it_for_good(tmp_path):
    """Nothing of the query is written there until its operator consents."""
    from forebay_spark.store_writer import SinkLog, StoreWriter

    stores = {"application_id": "t", "subtopology": [{"name": "all", "partitions": 2, "store": STORES[:1]}]}
    (spec,) = parse_topology(stores).stores.values()
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure(spec)
    writer = StoreWriter(SinkLog(changelog, ()), spec, "w")
    writer.beat("q", None, 0)
    noted = writer.identities("q")
    path = changelog.path(TopicPartition(spec.topic, 1))
    for part in tmp_path.glob(f"{spec.topic}/1.db*"):
        part.unlink()
    SqliteChangelog(tmp_path).ensure(spec)
    names = {"writer": "w", "query_id": "q"}
    with pytest.raises(SinkError, match="partition 1 of the log 't-first-changelog' was lost and recreated while"):
        writer.check_continuity("q", continued=True)
    # Where it happens between the check and the write.
    with pytest.raises(BatchConflict, match=r"1\.db was lost and recreated"):
        changelog.append_heartbeat(spec.topic, **names, value=b"{}", identities=noted)
    with pytest.raises(WriteRefused, match=r"1\.db was lost and recreated"):
        append_batch(path, [(b"a", b"1", 0)], **names, batch_id=1, write_name="w", identity=noted[1])

    def started_again(begins_here: bool = False) -> StoreWriter:
        again = StoreWriter(SinkLog(SqliteChangelog(tmp_path), ()), spec, "w", begins_here)
        again.check_continuity("q", continued=True)
        return again

    with pytest.raises(SinkError, match="has nothing of it under the writer 'w'"):
        started_again()
    started_again(begins_here=True).beat("q", None, 1)
    started_again().beat("q", None, 1)


def test_reset_log_does_not_stop_other_stores_heartbeats(changelog, run):
    from forebay_spark.store_writer import beat_run

    beat_run(run, 1_000, 0)
    changelog.reset(parse_topology(TOPOLOGY).stores["first"])
    with pytest.raises(SinkError, match="first: the log 't-first-changelog' was reset or replaced while query q"):
        beat_run(run, 2_000, 1)
    assert (as_ofs(changelog, "first"), as_ofs(changelog, "second")) == ([], [1_000, 2_000])


def test_sink_keeps_what_a_copy_of_its_checkpoint_left_unproven(tmp_path):
    """Another query begins with its source, and lacks nothing."""
    from forebay_spark.store_writer import SinkLog, StoreWriter

    store = {"name": "first", "kind": "window", "window_size_ms": 1_000, "retention_ms": 10_000, "spark_state": {}}
    subtopology = {"name": "all", "partitions": 1, "store": [store]}
    (spec,) = parse_topology({"application_id": "t", "subtopology": [subtopology]}).stores.values()
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure(spec)
    gap = (UnprovenRange(None, 5_000),)
    copied = Heartbeat(None, "q/copy", 3, unproven=gap).value()
    changelog.append_heartbeat(spec.topic, writer="w", query_id="q/copy", value=copied)

    def unproven_after(query_id: str) -> object:
        StoreWriter(SinkLog(changelog, ()), spec, "w").beat(query_id, None, 4)
        last = changelog.last_heartbeat(spec.topic, "w")
        return last is not None and last.unproven

    assert (unproven_after("q"), unproven_after("q"), unproven_after("other")) == (gap, gap, ())
