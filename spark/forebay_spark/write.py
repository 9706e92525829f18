"""How a query's micro-batches get into the log of a store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from forebay.errors import ForebayError, SinkError
from forebay_spark.executor import BatchId
from forebay_spark.heartbeats import follow
from forebay_spark.records import RecordColumns
from forebay_spark.store_writer import QueryRun, StoreWriter, query_run

log = logging.getLogger(__name__)


@dataclass
class Write:
    """One query's way into one store."""

    writer: StoreWriter
    records: RecordColumns
    is_distinct: bool = False
    """Whether the query's plan shows that a batch has one row of a key."""

    def batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, then a heartbeat to every partition; raises ``SinkError``."""
        with attempt(df.sparkSession, self.writer, batch_id) as query_id:
            self.append(self.records.of(df), query_id, batch_id)

    def append(self, records: DataFrame, query_id: str, batch_id: int) -> None:
        """The part of ``batch`` that a batch may fail at."""
        writer, order = self.writer, self.records.layout.order_names
        if writer.log.destination.claims_first:
            writer.patiently(lambda: writer.beat(query_id, None, batch_id - 1, continued=batch_id > 0))
        else:
            writer.patiently(lambda: writer.check_continuity(query_id, continued=batch_id > 0))
        identities = writer.identities(query_id)
        batch = BatchId(query_id, batch_id, writer.name, order, self.is_distinct, identities)
        writer.log.destination.write(records, writer.spec, batch)
        writer.patiently(lambda: writer.beat(query_id, None, batch_id))


@contextlib.contextmanager
def attempt(session: SparkSession, writer: StoreWriter, batch_id: int) -> Iterator[str]:
    """An attempt at a batch of the query whose micro-batch has this session; yields the query's id.

    Raises ``SinkError`` outside of a query, and if the batch was already written, or an earlier one was not.
    """
    run, store, jvm = _current_run(session), writer.spec.name, session._jvm
    assert jvm is not None
    run.writers[writer.output] = writer
    try:
        if not run.is_followed:
            # Those of all sessions: a batch's own is a copy of the one that its query was started in.
            queries = session._jsparkSession.sharedState().activeStreamingQueries()
            execution = queries.get(jvm.java.util.UUID.fromString(run.query_id))
            if execution is None:
                raise SinkError(f"{store}: its query has ended; write batches while foreachBatch has them.")
            follow(run, execution)
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
        yield run.query_id
    except BaseException as error:
        run.failed.setdefault(writer.output, batch_id)
        if isinstance(error, ForebayError):
            # Spark repeats it at the end of a traceback of its own.
            log.error("batch %d of %s was refused: %s", batch_id, store, error)
        raise
    run.written[writer.output] = batch_id
    run.failed.pop(writer.output, None)


def _current_run(session: SparkSession) -> QueryRun:
    """The run whose micro-batch is being written; raises ``SinkError`` outside of one."""
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise SinkError(
            "The sink writes the micro-batches of streaming queries: use sink.write(…).start(), or "
            "sink.write_batch(…) within foreachBatch."
        )
    # Spark names the job group of a run by its id.
    return query_run(query_id, session.sparkContext.getLocalProperty("spark.jobGroup.id") or "")
