"""What the sink adds to a micro-batch, against Parquet by ``foreachBatch``, and against what Spark takes alone.

The limits beside them: a Python function that returns its rows, and the same rows appended to SQLite from memory.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.comparison import Effort
from bench.deployment import topology
from bench.figures import Row, Target
from bench.process import Family

from examples.broker import Broker
from examples.flights.session import start_spark
from examples.spark_connector import spark_connector
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog

SMALL_ROWS = 100
LARGE_ROWS = 2_000_000
PARTITIONS = 4
TASKS = 2
PARQUET, PYTHON, NOOP = "foreachBatch to Parquet", "foreachBatch through a function in Python", "Spark's noop sink"
UNCHECKED = "Kafka, unchecked"
"""Where nothing can repeat a key: the query's plan, or as here the order that each key has, shows it."""
MEMORY = "the same rows appended from memory by two processes"
Start = Callable[[Any, str], Any]
_STORES = {SMALL_ROWS: "small", LARGE_ROWS: "large"}
_BATCHES = {SMALL_ROWS: (5, 20), LARGE_ROWS: (1, 1)}
"""By the rows of a batch, how many batches warm up, and how many are measured."""
_TARGETS = {
    (SMALL_ROWS, "SQLite", PARQUET): Target(1.2, at_least=False),
    (SMALL_ROWS, UNCHECKED, PARQUET): Target(1.0, at_least=False),
    (LARGE_ROWS, "SQLite", MEMORY): Target(0.6),
    (LARGE_ROWS, UNCHECKED, PARQUET): Target(0.6),
}
_DEADLINE_S = 600.0


class Taken(NamedTuple):
    """The median of some batches, and the processor time of each, in all processes."""

    batch_s: float
    processor_s: float


def sink(effort: Effort) -> list[Row]:
    with Broker(effort.directory / "kafka") as broker:
        spark = start_spark(spark_connector(), f"local[{TASKS}]")
        try:
            return _rows(effort, spark, {"SQLite": f"sqlite://{effort.directory}/log", "Kafka": broker.url})
        finally:
            spark.stop()


def _rows(effort: Effort, spark: Any, logs: dict[str, str]) -> list[Row]:
    starts: dict[str, Start] = {name: _to_store(log) for name, log in logs.items()}
    starts[UNCHECKED] = _to_store(logs["Kafka"], "ordered", latest_by="count")
    starts |= {PARQUET: _to_parquet(effort.directory), PYTHON: _through_python, NOOP: _to_nothing}
    rows = []
    for count in _STORES:
        sides = {name: _batch(effort.directory, spark, count, start) for name, start in starts.items()}
        if count == LARGE_ROWS:
            sides[MEMORY] = lambda: _from_memory(effort.directory)
        rounds = [{name: side() for name, side in sides.items()} for _ in range(effort.rounds)]
        for name in (*logs, UNCHECKED):
            others = [PARQUET, PYTHON, NOOP] + [MEMORY] * (name == "SQLite" and count == LARGE_ROWS)
            rows += [_row(name, count, rounds, other) for other in others]
            rows.append(_processor_row(name, count, rounds))
    return rows


def _row(name: str, count: int, rounds: list[dict[str, Taken]], against: str) -> Row:
    target = _TARGETS.get((count, name, against))
    ours, theirs = (tuple(each[side].batch_s for each in rounds) for side in (name, against))
    if count == SMALL_ROWS:
        return Row(f"sink to {name}, a batch of {count:,} rows", "s", ours, against, theirs, target)
    ours, theirs = (tuple(count / each for each in side) for side in (ours, theirs))
    return Row(f"sink to {name}, batches of {count:,} rows", "rows/s", ours, against, theirs, target)


def _processor_row(name: str, count: int, rounds: list[dict[str, Taken]]) -> Row:
    """Beside others' load on the machine, this says more than the time that passes."""
    ours, theirs = (tuple(each[side].processor_s for each in rounds) for side in (name, PARQUET))
    target = Target(2.0, at_least=False) if (count, name) == (LARGE_ROWS, UNCHECKED) else None
    return Row(f"sink to {name}, processor time of a batch of {count:,} rows", "s", ours, PARQUET, theirs, target)


def _to_store(log: str, prefix: str = "", **options: str) -> Start:
    from forebay.spark import Sink

    names = [f"{prefix}{store}" for store in _STORES.values()]
    document = tomllib.loads(topology(PARTITIONS, names))
    for store in document["subtopology"][0]["store"]:
        store |= options
    # Its compaction is over before the large batches: the small ones come first, and it is due every ten minutes.
    writes = Sink(parse_topology(document), changelog=log)
    return lambda df, store: writes.write(df, f"{prefix}{store}", key="key")


def _to_parquet(directory: Path) -> Start:
    def start(df: Any, store: str) -> Any:
        path = str(directory / f"parquet-{store}")
        return df.writeStream.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(path))

    return start


def _through_python(df: Any, _: str) -> Any:
    def write(batch: Any, _: int) -> None:
        batch.mapInArrow(lambda batches: batches, batch.schema).write.format("noop").mode("overwrite").save()

    return df.writeStream.foreachBatch(write)


def _to_nothing(df: Any, _: str) -> Any:
    return df.writeStream.format("noop")


def _batch(directory: Path, spark: Any, count: int, start: Start) -> Callable[[], Taken]:
    """Measures how long Spark takes to run a batch of this many rows and write it."""
    warm, measured = _BATCHES[count]

    def measure() -> Taken:
        checkpoint = directory / f"checkpoint-{time.monotonic_ns()}"
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count)
        writer = start(_results(rows.option("numPartitions", TASKS).load()), _STORES[count])
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
        try:
            begun = _wait(query, warm)
            family = Family(os.getpid())
            ended = _wait(query, begun + measured)
            used_s = family.processor_s / (ended - begun)
            taken = [progress.durationMs["addBatch"] / 1000 for progress in query.recentProgress[begun:ended]]
        finally:
            query.stop()
        return Taken(median(taken), used_s)

    return measure


def _results(rows: Any) -> Any:
    """A key of 16 characters, and a value of three columns."""
    return rows.selectExpr(
        "lower(lpad(hex(xxhash64(value)), 16, '0')) AS key",
        "value AS count",
        "value / 7 AS mean",
        "timestamp AS newest",
    )


def _wait(query: Any, batches: int) -> int:
    """Wait for so many batches; returns how many there are."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while len(query.recentProgress) < batches:
        if not query.isActive or time.monotonic() > deadline_s:
            raise RuntimeError(f"The query has ended, or takes too long: {query.exception()}")
        time.sleep(0.1)
    return len(query.recentProgress)


def _from_memory(directory: Path) -> Taken:
    changelog, topic = SqliteChangelog(directory / "memory"), f"t{time.monotonic_ns()}"
    changelog.ensure_topic(topic, PARTITIONS)
    paths = [changelog.path(TopicPartition(topic, partition)) for partition in range(PARTITIONS)]
    with ProcessPoolExecutor(TASKS, multiprocessing.get_context("spawn")) as pool:
        spans = list(pool.map(_append, (paths[task::TASKS] for task in range(TASKS))))
    return Taken(max(end for _, end in spans) - min(begun for begun, _ in spans), nan)


def _append(paths: list[str]) -> tuple[float, float]:
    """Append each partition's part of a large batch; returns when that began and ended."""
    rows = list(_like_results(LARGE_ROWS // PARTITIONS))
    begun = time.monotonic()
    for path in paths:
        sqlite_batches.append_batch(path, rows, writer="w", query_id="q", batch_id=0, write_name="w")
    return begun, time.monotonic()


def _like_results(count: int) -> Iterator[tuple[bytes, bytes, int]]:
    for i in range(count):
        value = b'{"count":%d,"mean":%a,"newest":"1970-01-01T00:00:00.000000Z"}' % (i, i / 7)
        yield b"%016x" % (i * 0x9E3779B97F4A7C15 & (1 << 64) - 1), value, 0
