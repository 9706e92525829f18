"""The sink on a real Spark: what it writes, what it refuses, and that repeats change nothing."""

import functools
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SinkError
from forebay.partitioning import Murmur2Partitioner
from forebay.position import decode_position
from forebay.record_orders import split_order, with_order
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog import Record
from forebay_changelog.record_headers import heartbeat_key
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.cluster import wait_until
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

COUNT = {"fields": [{"name": "n", "position": 0, "function": "count"}]}
TOPOLOGY = {
    "application_id": "t",
    "subtopology": [
        {
            "name": "all",
            "partitions": 3,
            "store": [
                {"name": "latest"},
                {
                    "name": "counted",
                    "spark_state": {"fields": [{"name": "n", "position": 0, "function": "count"}]},
                },
                {"name": "customers", "latest_by": "n"},
                {"name": "by_number", "key": "int32"},
                {"name": "by_long", "key": "int64"},
                {"name": "by_pair", "key": "json"},
                {"name": "hours", "kind": "window", "window_size_ms": 3_600_000, "retention_ms": 1_000_000_000},
                {"name": "visits", "kind": "session", "gap_ms": 60_000, "retention_ms": 1_000_000_000},
                {"name": "prices", "kind": "versioned", "history_retention_ms": 1_000_000_000},
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    from forebay.spark import Sink

    return Sink(parse_topology(TOPOLOGY), changelog=f"sqlite://{tmp_path}/log")


class Source:
    """A streaming source of JSON lines, one file a micro-batch."""

    def __init__(self, spark: Any, directory: Path, schema: str) -> None:
        self.directory = directory
        directory.mkdir()
        self.df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))
        self._files = 0

    def add(self, *rows: dict[str, Any]) -> None:
        draft = self.directory / f".{self._files}"
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(draft, (1_000_000 + self._files, 1_000_000 + self._files))
        draft.rename(self.directory / f"{self._files}.json")
        self._files += 1


def run(writer: Any, tmp_path: Path, name: str = "checkpoint") -> Any:
    query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
    query.awaitTermination(60)
    return query


def refusal(writer: Any, tmp_path: Path, name: str = "checkpoint") -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run(writer, tmp_path, name)
    return str(caught.value)


def log_of(sink: Any, store: str) -> dict[int, list[Record]]:
    """Every partition's records, heartbeats left out."""
    changelog: SqliteChangelog = sink._changelog
    spec = sink.topology.stores[store]
    consumer = changelog.consumer()
    for partition in range(spec.partitions):
        consumer.assign(TopicPartition(spec.topic, partition), 0)
    batches = list(consumer.poll(100_000))
    consumer.close()
    return {b.topic_partition.partition: [r for r in b.records if not r[4]] for b in batches}


def content(sink: Any, store: str) -> dict[bytes, Any]:
    folded: dict[bytes, Any] = {}
    for records in log_of(sink, store).values():
        for _, key, value, _, _ in records:
            folded[key] = None if value is None else json.loads(value)
    return {key: value for key, value in folded.items() if value is not None}


def test_updates_are_exact_and_in_their_partitions(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n bigint, x double, d decimal(20,2), t timestamp, b binary")
    source.add(
        {"k": "a", "n": 2**53 + 1, "x": 0.1, "d": "123456789012345678.90", "t": "2013-07-01T12:00:00.123456Z"},
        {"k": "é/", "n": None, "b": "aGk="},
    )
    run(sink.write(source.df, "latest", key="k", order_by="n"), tmp_path)
    assert content(sink, "latest") == {
        b"a": {
            "n": 2**53 + 1,
            "x": 0.1,
            "d": 123456789012345678.90,
            "t": "2013-07-01T12:00:00.123456Z",
            "b": None,
        },
        "é/".encode(): {"n": None, "x": None, "d": None, "t": None, "b": "aGk="},
    }
    for partition, records in log_of(sink, "latest").items():
        assert {Murmur2Partitioner().partition(record[1], 3) for record in records} <= {partition}


def test_latest_by_ignores_superseded_rows(spark, sink, tmp_path):
    """Replays and batches out of order bring nothing back, before or after compaction."""
    source = Source(spark, tmp_path / "in", "k string, n bigint, v int, gone boolean")
    snapshot = [{"k": key, "n": -5, "v": 0} for key in "abcd"]
    batches = [
        [{"k": "a", "n": 7, "v": 7}, {"k": "a", "n": 3, "v": 3}, {"k": "b", "n": 2**62, "gone": True}],
        snapshot,
        [{"k": "a", "n": 3, "v": 3}, {"k": "b", "n": 8, "v": 8}, {"k": "c", "n": 1, "gone": True}],
        # What a source delivers again, even within a batch.
        [{"k": "c", "n": 1, "gone": True}] * 2 + snapshot * 2,
        [{"k": "c", "n": 2, "v": 2}, {"k": "a", "n": 7, "v": 70}],
    ]
    for rows in batches:
        source.add(*rows)
    run(sink.write(source.df, "customers", key="k", value="v", delete="gone"), tmp_path)
    # Of equal orders the later one counts.
    expected = {b"a": {"v": 70}, b"c": {"v": 2}, b"d": {"v": 0}}
    assert latest(sink, "customers") == expected
    sink._changelog.compact(sink.topology.stores["customers"], CompactionLimits(0, 0))
    assert latest(sink, "customers") == expected


def latest(sink: Any, store: str) -> dict[bytes, Any]:
    """What a log with orders makes: of each key's records that of the highest order, of equals the last."""
    records = [record for records in log_of(sink, store).values() for record in records]
    found = {
        split_order(key)[0]: value for _, key, value, _, _ in sorted(records, key=lambda r: (r[1][-8:], r[0]))
    }
    return {key: json.loads(value) for key, value in found.items() if value is not None}


def test_latest_by_rejects_null_and_equal_orders(spark, sink, tmp_path):
    """Equal orders need a second one."""
    source = Source(spark, tmp_path / "in", "k string, n timestamp, v int, number decimal(20,0)")
    source.add({"k": "a", "v": 1}, {"k": "b", "n": "2026-01-01T00:00:00Z", "v": 1})
    message = refusal(sink.write(source.df, "customers", key="k", value="v"), tmp_path)
    assert "A row has a null order (column 'n', the store's latest_by)" in message
    dated = source.df.where("n is not null")
    source.add(*({"k": "b", "n": "2026-01-01T00:00:00.000001Z", "v": v} for v in (3, 2)))
    message = refusal(sink.write(dated, "customers", key="k", value="v"), tmp_path, "unordered")
    assert "more than one row for the key b'b' of 'customers' with the order 1767225600000001" in message
    run(sink.write(dated, "customers", key="k", value="v", order_by="v"), tmp_path, "ordered")
    assert latest(sink, "customers") == {b"b": {"v": 3}}
    for df, refused in (
        (source.df.drop("n"), "no column 'n'"),
        (source.df.withColumn("n", source.df.number), r"latest_by = 'n', but that column is decimal\(20,0\)"),
    ):
        with pytest.raises(SinkError, match=refused):
            sink.write(df, "customers", key="k")
    batch = spark.createDataFrame([("a", 1)], "k string, n long")
    with pytest.raises(SinkError, match="'customers' has latest_by: a snapshot cannot"):
        sink.fill(batch, "customers", key="k", name="all", snapshot=True)


def test_aggregates_update_and_deletes_are_tombstones(spark, sink, tmp_path):
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add(*({"k": f"k{i % 7}", "n": i} for i in range(100)))
    source.add({"k": "k1", "n": -1000})
    totals = source.df.groupBy("k").agg(F.sum("n").alias("total"), (F.min("n") < 0).alias("gone"))
    run(sink.write(totals, "latest", key="k", delete="gone"), tmp_path)
    expected = {f"k{k}".encode(): {"total": sum(i for i in range(100) if i % 7 == k)} for k in range(7) if k != 1}
    assert content(sink, "latest") == expected
    assert [r[1] for records in log_of(sink, "latest").values() for r in records if r[2] is None] == [b"k1"]


def test_numbers_and_pairs_as_keys(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "i int, l bigint, s string, v int")
    source.add({"i": -5, "l": -(2**40), "s": "x", "v": 1}, {"i": 7, "l": 2**40, "s": "ü\n", "v": 2})
    run(sink.write(source.df, "by_number", key="i", value=["v"]), tmp_path, "c1")
    run(sink.write(source.df, "by_long", key="l", value=["v"]), tmp_path, "c2")
    run(sink.write(source.df, "by_pair", key=["s", "i"], value=["v"]), tmp_path, "c3")
    assert set(content(sink, "by_number")) == {n.to_bytes(4, "big", signed=True) for n in (-5, 7)}
    assert set(content(sink, "by_long")) == {n.to_bytes(8, "big", signed=True) for n in (-(2**40), 2**40)}
    assert set(content(sink, "by_pair")) == {b'["x",-5]', '["ü\\n",7]'.encode()}


def test_windows_and_sessions_carry_their_times_in_the_key(spark, sink, tmp_path):
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", "k string, t timestamp")
    source.add({"k": "a", "t": "1970-01-01T01:30:00Z"}, {"k": "a", "t": "1970-01-01T00:30:10Z"})
    source.add({"k": "a", "t": "1970-01-02T00:00:00Z"})
    source.add({"k": "b", "t": "1970-01-03T00:00:00Z"})
    watermarked = source.df.withWatermark("t", "1 minute")
    hours = watermarked.groupBy(F.window("t", "1 hour"), "k").agg(F.count("*").alias("n"))
    run(sink.write(hours, "hours", key="k"), tmp_path, "c1")
    starts = {int.from_bytes(key[1:], "big", signed=True) for key in content(sink, "hours") if key[:1] == b"a"}
    assert starts == {0, 3_600_000, 86_400_000}
    longer = watermarked.groupBy(F.window("t", "2 hours", "1 hour"), "k").agg(F.count("*").alias("n"))
    message = refusal(sink.write(longer, "hours", key="k"), tmp_path, "longer")
    assert "hours: a window of 7200000 ms was written, but window_size_ms of the store is 3600000. Make" in message
    visits = watermarked.groupBy(F.session_window("t", "1 minute"), "k").agg(F.count("*").alias("n"))
    run(sink.write(visits, "visits", key="k"), tmp_path, "c2")
    ends_and_starts = {
        tuple(int.from_bytes(key[at : at + 8], "big", signed=True) for at in (1, 9))
        for key in content(sink, "visits")
    }
    assert (1_870_000, 1_810_000) in ends_and_starts


def test_versions_carry_their_valid_from_as_timestamp(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, at timestamp, price int, gone boolean")
    source.add(
        {"k": "tea", "at": "1970-01-01T00:00:02Z", "price": 2},
        {"k": "tea", "at": "1970-01-01T00:00:01Z", "price": 1},
    )
    source.add({"k": "tea", "at": "1970-01-01T00:00:03Z", "gone": True})
    with pytest.raises(SinkError, match="one timestamp column"):
        sink.write(source.df, "prices", key="k")
    write = sink.write(source.df, "prices", key="k", value=["price"], order_by="at", delete="gone")
    run(write, tmp_path)
    written = [(r[3], r[2]) for records in log_of(sink, "prices").values() for r in records]
    assert written == [(1000, b'{"price":1}'), (2000, b'{"price":2}'), (3000, None)]


def test_a_batch_that_is_repeated_leaves_the_same_log(spark, sink, tmp_path):
    import shutil

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add(*({"k": f"k{i}", "n": i} for i in range(200)))
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    before = log_of(sink, "latest")
    # Spark commits a batch after the sink returned; without that note it runs the batch again.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    assert log_of(sink, "latest") == before


def test_a_query_that_is_never_without_backlog_is_compacted_too(spark, sink, tmp_path, monkeypatch):
    # The file source never says what there is still to come.
    monkeypatch.setattr("forebay_changelog.due_compaction._INTERVAL_S", 0.0)
    monkeypatch.setattr("forebay_changelog.due_compaction._SHARE", 1.0)
    at_once = functools.partial(sink._changelog.compact, limits=CompactionLimits(0, 0))
    monkeypatch.setattr(sink._changelog, "compact", at_once)
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    for n in range(6):
        source.add({"k": "a", "n": n})
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    # The last batches may have come while one was under way.
    wait_until(lambda: sum(map(len, log_of(sink, "latest").values())) < 6, "compaction")
    assert content(sink, "latest") == {b"a": {"n": 5}}


def test_sinks_of_a_session_share_its_listener(spark, sink, tmp_path):
    from forebay.spark import Sink

    def listeners() -> int:
        return len(spark._jsparkSession.streams().listListeners())

    before = listeners()
    assert before >= 1
    for number in range(3):
        other = Sink(parse_topology(TOPOLOGY), changelog=sink._changelog.url)
        df = spark.createDataFrame([("a", number)], "k string, n int")
        other.fill(df, "latest", key="k", name=f"fill-{number}")
    source = Source(spark, tmp_path / "in", "k string, n int")
    other.write(source.df, "latest", key="k")
    assert listeners() == before


def test_short_job_compacts_what_is_due(spark, sink, tmp_path):
    """A job compacts a log that was not compacted for a while."""
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add({"k": "a", "n": 1})
    assert sink._changelog.compacted_ms("t-latest-changelog") is None
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    wait_until(lambda: sink._changelog.compacted_ms("t-latest-changelog") is not None, "compaction")


def test_new_query_inherits_no_age_from_the_old_one(spark, sink, tmp_path):
    """Both queries have the same writer."""
    source = Source(spark, tmp_path / "in", "k string, n int")
    writer = sink.write(source.df, "latest", key="k")
    query = writer.option("checkpointLocation", str(tmp_path / "old")).start()
    wait_until(lambda: as_ofs(sink), "an idle heartbeat")
    query.stop()
    source.add({"k": "a", "n": 1})
    run(writer, tmp_path, "new")
    first = next(beat for beat in beats(sink) if beat["query_id"] != str(query.id))
    assert first["as_of_ms"] is None


def test_two_rows_of_a_key_need_an_order(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 2}, {"k": "a", "n": 10}, {"k": "a", "n": 1})
    message = refusal(sink.write(source.df, "latest", key="k"), tmp_path)
    assert "more than one row for the key b'a'" in message
    assert "order_by" in message
    assert content(sink, "latest") == {}
    run(sink.write(source.df, "latest", key="k", order_by="n"), tmp_path, "other")
    assert content(sink, "latest") == {b"a": {"n": 10}}


def test_last_emitted_row_of_a_key_is_the_latest(spark, sink, tmp_path):
    """An operator may emit several rows for a key, which `order_by` puts in order."""
    import pandas

    def emit(key: Any, frames: Any, state: Any) -> Any:
        for _ in frames:
            for n in (2, 10, 1):
                yield pandas.DataFrame({"k": [key[0]], "n": [n]})

    # The function is set to an interpreter before the sink has seen it.
    spark.sparkContext.pythonExec = sys.executable
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add(*({"k": f"k{i}", "n": 0} for i in range(20)))
    emitted = source.df.groupBy("k").applyInPandasWithState(
        emit, "k string, n int", "n int", "update", "NoTimeout"
    )
    assert "more than one row for the key" in refusal(sink.write(emitted, "latest", key="k"), tmp_path)
    run(sink.write(emitted, "latest", key="k", order_by="emitted"), tmp_path, "other")
    assert content(sink, "latest") == {b"k%d" % i: {"n": 1} for i in range(20)}
    named = source.df.selectExpr("k", "n as emitted").union(source.df.selectExpr("k", "-1 as emitted"))
    run(sink.write(named, "latest", key="k", order_by="emitted", writer="named"), tmp_path, "named")
    assert content(sink, "latest") == {b"k%d" % i: {"emitted": 0} for i in range(20)}


def test_failed_task_leaves_no_half_of_another(spark, sink, tmp_path):
    """What another task of the batch writes is in the log as a whole or not at all."""
    # The other task has many Arrow batches, and is cancelled in the middle of them.
    keys = {0: [], 1: [], 2: []}
    for n in range(300_000):
        key = f"k{n}"
        keys[sink.topology.stores["latest"].stream_partitioner.partition(key.encode(), 3)].append(key)
    source = Source(spark, tmp_path / "in", "k string, n int")
    few = [{"k": key, "n": 1} for key in keys[1][:20_000]]
    source.add(*({"k": key, "n": 1} for key in keys[0]), *few, {"k": few[-1]["k"], "n": 2})
    assert "more than one row for the key" in refusal(sink.write(source.df, "latest", key="k"), tmp_path)
    spark.sparkContext.cancelAllJobs()
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveStageIds(), "the other task's end")
    written = log_of(sink, "latest")
    assert [len(written[0]), len(written[1])] in ([0, 0], [len(keys[0]), 0])
    run(sink.write(source.df, "latest", key="k", order_by="n"), tmp_path)
    assert len(content(sink, "latest")) == len(keys[0]) + len(few)


def test_value_changed_before_commit_replaces_the_old(spark, sink, tmp_path):
    """Rows that a repeated batch lacks are refused."""
    import shutil

    source = Source(spark, tmp_path / "in", "k string, n int")
    numbers = {f"k{n}": n for n in range(20)}
    source.add(*({"k": key, "n": n} for key, n in numbers.items()))
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    more = source.df.withColumn("twice", source.df["n"] * 2)
    run(sink.write(more, "latest", key="k"), tmp_path)
    assert content(sink, "latest") == {key.encode(): {"n": n, "twice": 2 * n} for key, n in numbers.items()}
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    # Of the second, a partition has no rows at all.
    for fewer in (more.where("n % 2 = 0"), more.where("k = 'k0'")):
        assert "run it once more as it was" in refusal(sink.write(fewer, "latest", key="k"), tmp_path)
    run(sink.write(more, "latest", key="k"), tmp_path)


@pytest.mark.parametrize("order_by", [None, "n"], ids=["runs", "shuffle"])
def test_refused_repeat_leaves_every_partition_as_it_was(spark, sink, tmp_path, order_by):
    """The query can be run as it was, though only one partition refused the other rows."""
    import shutil

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add(*({"k": f"k{n}", "n": n} for n in range(20)))
    arguments = {"store": "latest", "key": "k", "order_by": order_by}
    run(sink.write(source.df, **arguments), tmp_path)
    before = log_of(sink, "latest")
    more = source.df.selectExpr("explode(array(k, k || '-more')) AS k", "n").where("k <> 'k0'")
    for other in (more, more, source.df.where("n < 0")):
        shutil.rmtree(tmp_path / "checkpoint" / "commits")
        assert "run it once more as it was" in refusal(sink.write(other, **arguments), tmp_path)
        assert log_of(sink, "latest") == before
        run(sink.write(source.df, **arguments), tmp_path)
    assert log_of(sink, "latest") == before


def test_older_checkpoint_brings_no_old_value_back(spark, sink, tmp_path):
    """Values that are not the newest of the log are refused."""
    import shutil

    source = Source(spark, tmp_path / "in", "k string, n int")

    def latest(files: int) -> Any:
        counted = (
            source.df
            if files == 1
            else spark.readStream.schema("k string, n int")
            .option("maxFilesPerTrigger", files)
            .json(str(source.directory))
        )
        return sink.write(counted.groupBy("k").max("n"), "latest", key="k")

    source.add({"k": "a", "n": 1})
    run(latest(1), tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    for number, key in ((1, "f"), (5, "a"), (6, "a")):
        source.add({"k": key, "n": number})
    run(latest(1), tmp_path)
    before = log_of(sink, "latest")
    # From the older one, the batch that wrote "f" alone now has a value of "a" too, which is not the newest.
    assert "which are not the newest" in refusal(latest(2), tmp_path, "older")
    assert log_of(sink, "latest") == before


def test_query_continues_into_an_empty_log_on_request_only(spark, sink, tmp_path):
    """The query must be started with `store_begins_here`."""
    import shutil

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    source.add({"k": "b", "n": 1})
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    sink._changelog.reset(sink.topology.stores["latest"])
    source.add({"k": "c", "n": 1})
    with pytest.raises(
        SinkError, match=r"goes on from its checkpoint, but the log 't-latest-changelog' has nothing"
    ):
        run(sink.write(source.df, "latest", key="k"), tmp_path)
    # Without its commits a checkpoint does not show that it is continued, but the batch does.
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "uncommitted")
    shutil.rmtree(tmp_path / "uncommitted" / "commits")
    assert "store_begins_here=True" in refusal(sink.write(source.df, "latest", key="k"), tmp_path, "uncommitted")

    def outputs(batch: Any, batch_id: int) -> None:
        sink.write_batch(batch, batch_id, "latest", key="k")

    message = refusal(source.df.writeStream.foreachBatch(outputs), tmp_path, "uncommitted")
    assert "source from the beginning, or, with sink.write, with bootstrap=True" in message
    assert "or with store_begins_here=True" in message
    assert ends(sink) == dict.fromkeys(ends(sink), 0)
    run(sink.write(source.df, "latest", key="k", store_begins_here=True), tmp_path)
    assert content(sink, "latest") == {b"c": {"n": 1}}
    source.add({"k": "d", "n": 1})
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    assert set(content(sink, "latest")) == {b"c", b"d"}


def test_store_is_bootstrapped_from_its_querys_checkpoint(spark, sink, tmp_path):
    """Whose batches went elsewhere, or into a log that is lost."""
    from pyspark.sql import functions as F

    from forebay.errors import SinkError

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add(*({"k": key, "n": 1} for key in "abcdef"))
    source.add({"k": "a", "n": 1})
    counts = source.df.groupBy("k").agg(F.count("*").alias("n"))
    elsewhere = counts.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    elsewhere.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)
    source.add({"k": "b", "n": 1}, {"k": "g", "n": 1})
    with pytest.raises(SinkError, match="with bootstrap=True to fill the store from this checkpoint"):
        run(sink.write(counts, "counted", key="k"), tmp_path)
    renamed = counts.withColumnRenamed("n", "total")
    with pytest.raises(SinkError, match=r"of struct<n:.*>, but the query writes struct<total:.*>\. Declare"):
        run(sink.write(renamed, "counted", key="k", bootstrap=True), tmp_path)
    with pytest.raises(SinkError, match=r"values of struct<n:long>, but the query writes long\. Declare the"):
        run(sink.write(counts, "counted", key="k", value="n", flatten=True, bootstrap=True), tmp_path)
    with pytest.raises(SinkError, match=r"bootstrap=True cannot fill it: its state has the key k, but"):
        run(sink.write(counts.withColumnRenamed("k", "key"), "counted", key="key", bootstrap=True), tmp_path)
    with pytest.raises(SinkError, match="needs to know which of the query's state the store has"):
        run(sink.write(counts, "latest", key="k", bootstrap=True), tmp_path)
    assert content(sink, "counted") == {}
    run(sink.write(counts, "counted", key="k", bootstrap=True), tmp_path)
    totals = {b"a": 2, b"b": 2, b"c": 1, b"d": 1, b"e": 1, b"f": 1, b"g": 1}
    assert content(sink, "counted") == {key: {"n": n} for key, n in totals.items()}
    filling = [beat.get("filling", False) for beat in beats(sink, "counted")]
    assert filling[0]
    assert filling == sorted(filling, reverse=True)
    source.add({"k": "c", "n": 1})
    before = sum(map(len, log_of(sink, "counted").values()))
    run(sink.write(counts, "counted", key="k", bootstrap=True), tmp_path)
    assert content(sink, "counted")[b"c"] == {"n": 2}
    # It is not copied twice.
    assert sum(map(len, log_of(sink, "counted").values())) == before + 1


def test_a_log_that_is_reset_under_a_query_gets_no_more_of_it(spark, sink, tmp_path, caplog):
    from pyspark.errors import StreamingQueryException

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    checkpoint = str(tmp_path / "checkpoint")
    query = sink.write(source.df, "latest", key="k").option("checkpointLocation", checkpoint).start()
    wait_until(lambda: as_ofs(sink), "an idle heartbeat")
    sink._changelog.reset(sink.topology.stores["latest"])
    wait_until(lambda: "was reset or replaced while" in caplog.text, "a heartbeat that is refused")
    source.add({"k": "b", "n": 1})
    with pytest.raises(StreamingQueryException, match="was reset or replaced while query"):
        query.awaitTermination(60)
    assert content(sink, "latest") == {}
    # Before Spark's traceback, in one line.
    (line,) = (record for record in caplog.records if record.name == "forebay_spark.write")
    assert line.levelname == "ERROR"
    assert line.getMessage().startswith("batch 1 of latest was refused: latest: the log 't-latest-changelog' was")


def test_query_needs_a_checkpoint_location(spark, sink, tmp_path):
    """The session may have one for all queries."""
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    with pytest.raises(SinkError, match="'latest': the query has no checkpoint location"):
        sink.write(source.df, "latest", key="k").start()
    writer = sink.write(source.df, "latest", key="k").trigger(availableNow=True)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        for _ in range(2):
            writer.start().awaitTermination(60)
            sink._changelog.reset(sink.topology.stores["latest"])
            with pytest.raises(SinkError, match="has nothing of it"):
                sink.write(source.df, "latest", key="k").start()
            writer.queryName("another")
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["another", "latest"]
    assert writer.start(checkpointLocation=str(tmp_path / "own")).awaitTermination(60)


def test_a_join_of_streams_is_written_as_spark_runs_it(spark, sink, tmp_path):
    from pyspark.sql import functions as F

    clicks = Source(spark, tmp_path / "clicks", "k string, t timestamp")
    views = Source(spark, tmp_path / "views", "v string, seen timestamp")
    clicks.add({"k": "a", "t": "2026-01-01T00:00:30Z"})
    views.add({"v": "a", "seen": "2026-01-01T00:00:00Z"})
    within = (F.col("k") == F.col("v")) & F.expr("t BETWEEN seen AND seen + INTERVAL 1 MINUTE")
    joined = clicks.df.withWatermark("t", "1 minute").join(views.df.withWatermark("seen", "1 minute"), within)
    outer = clicks.df.withWatermark("t", "1 minute").join(
        views.df.withWatermark("seen", "1 minute"), within, "left"
    )
    # Spark 4.2 runs an inner join in this mode.
    with pytest.raises(
        SinkError, match=r"'latest': Spark does not run this query in the output mode 'update': .*[Jj]oin"
    ):
        sink.write(outer, "latest", key="k", value="t").outputMode("update")
    run(sink.write(joined, "latest", key="k", value="t"), tmp_path)
    assert content(sink, "latest") == {b"a": {"t": "2026-01-01T00:00:30.000000Z"}}
    unlimited = clicks.df.join(views.df, F.col("k") == F.col("v"), "left")
    with pytest.raises(SinkError, match=r"in the output mode 'append': .*[Oo]uter"):
        sink.write(unlimited, "latest", key="k", value="t")


def test_a_null_key_fails_the_batch_with_its_column(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": None, "n": 1}, {"k": "a", "n": 2}, {"k": None, "n": 3})
    message = refusal(sink.write(source.df, "latest", key="k"), tmp_path)
    assert "A row has a null key (column 'k')" in message
    assert content(sink, "latest") == {}


def test_reserved_keys_are_refused(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": heartbeat_key("latest").decode(), "n": 1})
    assert "reserved for heartbeats" in refusal(sink.write(source.df, "latest", key="k"), tmp_path)


def test_unwritable_frame_is_refused_before_the_start(spark, sink, tmp_path):
    from pyspark.sql import functions as F

    df = Source(spark, tmp_path / "in", "k string, n int, x double").df
    dates = F.create_map(F.current_date(), "n")
    maps = df.withColumn("m", dates).withColumn("deep", F.array(F.struct(F.create_map(F.lit(b"x"), "n"))))
    alike = df.withColumnsRenamed({"k": "N"})
    twice = df.select("k", "n", df["x"].alias("n"))
    nested = df.withColumn("deep", F.array(F.struct("n", df["x"].alias("n"))))
    now = F.current_timestamp()
    hour = df.withColumn("w", F.window(now, "1 hour"))
    visit = df.withColumn("w", F.session_window(now, "1 minute"))
    local = df.withColumn("w", F.window(F.lit("2026-01-01").cast("timestamp_ntz"), "1 hour"))
    for bad, expected in (
        (lambda: sink.write(df, "nope", key="k"), "no store 'nope'"),
        (lambda: sink.write(df, "latest", key="q"), "no column 'q'"),
        (lambda: sink.write(df, "latest", key=df.k), "key takes the names of columns"),
        (lambda: sink.write(df, "latest", key="k", value=["n", df.k]), "value takes the names of columns"),
        (lambda: sink.write(df, "latest", key="k", value="nope"), "no column 'nope'"),
        (lambda: sink.position("nope"), "no store 'nope'"),
        (lambda: sink.write(df, "latest", key="n"), "'n' of 'latest' is int"),
        (lambda: sink.write(df, "latest", key=["k", "n"]), 'key = "json"'),
        (lambda: sink.write(df, "by_pair", key=["k", "x"]), "'x' of 'by_pair' is double"),
        (lambda: sink.write(df, "latest", key="k", delete="n"), "'n' must be boolean"),
        (lambda: sink.write(df, "hours", key="k"), "window store and needs one column"),
        (
            lambda: sink.write(hour, "latest", key="k"),
            "'w' was made by window(), but 'latest' is a key-value store",
        ),
        (lambda: sink.write(visit, "latest", key="k"), "made by session_window(), but 'latest' is a key-value"),
        (lambda: sink.write(visit, "hours", key="k"), "made by session_window(), but 'hours' is a window store"),
        (lambda: sink.write(hour, "visits", key="k"), "made by window(), but 'visits' is a session store"),
        (lambda: sink.write(twice, "latest", key="k"), "'n' occurs twice"),
        (lambda: sink.write(alike, "latest", key="x"), "'N' occurs twice"),
        (lambda: sink.write(nested, "latest", key="k", value="deep"), "struct in which 'n' occurs twice"),
        (lambda: sink.write(df, "latest", key="k", value=["n", "x", "n"]), "'n' for 'latest' twice"),
        (lambda: sink.write(local, "hours", key="k"), "cast the event time to timestamp"),
        (
            lambda: sink.write(df, "by_number", key=[]),
            "needs the key codec 'string' or 'json', not 'int32'; name a",
        ),
        (
            lambda: sink.write(df, "latest", key="k", value=["n", "x"], flatten=True),
            "one value column, named by value=, not n, x",
        ),
        (lambda: sink.write(df, "latest", key="k", null_keys="keep"), "whose keys have no null"),
        (
            lambda: sink.write(df, "latest", key="k", null_keys="no"),
            "null_keys is one of refuse, drop, keep, not 'no'",
        ),
        (lambda: sink.write(df, "prices", key="k", order_by="emitted"), "must name one timestamp column"),
        (lambda: sink.write(maps, "latest", key="k", value="m"), "keys of the type date"),
        (lambda: sink.write(maps, "latest", key="k", value="deep"), "keys of the type binary"),
        (lambda: sink.write(maps, "latest", key="k", value="n", order_by="m"), "cannot be ordered"),
        (lambda: sink.write(df, "latest", key="k").format("parquet"), "no longer write to the store"),
        (lambda: sink.write(df, "latest", key="k").foreachBatch(print), "no longer write to the store"),
        (lambda: sink.write(df, "latest", key="k").foreach(print), "no longer write to the store"),
        (lambda: sink.write(df, "latest", key="k").toTable("t"), "no longer write to the store"),
        (lambda: sink.write(df, "latest", key="k").start("/tmp/out"), "no longer write to the store"),
        (lambda: sink.write(df, "latest", key="k").outputMode("complete"), "'complete'"),
        (lambda: sink.write(spark.range(1), "latest", key="id"), "not streaming"),
    ):
        with pytest.raises(SinkError) as caught:
            bad()
        assert expected in str(caught.value)


def test_rows_are_ordered_by_columns_of_any_name_and_type(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, `a b` struct<`c d`: int, e: array<double>>, n int")
    source.add(*({"k": "a", "a b": {"c d": n // 2, "e": [n]}, "n": n} for n in (3, 1, 5, 2)))
    run(sink.write(source.df, "latest", key="k", value="n", order_by="a b"), tmp_path)
    assert content(sink, "latest") == {b"a": {"n": 5}}


def test_restarted_query_beats_through_its_new_sink_only(spark, sink, tmp_path):
    from forebay.spark import Sink

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    query = (
        sink.write(source.df, "latest", key="k").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )
    wait_until(lambda: as_ofs(sink), "an idle heartbeat")
    query.stop()
    other = Sink(parse_topology(TOPOLOGY), changelog=sink._changelog.url)
    again = (
        other.write(source.df, "latest", key="k")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        before = sink.position("latest")
        said = len(as_ofs(other))
        wait_until(lambda: len(as_ofs(other)) > said + 2, "more of them")
        assert again.id == query.id
        assert sink.position("latest") == before
    finally:
        again.stop()


def test_an_idle_query_that_is_started_again_beats_on(spark, sink, tmp_path):
    """Nothing tells that it writes the store until it has a batch."""
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    writer = source.df.writeStream.foreachBatch(
        lambda batch, batch_id: sink.write_batch(batch, batch_id, "latest", key="k")
    ).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    wait_until(lambda: as_ofs(sink), "an idle heartbeat", 60)
    query.stop()
    again = writer.start()
    try:
        said = len(as_ofs(sink))
        wait_until(lambda: len(as_ofs(sink)) > said + 2, "more of them")
    finally:
        again.stop()


def test_version_without_valid_from_is_refused(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, at timestamp, price int")
    source.add({"k": "a", "at": None, "price": 1})
    message = refusal(sink.write(source.df, "prices", key="k", order_by="at"), tmp_path)
    assert "A row has a null valid-from (column 'at'" in message
    assert log_of(sink, "prices") == {0: [], 1: [], 2: []}


def test_a_superseded_query_that_speaks_again_fails(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    run(sink.write(source.df, "latest", key="k"), tmp_path, "old")
    run(sink.write(source.df, "latest", key="k"), tmp_path, "new")
    source.add({"k": "a", "n": 2})
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="Two queries write as 'latest'"):
        run(sink.write(source.df, "latest", key="k"), tmp_path, "old")


def test_idle_query_keeps_writing_heartbeats(spark, sink, tmp_path):
    """Positions reach the end of the log."""
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    checkpoint = str(tmp_path / "checkpoint")
    query = sink.write(source.df, "latest", key="k").option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: len(as_ofs(sink)) >= 3, "three heartbeats that say when", 60)
    finally:
        query.stop()
    said = as_ofs(sink)
    assert said == sorted(said)
    # Spark tells of its last trigger a moment after the query has stopped.
    wait_until(lambda: said_position(sink) == ends(sink), "a position at the end of the log")


def test_available_now_query_is_no_newer_than_its_start(spark, sink, tmp_path):
    """Its sources' latest offsets are read once, and no heartbeat's `as_of_ms` is later."""
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})
    query = run(sink.write(source.df, "latest", key="k"), tmp_path)
    ended_ms = time.time() * 1000
    # A source that tells its latest offset, as Kafka does, says of the last batch that nothing was left.
    beat_after_batch(query, int(ended_ms) + 3_600_000)
    assert as_ofs(sink)[-1] <= ended_ms


def test_foreach_batch_writes_several_stores(spark, sink, tmp_path, monkeypatch):
    """A batch that failed in between is repeated without writing the first store twice."""
    import forebay_spark.sink as module

    laid_out, lay_out = [], module.lay_out
    monkeypatch.setattr(
        module, "lay_out", lambda df, spec, *rest: laid_out.append(spec.name) or lay_out(df, spec, *rest)
    )
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1}, {"k": "b", "n": 2})
    away = [RuntimeError("the other output is away")]

    def outputs(batch: Any, batch_id: int) -> None:
        sink.write_batch(batch, batch_id, "latest", key="k")
        if away:
            raise away.pop()
        sink.write_batch(batch, batch_id, "by_number", key=["n"], value="k", writer="numbers")

    writer = source.df.writeStream.foreachBatch(outputs)
    assert "the other output is away" in refusal(writer, tmp_path)
    before = log_of(sink, "latest")
    assert content(sink, "by_number") == {}
    run(writer, tmp_path)
    assert log_of(sink, "latest") == before
    assert content(sink, "by_number") == {n.to_bytes(4, "big"): {"k": k} for n, k in ((1, "a"), (2, "b"))}
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        source.add({"k": "a", "n": 3})
        wait_until(lambda: content(sink, "latest").get(b"a") == {"n": 3}, "the next batch")
        counts = len(as_ofs(sink)), len(as_ofs(sink, "by_number"))
        wait_until(
            lambda: len(as_ofs(sink)) > counts[0] and len(as_ofs(sink, "by_number")) > counts[1],
            "heartbeats of both",
        )
    finally:
        query.stop()
    assert laid_out == ["latest", "by_number"]


def test_foreach_batch_has_heartbeats_in_any_session(spark, sink, tmp_path):
    """Also in one that the sink does not know, and that is not the default one."""
    another = spark.newSession()
    another.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    source = Source(another, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1})

    def outputs(batch: Any, batch_id: int) -> None:
        sink.write_batch(batch, batch_id, "latest", key="k")

    writer = source.df.writeStream.foreachBatch(outputs)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(lambda: as_ofs(sink), "a heartbeat of the idle query")
    finally:
        query.stop()


def test_fill_is_applied_once_per_name(spark, sink, tmp_path, monkeypatch):
    """A snapshot deletes what it lacks, within what is meant."""
    from forebay.spark import FillResult

    def table(**rows: int) -> Any:
        return spark.createDataFrame(list(rows.items()), "k string, n int")

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 1}, {"k": "b", "n": 1}, {"k": "c", "n": 1})
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    destination, write = sink._log.destination, sink._log.destination.write

    def failing(*of: Any) -> None:
        write(*of)
        raise OSError("the driver is gone")

    monkeypatch.setattr(destination, "write", failing)
    correction = {"df": table(a=2, d=2), "store": "latest", "key": "k", "name": "correction"}
    with pytest.raises(OSError, match="the driver is gone"):
        sink.fill(**correction)
    monkeypatch.setattr(destination, "write", write)
    of_it = [beat for beat in beats(sink) if beat["query_id"] == "fill-correction"]
    assert [(beat["as_of_ms"], beat["filling"]) for beat in of_it] == [(None, True)]
    assert sink.fill(**correction) == FillResult(rows=2)
    before = log_of(sink, "latest")
    assert {key: value["n"] for key, value in content(sink, "latest").items()} == {
        b"a": 2,
        b"b": 1,
        b"c": 1,
        b"d": 2,
    }
    assert sum(map(len, before.values())) == 3 + 2
    with pytest.raises(SinkError, match=r'a fill named .correction. was already through.* if_written="skip"'):
        sink.fill(table(a=3), "latest", key="k", name="correction")
    skipped = sink.fill(table(a=3), "latest", key="k", name="correction", if_written="skip")
    assert skipped == FillResult(skipped=True)
    snapshot = {"df": table(a=4, e=4), "store": "latest", "key": "k", "name": "snapshot", "snapshot": True}
    with pytest.raises(SinkError, match="3 keys that its 2 rows lack, which is more than max_deleted=2"):
        sink.fill(**snapshot, max_deleted=2)
    assert log_of(sink, "latest") == before
    assert sink.fill(**snapshot) == FillResult(rows=2, deleted_keys=3)
    assert content(sink, "latest") == {b"a": {"n": 4}, b"e": {"n": 4}}
    deleted = [r[1] for records in log_of(sink, "latest").values() for r in records if r[2] is None]
    assert sorted(deleted) == [b"b", b"c", b"d"]
    for name in ("fill-correction", "fill-snapshot"):
        assert sink._changelog.last_heartbeat("t-latest-changelog", name) is None
    nothing = {**snapshot, "df": table(), "name": "nothing"}
    with pytest.raises(SinkError, match=r"has no rows, so all 2 keys .* say so: max_deleted=2\."):
        sink.fill(**nothing)
    assert "fill-nothing" not in sink._changelog.writers("t-latest-changelog")
    assert sink.fill(**nothing, max_deleted=2) == FillResult(deleted_keys=2)
    assert content(sink, "latest") == {}
    # The stream goes on.
    source.add({"k": "b", "n": 5})
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    assert content(sink, "latest")[b"b"] == {"n": 5}
    with pytest.raises(SinkError, match="this one, which is streaming"):
        sink.fill(source.df, "latest", key="k", name="stream")
    with pytest.raises(SinkError, match="'prices' is a versioned store"):
        sink.fill(table(), "prices", key="k", name="prices", snapshot=True)


def test_fill_that_was_given_up_is_continued(spark, sink):
    """Only a fill that was through does nothing when it is called again."""
    rows = [(f"k{n}", n) for n in range(8)]
    fill = functools.partial(sink.fill, store="latest", key="k", name="correction")
    with pytest.raises(SinkError, match="more than one row for the key b'k0'"):
        fill(spark.createDataFrame([*rows, ("k0", 1)], "k string, n int"))
    sink._changelog.retire_writer("t-latest-changelog", "fill-correction")
    fill(spark.createDataFrame(rows, "k string, n int"))
    assert content(sink, "latest") == {key.encode(): {"n": n} for key, n in rows}
    assert fill(spark.createDataFrame([("k0", 1)], "k string, n int"), if_written="skip").skipped
    assert content(sink, "latest")[b"k0"] == {"n": 0}


def test_snapshot_that_failed_half_way_is_completed(spark, sink, tmp_path):
    """Keys that its first attempt has deleted stay deleted."""

    def table(rows: list[tuple[str, int]]) -> Any:
        return spark.createDataFrame(rows, "k string, n int")

    fill = functools.partial(sink.fill, store="latest", key="k", name="all", snapshot=True)
    sink.fill(table([(f"old{n}", n) for n in range(12)]), "latest", key="k", name="old")
    rows = [(f"k{n}", n) for n in range(12)]
    # In one partition, after at least one other was written.
    last = max(rows, key=lambda row: sink.topology.stores["latest"].partition_of(row[0].encode()))
    with pytest.raises(SinkError, match="more than one row"):
        fill(table([*rows, (last[0], -1)]))
    assert any(r[2] is None for records in log_of(sink, "latest").values() for r in records)
    written = {key for key in content(sink, "latest") if key.startswith(b"k")}
    assert written
    without = [row for row in rows if row[0].encode() not in written]
    with pytest.raises(SinkError, match=r"An earlier attempt at 'fill-all' has written .* no longer has\. Add"):
        sink.fill(table(without), "latest", key="k", name="all")
    fill(table(rows))
    assert content(sink, "latest") == {key.encode(): {"n": n} for key, n in rows}


def test_records_for_sparks_kafka_sink_are_those_of_the_sink(spark, sink):
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    texts = ["", "a", "bc", "def", "ghij", "klmno", 'ä€𝄞\\"/\n\t\x00', "x" * 1000]
    rows = [(text, n, n * 2**40, text.encode(), n % 2 == 0) for n, text in enumerate(texts, -3)]
    df = spark.createDataFrame(rows, "s string, i int, l bigint, b binary, f boolean")

    def written(df: Any, store: str, **columns: Any) -> list[Any]:
        return sink.kafka_columns(df, store, **columns).collect()

    for store, key in (("latest", "s"), ("by_number", "i"), ("by_long", "l"), ("by_pair", ["s", "l", "f"])):
        spec = sink.topology.stores[store]
        for row, record in zip(df.collect(), written(df, store, key=key, value="i"), strict=True):
            plain = spec.key_codec.from_json([row[name] for name in key] if isinstance(key, list) else row[key])
            assert (bytes(record.key), bytes(record.value)) == (plain, b'{"i":%d}' % row.i)
            assert record.partition == Murmur2Partitioner().partition(plain, 3)
    start, end = (F.timestamp_millis(F.lit(ms)).alias(name) for name, ms in (("start", 0), ("end", 3_600_000)))
    windows = df.withColumn("w", F.struct(start, end))
    for row, record in zip(df.collect(), written(windows, "hours", key="s", value="i"), strict=True):
        assert bytes(record.key) == row.s.encode() + bytes(8)
        assert record.partition == Murmur2Partitioner().partition(row.s.encode(), 3)
    versions = df.select("s", F.timestamp_millis(F.lit(5)).alias("at"), F.lit(True).alias("gone"), "i")
    (record,) = written(versions.where("s = 'a'"), "prices", key="s", order_by="at", value="i", delete="gone")
    assert (record.value, record.headers) == (None, [("forebay-valid-from-ms", (5).to_bytes(8, "big"))])
    orders = df.select("s", F.col("l").alias("n"), (F.col("i") > 0).alias("gone"), "i")
    for row, record in zip(
        orders.collect(), written(orders, "customers", key="s", value="i", delete="gone"), strict=True
    ):
        assert bytes(record.key) == with_order(row.s.encode(), row.n)
        assert record.partition == Murmur2Partitioner().partition(row.s.encode(), 3)
        shown = (b"", [("forebay-deleted", b"")]) if row.gone else (b'{"i":%d}' % row.i, None)
        assert (bytes(record.value), record.headers) == shown
    schema = T.StructType().add("s", T.StringType()).add("l", T.LongType())
    for (text, number), store, expected in (
        ((None, 1), "latest", "A row has a null key (column 's')"),
        ((heartbeat_key("w").decode(), 1), "latest", "reserved for heartbeats"),
        (("a", 2**53), "by_pair", "an integer beyond 2^53"),
    ):
        with pytest.raises(Exception, match=re.escape(expected)):
            written(
                spark.createDataFrame([(text, number)], schema),
                store,
                key=["s", "l"] if store == "by_pair" else "s",
                value="l",
            )
    timeless = spark.sql(
        "SELECT 'a' AS s, IF(i = 0, NULL, STRUCT(ts AS start, ts AS end)) AS w FROM (SELECT 0 AS i, now() AS ts)"
    )
    for store in ("hours", "visits"):
        with pytest.raises(Exception, match=r"A row has a null window or session \(column 'w'\)"):
            written(timeless, store, key="s", value=[])
        with pytest.raises(SinkError, match=r"A row has a null window or session \(column 'w'\)"):
            sink.fill(timeless, store, key="s", value=[], name="timeless")
    unreadable = spark.sql("SELECT CAST(X'ff' AS STRING) AS s, 1L AS l")
    for store, key in (("latest", "s"), ("by_pair", ["s", "l"])):
        with pytest.raises(Exception, match=r"A row's key is not valid UTF-8 \(column 's'\)"):
            written(unreadable, store, key=key, value="l")
    kept = spark.createDataFrame([(None, 1)], schema)
    (record,) = written(kept, "by_pair", key=["s", "l"], value=[], null_keys="keep")
    assert (bytes(record.key), bytes(record.value)) == (b"[null,1]", b"{}")
    with pytest.raises(SinkError, match="order_by= has no effect"):
        sink.kafka_columns(df, "latest", key="s", order_by="i")


def test_a_store_that_a_query_writes_by_itself_has_an_age(spark, sink, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n int")
    memory = source.df.writeStream.format("memory").queryName("by_itself")
    query = memory.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        sink.heartbeats(query, "latest", writer="theirs")
        wait_until(lambda: len(as_ofs(sink)) > 1, "heartbeats of the idle query")
        assert {beat["query_id"] for beat in beats(sink)} == {str(query.id)}
    finally:
        query.stop()


def test_totals_sets_and_null_keys_have_their_forms(spark, sink, tmp_path):
    """Bare values have theirs too."""
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", "k string, n int, p struct<a: int, b: string>, tags array<string>")
    source.add({"k": 'é"', "n": 1, "p": {"a": 1}, "tags": ["t"]}, {"k": None, "n": 2})

    def forms(batch: Any, batch_id: int) -> None:
        def write(df: Any, store: str, **columns: Any) -> None:
            writes.append(store)
            sink.write_batch(df, batch_id, store, writer=f"w{len(writes)}", **columns)

        writes: list[str] = []
        write(batch.groupBy().count(), "latest", key=())
        write(batch.where("n = 1").select(F.lit("set").alias("k")), "latest", key="k")
        for name in ("p", "tags", "n", "k", "none"):
            named = batch.withColumn("none", F.lit(None)).withColumn("name", F.when(F.col("n") == 1, F.lit(name)))
            write(named, "latest", key="name", value=name, flatten=True, null_keys="drop")
        write(batch, "by_pair", key=["k", "n"], value=[], null_keys="keep")
        write(batch.groupBy().count(), "by_pair", key=None)

    run(source.df.writeStream.foreachBatch(forms), tmp_path)
    written = {r[1]: r[2] for records in log_of(sink, "latest").values() for r in records}
    assert written == {
        b"all": b'{"count":2}',
        b"set": b"{}",
        b"p": b'{"a":1,"b":null}',
        b"tags": b'["t"]',
        b"n": b"1",
        b"k": '"é\\""'.encode(),
        b"none": b"null",
    }
    pairs = {'["é\\"",1]'.encode(): {}, b"[null,2]": {}, b"[]": {"count": 2}}
    assert content(sink, "by_pair") == pairs
    # As a reader writes them.
    codec = sink.topology.stores["by_pair"].key_codec
    assert {codec.from_json(key) for key in (['é"', 1], [None, 2], [])} == pairs.keys()


def test_foreach_batch_skips_and_repeats_no_batch(spark, sink, tmp_path, caplog):
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": None, "n": 1})
    source.add({"k": "a", "n": 2})

    def swallowing(batch: Any, batch_id: int) -> None:
        try:
            sink.write_batch(batch, batch_id, "latest", key="k")
        except SinkError:
            if batch_id > 0:
                raise

    message = refusal(source.df.writeStream.foreachBatch(swallowing), tmp_path)
    assert "batch 0 was not written, and batch 1 would leave its rows out" in message
    assert (content(sink, "latest"), as_ofs(sink)) == ({}, [])

    def twice(batch: Any, batch_id: int) -> None:
        for _ in range(2):
            sink.write_batch(batch.where("k IS NOT NULL"), batch_id, "latest", key="k")

    assert "batch 0 was already written under the writer 'latest'" in refusal(
        source.df.writeStream.foreachBatch(twice), tmp_path, "twice"
    )

    def once(batch: Any, batch_id: int) -> None:
        sink.write_batch(batch.where("k IS NOT NULL"), batch_id, "latest", key="k")

    counts = source.df.groupBy("k").count().writeStream.outputMode("complete").foreachBatch(once)
    assert "the output mode 'complete'" in refusal(counts, tmp_path, "complete")
    query = run(source.df.writeStream.foreachBatch(once), tmp_path, "once")
    ended_ms = time.time() * 1000
    # A source that states its latest offset shows that nothing was left, as of the start.
    beat_after_batch(query, int(ended_ms) + 3_600_000)
    assert 0 < as_ofs(sink)[-1] <= ended_ms
    with pytest.raises(
        SinkError, match=r"use sink.write\(…\).start\(\), or sink.write_batch\(…\) within foreachBatch"
    ):
        sink.write_batch(spark.range(1), 0, "latest", key="id")


def beat_after_batch(query: Any, as_of_ms: int) -> None:
    """Have the heartbeat written that follows a batch which left no backlog."""
    from forebay_spark.store_writer import QUERY_RUNS, beat_run

    beat_run(QUERY_RUNS[str(query.id)], as_of_ms, 1)


def said_position(sink: Any) -> dict[TopicPartition, int]:
    position = decode_position(sink.position("latest"))
    return {
        TopicPartition("t-latest-changelog", partition): offset for partition, offset in position.offsets.items()
    }


def ends(sink: Any) -> dict[TopicPartition, int]:
    return sink._changelog.end_offsets([TopicPartition("t-latest-changelog", partition) for partition in range(3)])


def beats(sink: Any, store: str = "latest") -> list[dict[str, Any]]:
    """The heartbeats of a store, of one partition."""
    consumer = sink._changelog.consumer()
    consumer.assign(TopicPartition(f"t-{store}-changelog", 0), 0)
    (batch,) = consumer.poll(100_000)
    consumer.close()
    return [json.loads(record[2]) for record in batch.records if record[4]]


def as_ofs(sink: Any, store: str = "latest") -> list[int]:
    found = [beat["as_of_ms"] for beat in beats(sink, store)]
    return sorted({as_of for as_of in found if as_of is not None})


def test_executors_need_not_have_forebay(sink, tmp_path):
    """The functions that run in executors, pickled by value, load where forebay cannot be imported."""
    from pyspark import cloudpickle

    from forebay_spark.executor import END, BatchId, Target, append_rows
    from forebay_spark.sink import _BY_VALUE

    for module in _BY_VALUE:
        cloudpickle.register_pickle_by_value(module)
    pickled = tmp_path / "function.pickle"
    log = sink._changelog
    target = Target(
        str(log.directory),
        log.directory_id,
        socket.gethostname(),
        "t-latest-changelog",
        BatchId("q", 0, "w", ()),
        5,
    )
    pickled.write_bytes(cloudpickle.dumps(append_rows(target)))
    program = f"""
import pickle, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("forebay"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import pyarrow as pa
function = pickle.loads(open({str(pickled)!r}, "rb").read())
partition, key, value = pa.array([1, {END}], pa.int32()), pa.array([b"k", b""]), pa.array([b"1", None])
batch = pa.RecordBatch.from_pydict({{"partition": partition, "key": key, "value": value}})
print([written.to_pylist() for written in function([batch])])
"""
    # A copy of this environment's path without the project: editable installs put finders in site-packages.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "{'partition': 1}" in done.stdout
    assert log_of(sink, "latest")[1][0][1:] == (b"k", b"1", 5, False)


@pytest.mark.kafka
def test_missing_kafka_connector_is_named_with_the_remedy(spark, kafka_url, tmp_path):
    from forebay.spark import Sink

    own = {**TOPOLOGY, "application_id": f"t-{secrets.token_hex(4)}"}
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    with pytest.raises(SinkError, match=r"no Kafka connector. Start it with spark.jars.packages=org.apache.spark"):
        Sink(parse_topology(own), changelog=kafka_url).write(source.df, "latest", key="k")
