"""What goes through Spark Connect, and what is refused there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.partitioning import Murmur2Partitioner
from forebay.record_orders import with_order

pytestmark = pytest.mark.spark

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession, functions as F
from forebay.errors import SinkError
from forebay.spark import Sink
from forebay.topology_file import parse_topology

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.remote("local[1]").getOrCreate()
stores = [{"name": "latest"}, {"name": "pairs", "key": "json"}, {"name": "customers", "latest_by": "n"}]
subtopology = {"name": "all", "partitions": 3, "store": stores}
topology = parse_topology({"application_id": "t", "subtopology": [subtopology]})
sink = Sink(topology, changelog="sqlite://" + sys.argv[1] + "/log")
df = spark.createDataFrame([("a", 1), ("b", 2)], "k string, n int")
for store, key in (("latest", "k"), ("pairs", ["k", "n"]), ("customers", "k")):
    for row in sink.kafka_columns(df, store, key=key, value="n").collect():
        partition = row.partition if "partition" in row else None
        print(json.dumps([bytes(row.key).hex(), row.value.decode(), partition]))
stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS k", "value AS n")
records = sink.kafka_columns(stream, "latest", key="k")
writer = records.writeStream.format("memory").queryName("records")
query = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint").start()
for refused in (
    lambda: sink.write(stream, "latest", key="k"),
    lambda: sink.fill(df, "latest", key="k", name="n"),
    lambda: sink.heartbeats(query, "latest"),
):
    try:
        refused()
    except SinkError as error:
        print(json.dumps(str(error)))
query.stop()
# The server of such a session runs on in this process.
os._exit(0)
"""


def test_kafka_columns_work_through_spark_connect(tmp_path: Path) -> None:
    """What does not work through Connect is refused with the alternative."""
    command = [sys.executable, "-u", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    values, orders = ('{"n":1}', '{"n":2}'), (1, 2)
    # Kafka's producer finds the partition of a plain key itself.
    assert lines[:4] == [
        [key.hex(), value, None]
        for keys in ((b"a", b"b"), (b'["a",1]', b'["b",2]'))
        for key, value in zip(keys, values, strict=True)
    ], done.stderr
    assert lines[4:6] == [
        [with_order(key, order).hex(), value, Murmur2Partitioner().partition(key, 3)]
        for key, order, value in zip((b"a", b"b"), orders, values, strict=True)
    ]
    write, fill, heartbeats = lines[6:]
    assert "Spark's own Kafka sink can write sink.kafka_columns(df, store, key=…)" in write
    assert write == fill
    assert "through Spark Connect, the age of the store is unknown" in heartbeats
