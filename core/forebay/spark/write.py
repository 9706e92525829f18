"""How a query's micro-batches and heartbeats get into the log of a store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from forebay.changelog import Changelog, Heartbeat
from forebay.errors import ChangelogUnreachable, ForebayError, SinkError
from forebay.partitioning import Murmur2Partitioner
from forebay.position import Position, encode_position, later_position, log_digest
from forebay.spark.columns import Layout
from forebay.spark.destinations import BatchId, open_destination
from forebay.spark.executor import partition_rows
from forebay.spark.query_runs import QUERY_RUNS, Output, QueryRun
from forebay.spark.slots import Slots
from forebay.topology import StoreSpec

log = logging.getLogger(__name__)

_PATIENCE_S = 120.0
"""How long a batch waits for its log: as long as Kafka's own producers do (``delivery.timeout.ms``)."""
_PAUSE_S = 1.0
_PLACED = (
    T.StructType()
    .add("slot", T.IntegerType())
    .add("partition", T.IntegerType())
    .add("key", T.BinaryType())
    .add("value", T.BinaryType())
    .add("timestamp_ms", T.LongType())
)


class SinkLog:
    """The changelog that a sink writes to, and how far it has written each store's."""

    def __init__(self, changelog: Changelog) -> None:
        self.changelog = changelog
        self.destination = open_destination(changelog)
        self._lock = threading.Lock()
        self._positions: dict[str, str] = {}

    def position(self, store: str) -> str | None:
        """The token of the end of the last batch written to a store, None before the first."""
        return self._positions.get(store)

    def wrote(self, store: str, position: Position) -> None:
        """A batch of a store ends at a position; another query's newer batch may have been first."""
        with self._lock:
            newest = later_position(self._positions.get(store), encode_position(position))
            assert newest is not None
            self._positions[store] = newest


@dataclass
class Write:
    """One query's way into one store."""

    log: SinkLog
    layout: Layout
    writer: str
    slots: Slots
    as_of_ms: dict[str, int] = field(default_factory=dict)
    """By query: a new one of the same writer inherits nothing from the old one."""
    begins_here: bool = False
    """Whether a query may go on from a checkpoint into a log that has nothing of it."""
    _logs: dict[str, str] = field(default_factory=dict)
    """By query, the identity of the log that it goes on in."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spec(self) -> StoreSpec:
        """The store written to."""
        return self.layout.spec

    @property
    def output(self) -> Output:
        """What identifies it among all that this process writes."""
        return self.log.changelog.url, self.spec.topic, self.writer

    def batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, then a heartbeat to every partition; raises ``SinkError``."""
        run, _ = current_run(df)
        self.write(df, run, batch_id)

    def write(self, df: DataFrame, run: QueryRun, batch_id: int) -> None:
        """Write one micro-batch of a run; see ``batch``."""
        run.writes[self.output] = self
        try:
            self._check_turn(run, batch_id)
            self._write(df, run.query_id, batch_id)
        except BaseException as error:
            run.failed.setdefault(self.output, batch_id)
            if isinstance(error, ForebayError):
                # Spark repeats it at the end of a traceback of its own.
                log.error("batch %d of %s was refused: %s", batch_id, self.spec.name, error)
            raise
        run.written[self.output] = batch_id
        run.failed.pop(self.output, None)

    def _check_turn(self, run: QueryRun, batch_id: int) -> None:
        """Refuse a batch that was already written, and one after another that failed."""
        if run.written.get(self.output) == batch_id:
            raise SinkError(
                f"{self.spec.name}: batch {batch_id} was already written under the writer {self.writer!r}, and "
                "two writes of one batch would replace each other. Unite the rows, or give each its own writer=."
            )
        failed = run.failed.get(self.output)
        if failed is not None and failed < batch_id:
            raise SinkError(
                f"{self.spec.name}: batch {failed} was not written, and batch {batch_id} would leave its rows "
                "out. Let the error end the query, so that Spark repeats that batch when it is started again."
            )

    def _write(self, df: DataFrame, query_id: str, batch_id: int) -> None:
        self._patiently(lambda: self.check_continuity(query_id, continued=batch_id > 0))
        partitioner = self.spec.stream_partitioner
        vectorised = isinstance(partitioner, Murmur2Partitioner)
        slots = self.slots.by_partition(df.sparkSession)
        order = self.layout.order_types
        columns = T.StructType(_PLACED.fields + [T.StructField(name, kind) for name, kind in order.items()])
        placed = self.layout.encode(df).mapInArrow(
            partition_rows(
                self.layout.key_columns, self.spec.partitions, slots, None if vectorised else partitioner
            ),
            columns,
        )
        # By the value last, so that a repeat of the batch has equally ordered rows in the same order.
        by = ("partition", "key", *order, "value")
        rows = placed.repartition(len(set(slots)), "slot").sortWithinPartitions(*by)
        ordered = bool(self.layout.order_by)
        if self.log.destination.claims_first:
            self._patiently(lambda: self.beat(query_id, None, batch_id - 1))
        self.log.destination.write(rows, self.spec, BatchId(query_id, batch_id, self.writer, ordered))
        self._patiently(lambda: self.beat(query_id, None, batch_id))

    def check_continuity(self, query_id: str, *, continued: bool) -> None:
        """Raise ``SinkError`` if the log lacks what a query wrote before: unchanged keys would be missing.

        ``continued`` says whether the query has an earlier batch. Raises ``ChangelogError``.
        """
        if self.begins_here:
            return
        topic, changelog = self.spec.topic, self.log.changelog
        identity, known = changelog.identity(topic), self._logs.get(query_id)
        if known is None and continued:
            if changelog.has_written(topic, writer=self.writer, query_id=query_id) is False:
                raise self._discontinued(
                    f"query {query_id} goes on from its checkpoint, but the log {topic!r} has nothing of it under "
                    f"the writer {self.writer!r}"
                )
        elif known is not None and known != identity:
            raise self._discontinued(f"the log {topic!r} was reset or replaced while query {query_id} was running")
        self._logs[query_id] = identity

    def _discontinued(self, finding: str) -> SinkError:
        return SinkError(
            f"{self.spec.name}: {finding}. Keys that do not change would be missing, and no lag would show it. "
            "Start the query with a new checkpoint and its source from the beginning, or with "
            "store_begins_here=True if the store is to contain only what changes from now on."
        )

    def _patiently(self, act: Callable[[], None]) -> None:
        """Act for a batch: a short outage of the brokers must not end the query."""
        begun, told = time.monotonic(), False
        while True:
            try:
                return act()
            except ChangelogUnreachable as error:
                if time.monotonic() - begun > _PATIENCE_S:
                    raise
                if not told:
                    log.warning("%s The batch waits for it.", error)
                told = True
                time.sleep(_PAUSE_S)

    def beat(self, query_id: str, as_of_ms: int | None, batch_id: int) -> None:
        """Append a heartbeat to every partition, and record the log's position after it.

        ``as_of_ms`` is None if it did not advance. Raises ``ChangelogError``, and ``SinkError`` if the log was
        replaced.
        """
        with self._lock:
            self.check_continuity(query_id, continued=False)
            known = self.as_of_ms.get(query_id)
            if as_of_ms is not None:
                known = as_of_ms if known is None else max(as_of_ms, known)
            changelog = self.log.changelog
            offsets = changelog.append_heartbeat(
                self.spec.topic,
                writer=self.writer,
                query_id=query_id,
                value=Heartbeat(known, query_id, batch_id).value(),
            )
            if known is not None:
                self.as_of_ms[query_id] = known
            digest = log_digest(changelog.identity(self.spec.topic))
            self.log.wrote(self.spec.name, Position(digest, offsets))


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


def beat_run(run: QueryRun, log: SinkLog, progress_ms: int, batch_id: int) -> None:
    """Append heartbeats to all that a run writes to a log, after a batch (-1: idle) that left no backlog.

    None to what lacks a batch. Raises the first error, after trying all.
    """
    as_of_ms: int | None = progress_ms
    if run.as_of_limit_ms is not None:
        as_of_ms = min(progress_ms, run.as_of_limit_ms) if run.as_of_limit_ms >= 0 else None
    errors = []
    for output, write in list(run.writes.items()):
        failed = run.failed.get(output)
        if write.log is log and (failed is None or 0 <= batch_id < failed):
            try:
                write.beat(run.query_id, as_of_ms, batch_id)
            except ForebayError as error:
                errors.append(error)
    if errors:
        raise errors[0]
