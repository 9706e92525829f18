"""A Spark query whose every batch changes so many keys of its state; its results go nowhere.

Prints a JSON line at the end: how long Spark's own source of state takes to read what each batch changed.
"""

from __future__ import annotations

import argparse
import json
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.session import start_spark

_STATE_STORE = "spark.sql.streaming.stateStore"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--changes", type=int, required=True, help="keys that each batch changes")
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--trigger-s", type=int, default=1, help="seconds from one batch's begin to the next's")
    arguments = parser.parse_args()
    spark = start_spark()
    package = "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set(f"{_STATE_STORE}.providerClass", f"{package}.RocksDBStateStoreProvider")
    spark.conf.set(f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled", "true")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.changes).load()
    query = (
        _counts(rows, arguments.changes)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(processingTime=f"{arguments.trigger_s} seconds")
        .start()
    )
    while (query.lastProgress or {"batchId": -1})["batchId"] < arguments.batches - 1:
        if not query.isActive:
            raise SystemExit(f"the query has ended: {query.exception()}")
        time.sleep(0.1)
    query.stop()
    taken_s = [_read_state(spark, arguments.checkpoint, batch) for batch in range(1, arguments.batches)]
    print(json.dumps({"state_source_s": taken_s}), flush=True)


def _counts(rows: DataFrame, keys: int) -> DataFrame:
    return rows.groupBy((F.col("value") % keys).alias("key")).agg(
        F.count("*").alias("count"), F.avg("value").alias("mean")
    )


def _read_state(spark: SparkSession, checkpoint: str, batch: int) -> float:
    begun = time.perf_counter()
    source = spark.read.format("statestore").option("readChangeFeed", "true")
    source = source.option("changeStartBatchId", batch).option("changeEndBatchId", batch)
    source.load(checkpoint).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
