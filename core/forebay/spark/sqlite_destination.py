"""How Spark writes a SQLite changelog: its tasks do, on this machine."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession

from forebay.changelog.sqlite.batches import differs, newest_batch, rows_of_batch
from forebay.changelog.sqlite.changelog import SqliteChangelog, naming
from forebay.errors import SinkError
from forebay.spark.destinations import BatchId, refusing
from forebay.spark.executor import Batches, Target, write_rows
from forebay.spark.run_directories import RunDirectories
from forebay.spark.sorted_runs import RunPart, append_parts, append_runs, by_partition, write_runs
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition

_WRITTEN = "partition int, row_count bigint, next_offset bigint"
_RUN_PARTS = "path string, partition int, first_row bigint, row_count bigint"
MOST_ROWS_HERE = 20_000
"""Rows that the driver appends itself. Tasks of Spark's that append more take longer to start than that."""
_THREADS_HERE = 4


class SqliteDestination:
    """One task writes a partition, its rows and marker in one transaction: a repeated batch changes nothing."""

    claims_first = False
    """The rows' own transaction confirms it."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._run_directories = RunDirectories(changelog.directory)
        self._newest: dict[tuple[str, str], int] = {}
        """By query and topic, the newest batch of which some rows may be in the log."""

    def check(self, session: SparkSession) -> None:
        """Any session will do; executors elsewhere notice it themselves and refuse."""

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""
        written = rows.mapInArrow(write_rows(self._target(spec, batch)), _WRITTEN)
        with self._only_repeats(spec, batch) as has_rows:
            has_rows |= {row.partition for row in refusing(spec, written.collect)}

    def write_unordered(
        self, rows: DataFrame, place: Callable[[Batches], Batches], spec: StoreSpec, batch: BatchId
    ) -> None:
        """Write all rows by way of sorted runs; raises ``SinkError``."""
        target = self._target(spec, batch)
        with self._run_directories.one(batch.query_id, batch.writer) as directory:
            written = rows.mapInArrow(write_runs(target, str(directory), place), _RUN_PARTS)
            parts = [RunPart(*row) for row in refusing(spec, written.collect)]
            with self._only_repeats(spec, batch) as has_rows:
                refusing(spec, lambda: self._append(parts, target, rows.sparkSession))
                has_rows |= {part.partition for part in parts}

    def _append(self, parts: list[RunPart], target: Target, session: SparkSession) -> None:
        """Append the rows of all runs: few of them here, which starts no tasks."""
        if sum(part.row_count for part in parts) <= MOST_ROWS_HERE:
            with ThreadPoolExecutor(_THREADS_HERE) as pool:
                for _ in pool.map(lambda each: append_parts(target, *each), by_partition(parts).items()):
                    pass
            return
        tasks = session.sparkContext.defaultParallelism
        by_task = [[part for part in parts if part.partition % tasks == task] for task in range(tasks)]
        numbers = session.range(0, tasks, 1, tasks)
        numbers.mapInArrow(append_runs(target, by_task), _WRITTEN).collect()

    def _target(self, spec: StoreSpec, batch: BatchId) -> Target:
        return Target(
            directory=str(self._changelog.directory),
            directory_id=self._changelog.directory_id,
            driver_host=socket.gethostname(),
            topic=spec.topic,
            writer=batch.writer,
            query_id=batch.query_id,
            batch_id=batch.number,
            write_name=batch.writer,
            ordered=batch.ordered,
            versioned=spec.store_kind.keeps_versions,
            latest=spec.latest_by is not None,
        )

    @contextlib.contextmanager
    def _only_repeats(self, spec: StoreSpec, batch: BatchId) -> Iterator[set[int]]:
        """While a batch is written: yields a set for its partitions, which a repeat's must be among.

        Raises ``SinkError`` otherwise.
        """
        repeats = batch.number <= self._newest_batch(spec, batch)
        self._newest[batch.query_id, spec.topic] = max(batch.number, self._newest_batch(spec, batch))
        has_rows: set[int] = set()
        yield has_rows
        if repeats:
            self._check_absent(spec, batch, set(range(spec.partitions)) - has_rows)

    def _newest_batch(self, spec: StoreSpec, batch: BatchId) -> int:
        """The newest batch of this query that was begun; after a restart, that any partition has rows of."""
        known = self._newest.get((batch.query_id, spec.topic))
        if known is not None:
            return known
        newest = -1
        for partition in range(spec.partitions):
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            with naming(path):
                found = newest_batch(path, batch.query_id, batch.writer)
            newest = newest if found is None else max(newest, found)
        return newest

    def _check_absent(self, spec: StoreSpec, batch: BatchId, partitions: set[int]) -> None:
        """Raise ``SinkError`` if an earlier attempt wrote rows where this one has none."""
        for partition in sorted(partitions):
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            with naming(path):
                before = rows_of_batch(path, batch.query_id, batch.writer, batch.number)
            if before:
                raise SinkError(f"{spec.name}: {differs(path, batch.writer, batch.number, before, 0)}")
