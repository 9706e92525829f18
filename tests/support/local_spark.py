"""A Spark in this process, for a module of tests."""

import contextlib
from collections.abc import Iterator
from typing import Any


def use_jvm(jars: str = "") -> None:
    """Have the next session in a JVM that was launched with Spark's connector, or without: only then is it found.

    A JVM outlives its sessions, and the next one finds it warm.
    """
    from pyspark import SparkContext

    from examples.flights.session import end_jvm

    jvm = SparkContext._jvm
    if jvm is not None and bool(jvm.java.lang.System.getProperty("spark.jars")) != bool(jars):
        end_jvm()


@contextlib.contextmanager
def local_spark() -> Iterator[Any]:
    """A session without Spark's connector, which ends with the block."""
    from pyspark.sql import SparkSession

    from examples.flights.session import FILE_MANAGER

    use_jvm()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.ui.enabled", False)
        # Without Hadoop's native library the default starts a process for each file it renames.
        .config("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
        # By default each query that is idle lists its source's directory a hundred times a second.
        .config("spark.sql.streaming.pollingDelay", "50ms")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
