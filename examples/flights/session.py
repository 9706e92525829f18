"""The Spark session of the flights demo's jobs, and what they print."""

from __future__ import annotations

import glob
import json
import os
import sys

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_STREAMING = "org.apache.spark.sql.execution.streaming"
FILE_MANAGER = (
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    if pyspark.__version__.startswith("4.0.")
    else f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""What writes checkpoints, by its name in this version of Spark."""


class BatchPrinter(StreamingQueryListener):
    """Prints what each micro-batch did."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Not printed."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """One line a batch that had rows."""
        progress = event.progress
        if progress.numInputRows:
            line = {"query": progress.name, "batch": progress.batchId, "rows": progress.numInputRows}
            print(json.dumps(line), flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Not printed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Not printed."""


def start_spark(jars: str = "", master: str = "local[2]") -> SparkSession:
    """A session; ``jars`` is Spark's Kafka connector, as ``spark.jars`` or a pattern."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .appName("flights")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", ",".join(sorted(glob.glob(jars))) or jars)
        # Without Hadoop's native library the default starts a process for each file it renames.
        .config("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
        # By default each query that is idle lists the directory a hundred times a second.
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def end_jvm(deadline_s: float = 30.0) -> None:
    """End the JVM of a session that was stopped, so that the next session has one of its own."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        # It ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait(deadline_s)
        SparkContext._gateway = SparkContext._jvm = None
