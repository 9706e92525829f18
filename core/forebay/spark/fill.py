"""Fills a store from a batch DataFrame: what its stream lacks, a correction, or all that it is to contain."""

from __future__ import annotations

import contextlib
import logging
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.changelog import Changelog, Wake
from forebay.errors import SinkError
from forebay.progress_bar import progress
from forebay.spark.executor import END
from forebay.spark.write import Write
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition

log = logging.getLogger(__name__)

_MOST_RECORDS = 100_000
_POLL_S = 0.1
_PATIENCE_S = 60.0
"""How long to wait for a log that delivers nothing."""
_ENDS = T.StructType().add("slot", T.IntegerType()).add("partition", T.IntegerType()).add("key", T.BinaryType())
_KEYS = T.StructType().add("partition", T.IntegerType()).add("key", T.BinaryType())


def fill(write: Write, df: DataFrame, *, snapshot: bool) -> None:
    """Write all rows once under the writer's name, then retire it as completed; see ``Sink.fill``."""
    writer, changelog = write.writer, write.writer.log.changelog
    topic, query_id = writer.spec.topic, writer.name
    if changelog.has_completed(topic, writer.name):
        log.info("%s: %s was already through", writer.spec.name, writer.name)
        return
    is_repeat = changelog.has_written(topic, writer=writer.name, query_id=query_id) is not False
    # Until it is through, the age of the store is unknown, and no key is missing for sure.
    writer.patiently(lambda: writer.beat(query_id, None, -1, filling=True))
    placed = write.place(df).persist()
    try:
        rows = placed
        if snapshot:
            keys = _keys_of_log(placed.sparkSession, changelog, writer.spec, deleted=is_repeat)
            rows = placed.unionByName(_tombstones(write, placed, keys), allowMissingColumns=True)
        write.append_placed(rows, query_id, 0)
    finally:
        placed.unpersist()
    changelog.retire_writer(topic, writer.name, completed=True)


def _tombstones(write: Write, placed: DataFrame, keys_of_log: DataFrame) -> DataFrame:
    """A row without a value for each key of the log that the DataFrame lacks."""
    session = placed.sparkSession
    slots = write.slots.by_partition(session)
    # The row that ends a task's rows has none.
    present = placed.where(F.col("timestamp_ms").isNotNull()).select("key")
    absent = keys_of_log.join(present, "key", "left_anti")
    slot = F.element_at(F.array(*map(F.lit, slots)), F.col("partition") + 1)
    now = F.unix_millis(F.current_timestamp())
    tombstones = absent.select(slot.alias("slot"), "partition", "key", now.alias("timestamp_ms"))
    # A DataFrame without rows has no rows that end those of a task, either.
    ends = session.createDataFrame([(slot, END, bytearray()) for slot in set(slots)], _ENDS)
    return tombstones.unionByName(ends, allowMissingColumns=True)


def _keys_of_log(session: SparkSession, changelog: Changelog, spec: StoreSpec, *, deleted: bool) -> DataFrame:
    """Every key that has a value in a store's log as it is now, and its partition.

    Those with a tombstone, too, if they are to be ``deleted`` again: an earlier attempt may have written it, and
    a repeat must have every key of it.
    """
    ends = changelog.end_offsets([TopicPartition(spec.topic, partition) for partition in range(spec.partitions)])
    keys: dict[int, set[bytes]] = {partition: set() for partition in range(spec.partitions)}
    positions = dict.fromkeys(keys, 0)
    with (
        contextlib.closing(changelog.consumer()) as consumer,
        progress(f"reading {spec.name}", sum(ends.values())) as advance,
    ):
        wake = Wake()
        for topic_partition in ends:
            consumer.assign(topic_partition, 0)
        progressed_s = time.monotonic()
        while len(ends) < spec.partitions or any(positions[tp.partition] < end for tp, end in ends.items()):
            if len(ends) < spec.partitions or time.monotonic() - progressed_s > _PATIENCE_S:
                raise SinkError(
                    f"{spec.name}: the log {spec.topic!r} cannot be read, so what it lacks is not known."
                )
            consumer.wait(wake, _POLL_S)
            for batch in consumer.poll(_MOST_RECORDS):
                partition = batch.topic_partition.partition
                for _, key, value, _, heartbeat in batch.records:
                    if not heartbeat:
                        is_absent = value is None and not deleted
                        (keys[partition].discard if is_absent else keys[partition].add)(key)
                if batch.position > positions[partition]:
                    advance(batch.position - positions[partition])
                    positions[partition], progressed_s = batch.position, time.monotonic()
    rows = [(partition, bytearray(key)) for partition, of_partition in keys.items() for key in of_partition]
    return session.createDataFrame(rows, _KEYS)
