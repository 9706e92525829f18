"""How Spark writes a SQLite changelog: its tasks do, on this machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite.batches import differs, newest_batch, rows_of_batch
from forebay_changelog.sqlite.changelog import SqliteChangelog, naming
from forebay_spark.destinations import BatchId, refusing
from forebay_spark.executor import Batches, Target, write_rows
from forebay_spark.sorted_runs import RunPart, append_parts, append_runs, by_partition, write_runs

_WRITTEN = "partition int, row_count bigint, next_offset bigint, is_new boolean"
_RUN_PARTS = "path string, partition int, first_row bigint, row_count bigint"
MAX_ROWS_HERE = 20_000
"""Rows that the driver appends itself. Tasks of Spark's that append more take longer to start than that."""
_THREADS_HERE = 4
Append = Callable[[Target], dict[int, bool]]
"""Appends a batch's rows, each partition's in a transaction; returns whether those of each partition are new."""


class RunDirectories:
    """Directories of batches below ``~runs/`` of a changelog, each removed with its batch."""

    def __init__(self, changelog: Path) -> None:
        # No topic is called so.
        self._root = changelog / "~runs"
        self._swept: set[Path] = set()

    @contextlib.contextmanager
    def one(self, query_id: str, writer: str) -> Iterator[Path]:
        """A directory for one batch of a query; what a process that was killed has left of that query is removed.

        It is as open as the changelog's own directory.
        """
        parent = self._root / quote(query_id, safe="") / quote(writer, safe="")
        if parent not in self._swept:
            shutil.rmtree(parent, ignore_errors=True)
            self._swept.add(parent)
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="batch-", dir=parent))
        directory.chmod(self._root.parent.stat().st_mode & 0o777)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


class SqliteDestination:
    """One task writes a partition, its rows and marker in one transaction: a repeated batch changes nothing."""

    claims_first = False
    """The rows' own transaction confirms it."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._run_directories = RunDirectories(changelog.directory)
        self._newest: dict[tuple[str, str, str], int] = {}
        """By query, topic and writer, the newest batch of which some rows may be in the log."""

    def check(self, session: SparkSession) -> None:
        """Any session will do; executors elsewhere notice it themselves and refuse."""

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""

        def append(target: Target) -> dict[int, bool]:
            return {row.partition: row.is_new for row in rows.mapInArrow(write_rows(target), _WRITTEN).collect()}

        if not self._repeats(spec, batch):
            self._append_once(append, spec, batch)
            return
        # What is compared is what is written, even where the query would compute other rows each time.
        rows.persist()
        try:
            self._replace(append, spec, batch)
        finally:
            rows.unpersist()

    def write_unordered(
        self, rows: DataFrame, place: Callable[[Batches], Batches], spec: StoreSpec, batch: BatchId
    ) -> None:
        """Write all rows by way of sorted runs; raises ``SinkError``."""
        with self._run_directories.one(batch.query_id, batch.writer) as directory:
            runs = rows.mapInArrow(write_runs(self._target(spec, batch), str(directory), place), _RUN_PARTS)
            parts = [RunPart(*row) for row in refusing(spec, runs.collect)]

            def append(target: Target) -> dict[int, bool]:
                return self._append(parts, target, rows.sparkSession)

            (self._replace if self._repeats(spec, batch) else self._append_once)(append, spec, batch)

    def _append_once(self, append: Append, spec: StoreSpec, batch: BatchId) -> None:
        """Append a batch of which the log has nothing."""
        self._newest[batch.query_id, spec.topic, batch.writer] = batch.number
        refusing(spec, lambda: append(self._target(spec, batch)))

    def _replace(self, append: Append, spec: StoreSpec, batch: BatchId) -> None:
        """Append a batch that is repeated, unless one of its partitions refuses: then none is written.

        Why all are compared first: a partition that took other rows would refuse those of the first attempt.
        """
        target = self._target(spec, batch)
        are_new = refusing(spec, lambda: append(replace(target, dry_run=True)))
        self._check_absent(spec, batch, set(range(spec.partitions)) - are_new.keys())
        if any(are_new.values()):
            refusing(spec, lambda: append(target))

    def _append(self, parts: list[RunPart], target: Target, session: SparkSession) -> dict[int, bool]:
        """Append the rows of all runs: few of them here, which starts no tasks."""
        if sum(part.row_count for part in parts) <= MAX_ROWS_HERE:
            grouped = by_partition(parts)
            with ThreadPoolExecutor(_THREADS_HERE) as pool:
                written = list(pool.map(lambda each: append_parts(target, *each), grouped.items()))
            return {
                partition: batch["is_new"][0].as_py() for partition, batch in zip(grouped, written, strict=True)
            }
        tasks = session.sparkContext.defaultParallelism
        by_task = [[part for part in parts if part.partition % tasks == task] for task in range(tasks)]
        appended = session.range(0, tasks, 1, tasks).mapInArrow(append_runs(target, by_task), _WRITTEN)
        return {row.partition: row.is_new for row in appended.collect()}

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
            is_fill=batch.is_fill,
            identities=batch.identities,
            proofs=self._changelog.proofs(spec.topic),
        )

    def _repeats(self, spec: StoreSpec, batch: BatchId) -> bool:
        """Whether the log may have rows of this batch, or of a later one."""
        return batch.number <= self._newest_batch(spec, batch)

    def _newest_batch(self, spec: StoreSpec, batch: BatchId) -> int:
        """The newest batch of this query that was begun; after a restart, that any partition has rows of."""
        known = self._newest.get((batch.query_id, spec.topic, batch.writer))
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
                refusal = differs(path, batch.writer, batch.number, before, 0, batch.is_fill)
                raise SinkError(f"{spec.name}: {refusal}")
