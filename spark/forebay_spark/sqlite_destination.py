"""How Spark writes a SQLite changelog: its tasks do, on this machine."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from forebay.clock import epoch_ms
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite.batches import newest_batch
from forebay_changelog.sqlite.changelog import SqliteChangelog, naming
from forebay_spark.destinations import refusing
from forebay_spark.executor import END, BatchId, Target, append_partition, append_rows

_PLACE = f"shiftleft(CAST(partition AS BIGINT), 32) | (xxhash64(key) & {(1 << 32) - 1}L)"
"""One number to sort by, which hardly two keys share: to compare all of two rows takes much longer."""


class SqliteDestination:
    """One task writes a partition, its rows and marker in one transaction: a repeated batch changes nothing."""

    claims_first = False
    """The rows' own transaction confirms it."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._hashed: dict[int, str] = {}
        """By the number of tasks, an array of what ``_hashed_to`` returns."""

    def check(self, session: SparkSession) -> None:
        """Any session will do; executors elsewhere notice it themselves and refuse."""

    def write(self, records: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all records, or none of a repeated batch that a partition refuses; raises ``SinkError``."""
        rows, target = self._in_tasks(records, spec, batch), self._target(spec, batch)
        if not self._repeats(spec, batch):
            _append(rows, spec, target)
            return
        # What is compared is what is written, even where the query would compute other rows each time.
        rows.persist()
        try:
            # A partition that took other rows would refuse those of the first attempt, so all are compared first.
            dry_run = replace(target, dry_run=True)
            for partition in sorted(set(range(spec.partitions)) - _append(rows, spec, dry_run)):
                # Where this attempt has no rows, an earlier one may have had some.
                refusing(spec, partial(append_partition, dry_run, partition, ()))
            _append(rows, spec, target)
        finally:
            rows.unpersist()

    def _in_tasks(self, records: DataFrame, spec: StoreSpec, batch: BatchId) -> DataFrame:
        """The records as tasks append them: each has whole partitions, one after the other, with a key's rows
        together and in order, and a row that ends them."""
        session = records.sparkSession
        # No more tasks than cores: each costs some 20 ms.
        tasks = min(spec.partitions, session.sparkContext.defaultParallelism)
        if tasks not in self._hashed:
            self._hashed[tasks] = f"array({', '.join(map(str, _hashed_to(session, tasks)))})"
        hashed = self._hashed[tasks]
        rows = records.selectExpr("*", f"{hashed}[partition % {tasks}] AS task", f"{_PLACE} AS place")
        ends = session.range(0, tasks, 1, 1).selectExpr(
            f"{hashed}[CAST(id AS INT)] AS task",
            f"{END} AS partition",
            f"{(1 << 63) - 1} AS place",
            "X'' AS key",
        )
        # By the value last, so that a repeat of the batch has equally ordered rows in the same order.
        by = ("place", "key", *batch.order, "value")
        columns = ["partition", "key", "value", *(["timestamp_ms"] if spec.store_kind.keeps_versions else [])]
        whole = rows.unionByName(ends, allowMissingColumns=True)
        return whole.repartition(tasks, "task").sortWithinPartitions(*by).select(*columns)

    def _target(self, spec: StoreSpec, batch: BatchId) -> Target:
        return Target(
            directory=str(self._changelog.directory),
            directory_id=self._changelog.directory_id,
            driver_host=socket.gethostname(),
            topic=spec.topic,
            batch=batch,
            timestamp_ms=None if spec.store_kind.keeps_versions else int(epoch_ms()),
            latest=spec.latest_by is not None,
            proofs=self._changelog.proofs(spec.topic),
        )

    def _repeats(self, spec: StoreSpec, batch: BatchId) -> bool:
        """Whether the log may have rows of this batch, or of a later one."""
        for partition in range(spec.partitions):
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            with naming(path):
                newest = newest_batch(path, batch.query_id, batch.writer)
            if newest is not None and newest >= batch.number:
                return True
        return False


def _append(rows: DataFrame, spec: StoreSpec, target: Target) -> set[int]:
    """Append rows, each partition's in a transaction; returns the partitions that have any."""
    written = refusing(spec, lambda: rows.mapInArrow(append_rows(target), "partition int").collect())
    return {row.partition for row in written}


def _hashed_to(session: SparkSession, tasks: int) -> list[int]:
    """For each of this many tasks, a number that Spark's hash shuffles to it."""
    # Of so many numbers, none at all is a task's with a chance of one in e^64.
    numbers = f"transform(sequence(0, {64 * tasks}), n -> pmod(hash(n), {tasks}))"
    [row] = session.sql(f"SELECT {numbers} AS tasks").collect()
    return [row.tasks.index(task) for task in range(tasks)]
