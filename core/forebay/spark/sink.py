"""The sink: streaming queries' results, written to a changelog batch by batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from forebay import partitioning
from forebay.changelog import heartbeat_keys, open_changelog, record_headers
from forebay.changelog.sqlite import checksums
from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.errors import SinkError
from forebay.spark import batch_murmur2, executor
from forebay.spark.columns import lay_out
from forebay.spark.compaction import Compaction
from forebay.spark.heartbeats import HeartbeatListener
from forebay.spark.sink_writer import SinkWriter
from forebay.spark.slots import Slots
from forebay.spark.write import WRITES, SinkLog, Write
from forebay.topology import StoreSpec, Topology, load_topology

_LEAST_SPARK = (4, 0)
_BY_VALUE = (
    *(partitioning, batch_murmur2, heartbeat_keys, record_headers, checksums, sqlite_partition),
    executor,
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
        self._log = SinkLog(self._changelog)
        for spec in self.topology.stores.values():
            # Others write those; a query that does needs them when it starts.
            if not spec.foreign:
                self._changelog.ensure(spec, create=create_topics)
        self._listening: list[SparkSession] = []
        self._compaction: Compaction | None = None
        # Kafka compacts its topics itself.
        if isinstance(self._changelog, SqliteChangelog):
            self._compaction = Compaction(self._changelog, self.topology.stores.values())

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
        store_begins_here: bool = False,
    ) -> SinkWriter:
        """A writer of ``df`` to a store; give it a checkpoint location and start it.

        ``key`` names the key's column or columns, ``value`` the columns of the value (all others by default),
        ``order_by`` the columns that determine which of a key's rows in one batch is the latest (for a versioned
        store, the one timestamp column from which a version is valid), ``delete`` a boolean column that marks
        tombstones. ``writer`` is the writer's name, by default the store's: two queries that write one store need
        different names. ``store_begins_here`` lets a query go on from its checkpoint into a log that has nothing
        of it: keys that do not change stay missing. Raises ``SinkError`` naming the column or the store.
        """
        spec = self._spec(store)
        session = _classic_session(df)
        self._log.destination.check(session)
        if spec.value != "json":
            raise SinkError(f"{store!r} has the value codec {spec.value!r}; the sink writes 'json'.")
        if spec.stream_partitioner is None:
            raise SinkError(f"{store!r} has the partitioner 'unknown'; the sink needs to know where rows go.")
        if spec.foreign:
            self._changelog.ensure(spec, create=False)
        layout = lay_out(df, spec, key, value, order_by, delete)
        slots = Slots(session, spec.partitions)
        write = Write(self._log, layout, writer or store, slots, begins_here=store_begins_here)
        self._listen(session)
        return SinkWriter(df, write)

    def position(self, store: str) -> str | None:
        """The position token of the last batch written to a store, None before the first.

        A read with it as ``min_position`` sees that batch. Raises ``SinkError`` for an unknown store.
        """
        return self._log.position(self._spec(store).name)

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
        session.streams.addListener(HeartbeatListener(self._beat, self._keep_house))
        self._listening.append(session)

    def _beat(self, query_id: str, as_of_ms: int, batch_id: int) -> None:
        write = WRITES.get(query_id)
        if write is not None and write.log is self._log:
            write.beat(query_id, as_of_ms, batch_id)

    def _keep_house(self) -> None:
        if self._compaction is not None:
            self._compaction.begin_if_due()


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
