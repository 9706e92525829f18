"""The Spark session of the flights demo's jobs, and what they print."""

from __future__ import annotations

import glob
import json
import os
import sys
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
FILE_MANAGER = (
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    if pyspark.__version__.startswith("4.0.")
    else f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""What writes checkpoints, by its name in this version of Spark."""


class BatchPrinter:
    """Prints what each micro-batch did: a JSON line with its query, batch and rows.

    The JVM calls it with its own events. Why: as a ``StreamingQueryListener`` of PySpark's it would take a quarter
    of all processor time here.
    """

    class Java:
        """What of the JVM's it implements."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    @property
    def _jlistener(self) -> Any:
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Not printed."""

    def onQueryProgress(self, event: Any) -> None:
        """One line a batch that had rows."""
        progress = json.loads(event.progress().json())
        if progress["numInputRows"]:
            line = {"query": progress["name"], "batch": progress["batchId"], "rows": progress["numInputRows"]}
            print(json.dumps(line), flush=True)

    def onQueryIdle(self, event: Any) -> None:
        """Not printed."""

    def onQueryTerminated(self, event: Any) -> None:
        """Not printed."""


def print_batches(spark: SparkSession) -> None:
    """Print the batches of all of a session's queries."""
    spark.streams.addListener(BatchPrinter())  # type: ignore[arg-type]


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
