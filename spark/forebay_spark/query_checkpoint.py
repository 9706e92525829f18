"""A streaming query's checkpoint: which query it belongs to, and whether that goes on from an earlier batch."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession


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
    stream = file_system.open(metadata)
    try:
        return str(json.loads(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))["id"])
    finally:
        stream.close()
