"""The sink: streaming queries' results, written to a changelog batch by batch."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pyspark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from forebay import partitioning
from forebay.changelog import Heartbeat, heartbeat_keys, open_changelog, record_headers
from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.errors import ChangelogUnreachable, SinkError
from forebay.partitioning import Murmur2Partitioner
from forebay.position import Position, encode_position, later_position, log_digest
from forebay.spark import batch_murmur2, executor
from forebay.spark.columns import Layout, lay_out
from forebay.spark.destinations import BatchId, open_destination
from forebay.spark.executor import partition_rows
from forebay.spark.heartbeats import HeartbeatListener
from forebay.topology import StoreSpec, Topology, load_topology

log = logging.getLogger(__name__)

_LEAST_SPARK = (4, 0)
_COMPACTION_INTERVAL_S = 600.0
_PATIENCE_S = 120.0
"""How long a batch waits for its log: as long as Kafka's own producers do (``delivery.timeout.ms``)."""
_PAUSE_S = 1.0
_BY_VALUE = (partitioning, batch_murmur2, heartbeat_keys, record_headers, sqlite_partition, executor)


_PLACED = (
    T.StructType()
    .add("slot", T.IntegerType())
    .add("partition", T.IntegerType())
    .add("key", T.BinaryType())
    .add("value", T.BinaryType())
    .add("timestamp_ms", T.LongType())
)


class Sink:
    """Writes streaming queries to the stores of a topology.

    ``topology`` is a path or a loaded topology, ``changelog`` a URL such as ``sqlite:///DIR`` or
    ``kafka://HOST:PORT,…``. Raises ``TopologyError``, ``SettingError`` or ``ChangelogError``; with
    ``create_topics`` off, ``TopicMissing`` if a topic does not exist.

        sink = Sink("topology.toml", changelog="sqlite:///var/lib/forebay/changelog")
        query = sink.write(delays, "carrier_delays", key="carrier").option("checkpointLocation", "…").start()
    """

    def __init__(self, topology: str | Path | Topology, *, changelog: str, create_topics: bool = True) -> None:
        if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < _LEAST_SPARK:
            raise SinkError(f"forebay needs Spark 4.0 or later; this is {pyspark.__version__}.")
        self.topology = topology if isinstance(topology, Topology) else load_topology(topology)
        self._changelog = open_changelog(changelog)
        self._destination = open_destination(self._changelog)
        for spec in self.topology.stores.values():
            # Others write those; a query that does needs them when it starts.
            if not spec.foreign:
                self._changelog.ensure(spec, create=create_topics)
        self._lock = threading.Lock()
        self._positions: dict[str, str] = {}
        self._listening: list[SparkSession] = []
        self._compaction_due = time.monotonic()
        self._compaction: threading.Thread | None = None

    def write(
        self,
        df: DataFrame,
        store: str,
        *,
        key: str | Sequence[str],
        value: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        delete: str | None = None,
        writer: str | None = None,
    ) -> SinkWriter:
        """A writer of ``df`` to a store; give it a checkpoint location and start it.

        ``key`` names the key's column or columns, ``value`` the columns of the value (all others by default),
        ``order_by`` the columns that determine which of a key's rows in one batch is the latest (for a versioned
        store, the one timestamp column from which a version is valid), ``delete`` a boolean column that marks
        tombstones. ``writer`` is the writer's name, by default the store's: two queries that write one store need
        different names. Raises ``SinkError`` naming the column or the store.
        """
        spec = self._spec(store)
        session = _classic_session(df)
        self._destination.check(session)
        if spec.value != "json":
            raise SinkError(f"{store!r} has the value codec {spec.value!r}; the sink writes 'json'.")
        if spec.stream_partitioner is None:
            raise SinkError(f"{store!r} has the partitioner 'unknown'; the sink needs to know where rows go.")
        if spec.foreign:
            self._changelog.ensure(spec, create=False)
        layout = lay_out(df, spec, key, value, order_by, delete)
        write = _Write(self, layout, writer or store, _Tasks(session, spec.partitions))
        self._listen(session)
        return SinkWriter(df, write)

    def position(self, store: str) -> str | None:
        """The position token of the last batch written to a store, None before the first.

        A read with it as ``min_position`` sees that batch. Raises ``SinkError`` for an unknown store.
        """
        return self._positions.get(self._spec(store).name)

    def _spec(self, store: str) -> StoreSpec:
        if store not in self.topology.stores:
            names = ", ".join(self.topology.stores)
            raise SinkError(f"There is no store {store!r} in the topology; there are {names}.")
        return self.topology.stores[store]

    def _listen(self, session: SparkSession) -> None:
        if session in self._listening:
            return
        # With the default, an idle stream's age would grow to 10 s.
        session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1000")
        session.streams.addListener(HeartbeatListener(self._beat, self._compact_now_and_then))
        self._listening.append(session)

    def _beat(self, query_id: str, as_of_ms: int, batch_id: int) -> None:
        write = _WRITES.get(query_id)
        if write is not None and write.sink is self:
            write.beat(query_id, as_of_ms, batch_id)

    def _wrote(self, spec: StoreSpec, position: Position) -> None:
        with self._lock:
            # Another query's newer batch may have been first.
            newest = later_position(self._positions.get(spec.name), encode_position(position))
            assert newest is not None
            self._positions[spec.name] = newest

    def _compact_now_and_then(self) -> None:
        # Kafka compacts its topics itself.
        if not isinstance(self._changelog, SqliteChangelog):
            return
        if time.monotonic() < self._compaction_due:
            return
        if self._compaction is None or not self._compaction.is_alive():
            self._compaction_due = time.monotonic() + _COMPACTION_INTERVAL_S
            # In a separate thread: heartbeats must not wait for it, but a job that ends soon does.
            self._compaction = threading.Thread(
                target=self._compact, args=(self._changelog,), name="forebay-compaction", daemon=False
            )
            self._compaction.start()

    def _compact(self, changelog: SqliteChangelog) -> None:
        for spec in self.topology.stores.values():
            try:
                compacted_ms = changelog.compacted_ms(spec.topic)
                # This or another job may have done it recently; checked once every interval.
                if compacted_ms is None or time.time() - compacted_ms / 1000 >= _COMPACTION_INTERVAL_S / 2:
                    changelog.compact(spec)
            except Exception:
                log.exception("the log of %s could not be compacted; it will be retried", spec.name)


@dataclass
class _Write:
    """One query's way into one store."""

    sink: Sink
    layout: Layout
    writer: str
    tasks: _Tasks
    as_of_ms: dict[str, int] = field(default_factory=dict)
    """By query: a new one of the same writer inherits nothing from the old one."""
    as_of_limit_ms: int | None = None
    """When its query was started, if it asks its sources for their offsets only then."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spec(self) -> StoreSpec:
        """The store written to."""
        return self.layout.spec

    def batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, then a heartbeat to every partition; raises ``SinkError``."""
        session = df.sparkSession
        query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query_id is None:
            raise SinkError("The sink writes streaming queries only; use sink.write(...).start().")
        _WRITES[query_id] = self
        partitioner = self.spec.stream_partitioner
        vectorised = isinstance(partitioner, Murmur2Partitioner)
        slots = self.tasks.slots()
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
        if self.sink._destination.claims_first:
            self._beat_patiently(query_id, batch_id - 1)
        self.sink._destination.write(rows, self.spec, BatchId(query_id, batch_id, self.writer, ordered))
        self._beat_patiently(query_id, batch_id)

    def _beat_patiently(self, query_id: str, batch_id: int) -> None:
        """A batch's heartbeat: a short outage of the brokers must not end the query."""
        begun, told = time.monotonic(), False
        while True:
            try:
                return self.beat(query_id, None, batch_id)
            except ChangelogUnreachable as error:
                if time.monotonic() - begun > _PATIENCE_S:
                    raise
                if not told:
                    log.warning("%s The batch waits for it.", error)
                told = True
                time.sleep(_PAUSE_S)

    def beat(self, query_id: str, as_of_ms: int | None, batch_id: int) -> None:
        """Append a heartbeat to every partition, and record the log's position after it.

        ``as_of_ms`` is None if it did not advance. Raises ``ChangelogError``.
        """
        with self._lock:
            known = self.as_of_ms.get(query_id)
            if as_of_ms is not None:
                as_of_ms = as_of_ms if self.as_of_limit_ms is None else min(as_of_ms, self.as_of_limit_ms)
                known = as_of_ms if known is None else max(as_of_ms, known)
            changelog = self.sink._changelog
            offsets = changelog.append_heartbeat(
                self.spec.topic,
                writer=self.writer,
                query_id=query_id,
                value=Heartbeat(known, query_id, batch_id).value(),
            )
            if known is not None:
                self.as_of_ms[query_id] = known
            digest = log_digest(changelog.identity(self.spec.topic))
            self.sink._wrote(self.spec, Position(digest, offsets))


_WRITES: dict[str, _Write] = {}
"""By query, the newest write: if a query was started again with another sink, heartbeats of the first one's would
supersede it."""


class SinkWriter(DataStreamWriter):
    """Spark's own writer, set up for the sink: update mode (append for session stores), named by its writer."""

    def __init__(self, df: DataFrame, write: _Write) -> None:
        super().__init__(df)
        self._write_to = write
        self._available_now = False
        session_store = write.spec.kind == "session"
        self.queryName(write.writer)
        self.outputMode("append" if session_store else "update")
        super().foreachBatch(write.batch)

    @property
    def store(self) -> str:
        """The store written to."""
        return self._write_to.spec.name

    def outputMode(self, outputMode: str) -> SinkWriter:
        """Update or append; complete mode is refused with ``SinkError``."""
        if outputMode.lower() not in ("update", "append"):
            raise SinkError(
                f"{self._write_to.spec.name!r}: the output mode {outputMode!r} would write every key in every "
                "batch and never report deletions; use 'update' or 'append'."
            )
        super().outputMode(outputMode)
        return self

    def foreachBatch(self, func: Any) -> NoReturn:
        """Refused with ``SinkError``: the sink is what each batch goes to."""
        raise self._elsewhere("foreachBatch")

    def foreach(self, f: Any) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("foreach")

    def format(self, source: str) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("format")

    def toTable(self, *args: Any, **options: Any) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("toTable")

    def _elsewhere(self, method: str) -> SinkError:
        return SinkError(
            f"{self.store!r}: after {method}() the query would no longer write to the store. Start another query "
            "for it."
        )

    def trigger(self, *args: Any, **options: Any) -> SinkWriter:
        """The query's trigger, as for Spark's own writer."""
        super().trigger(*args, **options)
        self._available_now = bool(options.get("availableNow"))
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, as Spark's own writer does."""
        if path is not None or format is not None:
            raise self._elsewhere("start(path, format)")
        if outputMode is not None:
            self.outputMode(outputMode)
        self._write_to.as_of_limit_ms = time.time_ns() // 1_000_000 if self._available_now else None
        query = super().start(None, None, None, partitionBy, queryName, **options)
        _WRITES[str(query.id)] = self._write_to
        return query


def _classic_session(df: DataFrame) -> SparkSession:
    """The DataFrame's session; Python workers on this machine are set to this interpreter."""
    session = df.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise SinkError("The sink needs a classic Spark session: Spark Connect has no foreachBatch on the driver.")
    if not df.isStreaming:
        raise SinkError("The sink writes streaming DataFrames; this one is not streaming.")
    for module in _BY_VALUE:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    context = session.sparkContext
    if (context.master or "").startswith("local"):
        context.pythonExec = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return session


class _Tasks:
    """Which task writes which partitions. There are no more tasks than cores, since each costs some 50 ms."""

    def __init__(self, session: SparkSession, partitions: int) -> None:
        self._session = session
        self._partitions = partitions
        self._slots: tuple[int, ...] = ()

    def slots(self) -> tuple[int, ...]:
        """For each partition, a number that Spark's hash shuffles to the partition's task."""
        count = min(self._partitions, self._session.sparkContext.defaultParallelism)
        if len(set(self._slots)) != count:
            by_task = _slots(self._session, count)
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
