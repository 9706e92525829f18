"""How Spark writes a SQLite changelog: its tasks do, on this machine."""

from __future__ import annotations

import socket

from pyspark.sql import DataFrame, SparkSession

from forebay.changelog.sqlite.changelog import SqliteChangelog, naming
from forebay.changelog.sqlite.partition import differs, newest_batch, rows_of_batch
from forebay.errors import SinkError
from forebay.spark.destinations import BatchId, refusing
from forebay.spark.executor import Target, write_rows
from forebay.task_ids import TopicPartition
from forebay.topology import StoreSpec


class SqliteDestination:
    """One task writes a partition, its rows and marker in one transaction: a repeated batch changes nothing."""

    claims_first = False
    """The rows' own transaction confirms it."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._newest: dict[tuple[str, str], int] = {}
        """By query and topic, the newest batch of which some rows may be in the log."""

    def check(self, session: SparkSession) -> None:
        """Any session will do; executors elsewhere notice it themselves and refuse."""

    def write(self, rows: DataFrame, spec: StoreSpec, batch: BatchId) -> None:
        """Write all rows; raises ``SinkError``."""
        target = Target(
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
        written = rows.mapInArrow(write_rows(target), "partition int, row_count bigint, next_offset bigint")
        repeats = batch.number <= self._newest_batch(spec, batch)
        self._newest[batch.query_id, spec.topic] = max(batch.number, self._newest_batch(spec, batch))
        has_rows = {row.partition for row in refusing(spec, written.collect)}
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
