"""The sink: streaming queries' results, written to a changelog batch by batch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Unpack, get_args

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from forebay import record_orders
from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog import open_changelog, record_headers
from forebay_changelog.sqlite import batches, checksums, log_file, writers
from forebay_spark import executor
from forebay_spark.columns import ColumnArguments, Selection, lay_out
from forebay_spark.fill import FILL_PREFIX, FillResult, IfWritten, fill
from forebay_spark.heartbeats import follow, listen_to
from forebay_spark.kind_columns import columns_of
from forebay_spark.plan import has_one_row_a_key
from forebay_spark.records import RecordColumns, kafka_records
from forebay_spark.sink_writer import SinkWriter
from forebay_spark.store_writer import SinkLog, StoreWriter, query_run
from forebay_spark.write import Write, attempt

_BY_VALUE = (record_headers, record_orders, checksums, log_file, writers, batches, executor)


class Sink:
    """Writes streaming queries to the stores of a topology.

    ``topology`` is a path or a loaded topology, ``changelog`` a URL such as ``sqlite:///DIR`` or
    ``kafka://HOST:PORT,…``. Raises ``TopologyError``, ``SettingError`` or ``ChangelogError``; with
    ``create_topics`` off, ``TopicMissing`` if a topic does not exist.

        sink = Sink("topology.toml", changelog="sqlite:///var/lib/forebay/changelog")
        query = sink.write(delays, "carrier_delays", key="carrier").option("checkpointLocation", "…").start()
    """

    def __init__(self, topology: str | Path | Topology, *, changelog: str, create_topics: bool = True) -> None:
        self.topology = topology if isinstance(topology, Topology) else load_topology(topology)
        self._changelog = open_changelog(changelog)
        self._log = SinkLog(self._changelog, self.topology.stores.values())
        for spec in self.topology.stores.values():
            # Others write those; a query that does needs them when it starts.
            if not spec.external:
                self._changelog.ensure(spec, create=create_topics)
        self._batch_writers: dict[tuple[str, str], StoreWriter] = {}
        self._batch_writes: dict[tuple[str, T.StructType, Selection, str], Write] = {}
        """For functions of the user's own: laid out once for each schema."""
        session = SparkSession.getActiveSession()
        if session is not None and hasattr(session, "_jsparkSession"):
            # Queries with a function of the user's own take their settings, and report themselves, at their start.
            listen_to(session._jsparkSession)

    def write(
        self,
        df: DataFrame,
        store: str,
        *,
        writer: str | None = None,
        store_begins_here: bool = False,
        bootstrap: bool = False,
        **columns: Unpack[ColumnArguments],
    ) -> SinkWriter:
        """A writer of ``df`` to a store; give it a checkpoint location and start it.

        ``columns`` are those of ``ColumnArguments``. ``writer`` is the writer's name, by default the store's: two
        queries that write one store need different names. ``store_begins_here`` lets a query go on from its
        checkpoint into a log that has nothing of it: keys that do not change stay missing. With ``bootstrap`` the
        log is filled from that checkpoint first, by the store's ``spark_state``. Raises ``SinkError`` naming the
        column or the store.
        """
        session = _classic_session(df)
        if not df.isStreaming:
            raise SinkError("The sink writes streaming DataFrames; this one is not streaming.")
        spec = self._writable(store, session)
        layout = lay_out(df, spec, Selection.of(columns))
        listen_to(session._jsparkSession)
        store_writer = StoreWriter(self._log, spec, writer or store, store_begins_here, bootstrap)
        is_distinct = has_one_row_a_key(df, {*layout.chosen.key, layout.window, spec.latest_by})
        return SinkWriter(df, Write(store_writer, RecordColumns(layout, session), is_distinct))

    def write_batch(
        self,
        df: DataFrame,
        batch_id: int,
        store: str,
        *,
        writer: str | None = None,
        store_begins_here: bool = False,
        **columns: Unpack[ColumnArguments],
    ) -> None:
        """Write a micro-batch to a store, from a ``foreachBatch`` function that also does other things.

        The arguments are those of ``write``, without ``bootstrap``. A batch of which one output failed is repeated
        by the query, which changes nothing here. Heartbeats come with the query's progress, as for ``write``.
        Raises ``SinkError``, which must end the query: after a batch that was left out, the store takes no other.
        """
        session, spec, chosen = _classic_session(df), self._spec(store), Selection.of(columns)
        store_writer = self._batch_writers.setdefault(
            (store, writer or store), StoreWriter(self._log, spec, writer or store)
        )
        store_writer.begins_here = store_begins_here
        with attempt(session, store_writer, batch_id) as query_id:
            write = self._batch_writes.get(form := (store, df.schema, chosen, store_writer.name))
            if write is None:
                layout = lay_out(df, self._writable(store, session), chosen)
                write = self._batch_writes[form] = Write(store_writer, RecordColumns(layout, session))
            write.append(write.records.of(df), query_id, batch_id)

    def fill(
        self,
        df: DataFrame,
        store: str,
        *,
        name: str,
        snapshot: bool = False,
        max_deleted: int | None = None,
        if_written: IfWritten = "raise",
        **columns: Unpack[ColumnArguments],
    ) -> FillResult:
        """Write a batch DataFrame to a store: what its stream lacks, or a correction.

            sink.fill(customers, "customers", key="customer", name="customers-2026-08-01")

        With ``snapshot`` the store then contains what the DataFrame has: other keys of the log are deleted, which
        are collected in the driver's memory, ``max_deleted`` of them at most. Without that number, a DataFrame
        without rows empties no store. ``columns`` are those of ``write``.

        ``name`` is what is filled in. One that failed is continued by the next call of that name. Once it is
        through, another call is refused, or does nothing with ``if_written="skip"``. Returns what was done.

        The rows replace those of a stream that writes the same keys meanwhile, or are replaced by them. Until the
        fill is through, the age of the store is unknown. Raises ``SinkError``, or ``ChangelogError`` for a log
        that cannot be read.
        """
        session = _classic_session(df)
        if df.isStreaming:
            raise SinkError("sink.fill writes batch DataFrames; for this one, which is streaming, use sink.write.")
        spec = self._writable(store, session)
        refusal = columns_of(spec).snapshot_refusal
        if snapshot and refusal is not None:
            raise SinkError(f"{store!r} {refusal}.")
        if max_deleted is not None and not snapshot:
            raise SinkError(f"{store!r}: only a snapshot deletes keys: max_deleted= needs snapshot=True.")
        if if_written not in get_args(IfWritten):
            raise SinkError(f'{store!r}: if_written= is "raise" or "skip", not {if_written!r}.')
        layout = lay_out(df, spec, Selection.of(columns))
        writer = StoreWriter(self._log, spec, f"{FILL_PREFIX}{name}", begins_here=True)
        write = Write(writer, RecordColumns(layout, session))
        return fill(write, df, snapshot=snapshot, max_deleted=max_deleted, if_written=if_written)

    def kafka_columns(self, df: DataFrame, store: str, **columns: Unpack[ColumnArguments]) -> DataFrame:
        """A DataFrame's rows as records of a store, for Spark's own Kafka sink.

        That is for queries without ``foreachBatch``, in real-time mode and through Spark Connect. ``heartbeats``
        gives the store an age.

        The columns are ``partition``, ``key``, ``value`` and, for versioned stores and those with ``latest_by``,
        ``headers``. Through Spark Connect, ``partition`` is left to Kafka's producer where that finds it. Rows
        that cannot be written fail the query. Nothing refuses a second query of the same store, nor one that goes
        on into a log that has nothing of it. Raises ``SinkError``.
        """
        spec = self._spec(store)
        self._check_codecs(spec)
        layout = lay_out(df, spec, Selection.of(columns))
        if layout.chosen.order_by and not spec.store_kind.keeps_versions:
            raise SinkError(
                f"{spec.name!r}: order_by= has no effect in Spark's own Kafka sink. Aggregate by the key, so that "
                "a batch has one row of each, or use sink.write(…)."
            )
        session = df.sparkSession
        by_producer = spec.partitioner == "murmur2" and not hasattr(session, "_jsparkSession")
        return kafka_records(RecordColumns(layout, session, by_producer).of(df), spec)

    def heartbeats(self, query: StreamingQuery, store: str, *, writer: str | None = None) -> None:
        """Give age to a store that a query writes without this sink, until the query ends.

        The age advances only with what the query's progress shows: a batch after which its sources, which must
        state their latest offset, had nothing left; or an idle query. ``writer`` is the writer's name, by default
        the store's. Raises ``SinkError``.
        """
        spec = self._spec(store)
        if not hasattr(query, "_jsq"):
            raise SinkError(
                "Heartbeats need a classic Spark session: through Spark Connect, the age of the store is unknown."
            )
        run = query_run(str(query.id), str(query.runId))
        follow(run, query._jsq.streamingQuery())
        store_writer = StoreWriter(self._log, spec, writer or store, begins_here=True)
        run.writers.setdefault(store_writer.output, store_writer)

    def position(self, store: str) -> str | None:
        """The position token of the last batch written to a store, None before the first.

        A read with it as ``min_position`` sees that batch. Raises ``SinkError`` for an unknown store.
        """
        return self._log.positions.get(self._spec(store).name)

    def _spec(self, store: str) -> StoreSpec:
        if store not in self.topology.stores:
            names = ", ".join(self.topology.stores)
            raise SinkError(f"There is no store {store!r} in the topology; there are {names}.")
        return self.topology.stores[store]

    def _writable(self, store: str, session: SparkSession) -> StoreSpec:
        """The store, if the sink can write it from a session; raises ``SinkError``."""
        spec = self._spec(store)
        self._log.destination.check(session)
        self._check_codecs(spec)
        return spec

    def _check_codecs(self, spec: StoreSpec) -> None:
        if spec.value != "json":
            raise SinkError(f"{spec.name!r} has the value codec {spec.value!r}; the sink writes 'json'.")
        if spec.stream_partitioner is None:
            raise SinkError(f"{spec.name!r} has the partitioner 'unknown'; the sink needs to know where rows go.")
        if spec.external:
            self._changelog.ensure(spec, create=False)


def _classic_session(df: DataFrame) -> SparkSession:
    """The DataFrame's session; Python workers on this machine are set to this interpreter."""
    session = df.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise SinkError(
            "The sink needs a classic Spark session: Spark Connect has no foreachBatch on the driver. Over a "
            "kafka:// changelog, Spark's own Kafka sink can write sink.kafka_columns(df, store, key=…)."
        )
    for module in _BY_VALUE:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    context = session.sparkContext
    if (context.master or "").startswith("local"):
        context.pythonExec = os.environ.get("PYSPARK_PYTHON") or sys.executable
    return session
