"""A Spark in this process, for a module of tests."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def local_spark() -> Iterator[Any]:
    """A session, which ends with the block."""
    from pyspark.sql import SparkSession

    from examples.flights.session import FILE_MANAGER

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
