"""What ``Sink.write`` returns: Spark's own writer, which can write to the sink only."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from forebay.clock import epoch_ms
from forebay.errors import ForebayError, SinkError
from forebay_spark import plan
from forebay_spark.columns import Layout
from forebay_spark.heartbeats import follow
from forebay_spark.kind_columns import columns_of
from forebay_spark.store_writer import StoreWriter, query_run
from forebay_spark.write import Write
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.data_types import parse_type
from forebay_tap.store_tap import StoreTap

log = logging.getLogger(__name__)


def continued_query(session: SparkSession, location: str) -> str | None:
    """The id of the query that goes on from a checkpoint; None if the next batch of it is the first.

    Read as Spark reads it, through Hadoop's file systems.
    """
    jvm = session._jvm
    assert jvm is not None
    root = jvm.org.apache.hadoop.fs.Path(location)
    file_system = root.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    commits, metadata = (jvm.org.apache.hadoop.fs.Path(root, name) for name in ("commits", "metadata"))
    if not file_system.exists(commits) or not file_system.exists(metadata):
        return None
    if not any(status.getPath().getName().isdigit() for status in file_system.listStatus(commits)):
        return None
    with contextlib.closing(file_system.open(metadata)) as stream:
        return str(json.loads(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))["id"])


def bootstrap(writer: StoreWriter, layout: Layout, location: str, mode: str) -> None:
    """Make a store's log equal to the state that a query left in its checkpoint.

    ``mode`` is the query's output mode. The log says meanwhile that it is being filled. If it fails, the next
    start goes on with it. Raises ``SinkError``, saying what the topology lacks or how the state differs from what
    the query puts out.
    """
    spec = writer.spec
    if spec.spark_state is None:
        raise SinkError(
            f"{spec.name}: bootstrap=True needs to know which of the query's state the store has. Declare its "
            f"spark_state in the topology; 'forebay spark describe {location}' shows how."
        )
    try:
        checkpoint = Checkpoint.open(location)
        newest = checkpoint.newest_batch()
        mapping = TableMapping(spec, checkpoint.operator(spec.spark_state.operator, newest))
        mismatch = state_mismatch(mapping, layout, mode)
        if mismatch is not None:
            raise SinkError(f"{spec.name}: bootstrap=True cannot fill it: {mismatch}.")
        StoreTap(checkpoint, spec, writer.log.changelog, epoch_ms, writer=writer.name).begin(newest)
    except SinkError:
        raise
    except ForebayError as error:
        raise SinkError(f"{spec.name}: it cannot be filled from {location}: {error}") from error
    log.info("%s: its log has the state of batch %d, and the query goes on from there", spec.name, newest)


def state_mismatch(mapping: TableMapping, layout: Layout, mode: str) -> str | None:
    """How a query's output differs from its state, and the remedy; None if nothing shows that it does.

    ``mode`` is its output mode. Raises ``CheckpointError`` for a type that is not known.
    """
    if mode == "append":
        return (
            "in the output mode 'append' results that are final have left its state, and the state's own are not "
            "final. Start the query with a new checkpoint and its source from the beginning"
        )
    if layout.chosen.delete is not None:
        return f"the column {layout.chosen.delete!r} deletes keys that its state keeps. Leave out delete="
    if layout.chosen.null_keys == "drop" and layout.spec.key == "json":
        return "its state has the keys with a null that null_keys='drop' leaves out. Set null_keys='keep'"
    columns = {name: parse_type(layout.schema[name].dataType.jsonValue()) for name in layout.value}
    return mapping.mismatch(layout.chosen.key, columns, flatten=layout.chosen.flatten)


class SinkWriter(DataStreamWriter):
    """Spark's own writer, set up for the sink and named by its writer.

    Its output mode is update; append for session stores, and for a DataFrame that Spark runs in append mode only.
    """

    def __init__(self, df: DataFrame, write: Write) -> None:
        super().__init__(df)
        self._write_to = write
        self._checkpoint: str | None = None
        self.queryName(write.writer.name)
        by_update = columns_of(write.writer.spec).updates and plan.mode_refusal(df, "update") is None
        self.outputMode("update" if by_update else "append")
        super().foreachBatch(write.batch)

    @property
    def store(self) -> str:
        """The store written to."""
        return self._write_to.writer.spec.name

    @property
    def mode(self) -> str:
        """The output mode, as the sink or ``outputMode`` has set it."""
        return self._mode

    def outputMode(self, outputMode: str) -> SinkWriter:
        """Update or append; complete mode, and what Spark does not support, is refused with ``SinkError``."""
        if outputMode.lower() not in ("update", "append"):
            raise SinkError(plan.complete_mode(self.store))
        refusal = plan.mode_refusal(self._df, outputMode.lower())
        if refusal is not None:
            raise SinkError(
                f"{self.store!r}: Spark does not run this query in the output mode {outputMode!r}: {refusal}."
            )
        super().outputMode(outputMode)
        self._mode = outputMode.lower()
        return self

    def queryName(self, queryName: str) -> SinkWriter:
        """The query's name, as for Spark's own writer; by default the sink's ``writer``."""
        super().queryName(queryName)
        self._name = queryName
        return self

    def option(self, key: str, value: Any) -> SinkWriter:
        """An option, as for Spark's own writer."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> SinkWriter:
        """Options, as for Spark's own writer."""
        super().options(**options)
        # Spark's options have no case.
        by_name = {name.lower(): value for name, value in options.items()}
        self._checkpoint = by_name.get("checkpointlocation", self._checkpoint)
        return self

    def _elsewhere(self, *args: Any, **options: Any) -> NoReturn:
        """Refused with ``SinkError``: the sink is what each batch goes to."""
        raise SinkError(
            f"{self.store!r}: with another destination the query would no longer write to the store. Start "
            "another query for it."
        )

    foreachBatch = foreach = format = toTable = _elsewhere

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, as Spark's own writer does.

        Raises ``SinkError`` without a checkpoint location, and if the query goes on from its checkpoint into a log
        that has nothing of it.
        """
        if path is not None or format is not None:
            self._elsewhere()
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        location, writer = self._checkpoint_location(), self._write_to.writer
        query_id = continued_query(self._df.sparkSession, location)
        if query_id is not None:
            if writer.bootstraps and writer.lacks(query_id):
                bootstrap(writer, self._write_to.records.layout, location, self._mode)
                writer.goes_on(query_id)
            writer.check_continuity(query_id, continued=True)
        query = super().start(partitionBy=partitionBy)
        run = query_run(str(query.id), str(query.runId))
        run.writers[writer.output] = writer
        follow(run, query._jsq.streamingQuery())
        return query

    def _checkpoint_location(self) -> str:
        if self._checkpoint:
            return self._checkpoint
        below = self._df.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        if below:
            return f"{below}/{self._name}"
        raise SinkError(
            f"{self.store!r}: the query has no checkpoint location, so when it is started again it would count "
            "from nothing and write that over what the store has. Set .option('checkpointLocation', …), or "
            "spark.sql.streaming.checkpointLocation for all queries of the session."
        )
