"""How a query's micro-batches get into the log of a store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from forebay.clock import epoch_ms
from forebay.errors import ForebayError, SinkError
from forebay.partitioning import Murmur2Partitioner, StreamPartitioner
from forebay_spark.columns import Layout
from forebay_spark.destinations import BatchId, UnorderedDestination
from forebay_spark.executor import KeyColumns, partition_rows, place_rows
from forebay_spark.query_runs import QUERY_RUNS, QueryRun
from forebay_spark.store_writer import StoreWriter

log = logging.getLogger(__name__)
_PLACED = (
    T.StructType()
    .add("slot", T.IntegerType())
    .add("partition", T.IntegerType())
    .add("key", T.BinaryType())
    .add("value", T.BinaryType())
    .add("timestamp_ms", T.LongType())
)


class Slots:
    """Which task writes which partitions: no more tasks than cores, since each costs some 50 ms."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._slots: tuple[int, ...] = ()

    def by_partition(self, session: SparkSession) -> tuple[int, ...]:
        """For each partition, a number that Spark's hash shuffles to the partition's task."""
        count = min(self._partitions, session.sparkContext.defaultParallelism)
        if len(set(self._slots)) != count:
            by_task = _slots(session, count)
            self._slots = tuple(by_task[partition % count] for partition in range(self._partitions))
        return self._slots


def _slots(session: SparkSession, tasks: int) -> tuple[int, ...]:
    """For each of this many tasks, a number that Spark's hash shuffles to it."""
    found: dict[int, int] = {}
    first, count = 0, 8 * tasks + 64
    while len(found) < tasks:
        rows = session.range(first, first + count).selectExpr(
            "cast(id as int) as slot", f"pmod(hash(cast(id as int)), {tasks}) as task"
        )
        for row in rows.collect():
            found.setdefault(row.task, row.slot)
        first += count
    return tuple(found[task] for task in range(tasks))


@dataclass
class Write:
    """One query's way into one store."""

    writer: StoreWriter
    layout: Layout
    slots: Slots
    is_fill: bool = False

    def batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, then a heartbeat to every partition; raises ``SinkError``."""
        run, _ = current_run(df)
        with attempt(run, self.writer, batch_id):
            self.append(df, run.query_id, batch_id)

    def append(self, df: DataFrame, query_id: str, batch_id: int) -> None:
        """The part of ``batch`` that a batch may fail at."""
        writer = self.writer
        writer.patiently(lambda: writer.check_continuity(query_id, continued=batch_id > 0))
        if writer.log.destination.claims_first:
            writer.patiently(lambda: writer.beat(query_id, None, batch_id - 1))
        if isinstance(writer.log.destination, UnorderedDestination) and not self.layout.order_by:
            rows, batch = self.layout.encode(df), self._batch_id(query_id, batch_id)
            writer.log.destination.write_unordered(rows, place_rows(*self._placing()), writer.spec, batch)
            writer.patiently(lambda: writer.beat(query_id, None, batch_id))
        else:
            self.append_placed(self.place(df), query_id, batch_id)

    def place(self, df: DataFrame) -> DataFrame:
        """The records of a DataFrame's rows, with the partition of each, and the slot of its task."""
        slots = self.slots.by_partition(df.sparkSession)
        order = [T.StructField(name, kind) for name, kind in self.layout.order_types.items()]
        key_columns, partitions, partitioner, timestamp_ms = self._placing()
        place = partition_rows(key_columns, partitions, slots, partitioner, timestamp_ms)
        return self.layout.encode(df).mapInArrow(place, T.StructType(_PLACED.fields + order))

    def _placing(self) -> tuple[KeyColumns, int, StreamPartitioner | None, int | None]:
        """The arguments of ``place_rows``."""
        spec, partitioner = self.writer.spec, self.writer.spec.stream_partitioner
        vectorised = isinstance(partitioner, Murmur2Partitioner)
        timestamp_ms = None if self.layout.timed else int(epoch_ms())
        return self.layout.key_columns, spec.partitions, None if vectorised else partitioner, timestamp_ms

    def _batch_id(self, query_id: str, batch_id: int) -> BatchId:
        ordered, identities = bool(self.layout.order_by), self.writer.identities(query_id)
        return BatchId(query_id, batch_id, self.writer.name, ordered, self.is_fill, identities)

    def append_placed(self, placed: DataFrame, query_id: str, batch_id: int) -> None:
        """Write what ``place`` returned, then a heartbeat to every partition."""
        writer, slots = self.writer, self.slots.by_partition(placed.sparkSession)
        # By the value last, so that a repeat of the batch has equally ordered rows in the same order.
        by = ("partition", "key", *self.layout.order_types, "value")
        rows = placed.repartition(len(set(slots)), "slot").sortWithinPartitions(*by)
        writer.log.destination.write(rows, writer.spec, self._batch_id(query_id, batch_id))
        writer.patiently(lambda: writer.beat(query_id, None, batch_id))


@contextlib.contextmanager
def attempt(run: QueryRun, writer: StoreWriter, batch_id: int) -> Iterator[None]:
    """An attempt at a run's batch; raises ``SinkError`` if it was already written, or an earlier one was not."""
    store = writer.spec.name
    run.writers[writer.output] = writer
    try:
        if run.written.get(writer.output) == batch_id:
            raise SinkError(
                f"{store}: batch {batch_id} was already written under the writer {writer.name!r}, and two writes "
                "of one batch would replace each other. Unite the rows, or give each its own writer=."
            )
        failed = run.failed.get(writer.output)
        if failed is not None and failed < batch_id:
            raise SinkError(
                f"{store}: batch {failed} was not written, and batch {batch_id} would leave its rows out. Let the "
                "error end the query, so that Spark repeats that batch when it is started again."
            )
        yield
    except BaseException as error:
        run.failed.setdefault(writer.output, batch_id)
        if isinstance(error, ForebayError):
            # Spark repeats it at the end of a traceback of its own.
            log.error("batch %d of %s was refused: %s", batch_id, store, error)
        raise
    run.written[writer.output] = batch_id
    run.failed.pop(writer.output, None)


def current_run(df: DataFrame) -> tuple[QueryRun, bool]:
    """The run whose micro-batch is being written, and whether it is new; raises ``SinkError`` outside of one."""
    context = df.sparkSession.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise SinkError(
            "The sink writes the micro-batches of streaming queries: use sink.write(…).start(), or "
            "sink.write_batch(…) within foreachBatch."
        )
    # Spark names the job group of a run by its id.
    return QUERY_RUNS.enter(query_id, context.getLocalProperty("spark.jobGroup.id") or "")
