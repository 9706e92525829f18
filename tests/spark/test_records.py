"""Records made by Spark's own expressions are those that a reader's codecs and partitioner expect."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.codecs.keys import KEY_CODECS
from forebay.partitioning import Murmur2Partitioner
from forebay.topology_file import parse_topology
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

SAFE = 2**53 - 1
PARTITIONS = 97
TOPOLOGY = {
    "application_id": "t",
    "subtopology": [
        {
            "name": "all",
            "partitions": PARTITIONS,
            "store": [
                {"name": "pairs", "key": "json"},
                {"name": "raw", "key": "bytes"},
                {"name": "minutes", "kind": "window", "window_size_ms": 60_000, "retention_ms": 10**9},
                {"name": "visits", "kind": "session", "gap_ms": 60_000, "retention_ms": 10**9},
            ],
        }
    ],
}
TEXTS = ["", "plain", '"', "\\", "\\\\", "\\u000b", "\\\x0b", "\x0b\x0b", "\x00", "\x1f\\\x1f", "\x7f", "\u2028"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


def records(spark: Any, df: Any, store: str, **columns: Any) -> Any:
    from forebay_spark.columns import Selection, lay_out
    from forebay_spark.records import RecordColumns

    layout = lay_out(df, parse_topology(TOPOLOGY).stores[store], Selection.of(columns))
    return RecordColumns(layout, spark).of(df)


def test_json_keys_are_the_codecs_whatever_their_types(spark):
    chance = random.Random(1)
    controls = "".join(map(chr, range(32))) + '\\"/u0B'
    texts = [*TEXTS, "é😀"] + ["".join(chance.choices(controls, k=12)) for _ in range(300)]
    numbers = [0, -1, SAFE, -SAFE]
    rows = [
        (text, chance.choice(numbers), chance.choice([True, False, None]), chance.choice([None, -7, 127]))
        for text in [*texts, None]
    ]
    df = spark.createDataFrame(rows, "s string, l long, f boolean, b byte")
    made = records(spark, df, "pairs", key=["s", "l", "f", "b"], value=[], null_keys="keep").collect()
    codec = KEY_CODECS["json"]
    assert [bytes(record.key) for record in made] == [codec.from_json(list(row)) for row in rows]


@pytest.mark.parametrize("by_java", [True, False])
def test_partitions_are_kafkas_whatever_the_key(spark, by_java):
    """With and without Java's function, which is away through Spark Connect."""
    from forebay_spark.murmur2 import murmur2_partition

    chance = random.Random(2)
    keys = [b"", b"\xff" * 7, *(chance.randbytes(length) for length in range(1, 40) for _ in range(5))]
    df = spark.createDataFrame([(bytearray(key),) for key in keys], "key binary")
    column = murmur2_partition(df.key, PARTITIONS, spark if by_java else object())
    found = [row.partition for row in df.select(column.alias("partition")).collect()]
    assert found == [Murmur2Partitioner().partition(key, PARTITIONS) for key in keys]
    plan = df.select(column)._jdf.queryExecution().analyzed().toString()
    assert ("hash32" in plan) is by_java


def streamed(spark: Any, tmp_path: Any) -> Any:
    return spark.readStream.schema("k string, n long, at timestamp").json(str(tmp_path))


def test_a_plan_shows_whether_a_batch_has_one_row_of_a_key(spark, tmp_path):
    from pyspark.sql import functions as F

    from forebay_spark.plan import has_one_row_a_key

    rows = streamed(spark, tmp_path).withWatermark("at", "1 hour")
    by_key = rows.groupBy("k").agg(F.sum("n").alias("n"))
    by_window = rows.groupBy("k", F.window("at", "1 minute").alias("w")).count()
    by_session = rows.groupBy(F.session_window("at", "1 minute").alias("w"), "k").count()
    shown = [
        (by_key, ["k"]),
        (by_key.where("n > 1").select("n", F.col("k").alias("name")), ["name"]),
        (by_key, ["k", "n"]),
        (rows.groupBy(F.upper("k").alias("u")).count(), ["u"]),
        (rows.agg(F.count("*")), []),
        (by_window, ["k", "w"]),
        (by_session.select("k", "w", "count"), ["k", "w"]),
        (rows.dropDuplicates(["k"]), ["k", "n"]),
        (rows.dropDuplicatesWithinWatermark(["k"]), ["k"]),
    ]
    not_shown = [
        (rows, ["k"]),
        (by_key, ["n"]),
        (by_key.select(F.lower("k").alias("k"), "n"), ["k"]),
        (by_key.select("k", F.explode(F.array(F.lit(1), F.lit(2))).alias("n")), ["k"]),
        (by_window, ["k"]),
        (rows.groupBy("k", "n").count(), ["k"]),
        (rows.dropDuplicates(["k", "n"]), ["k"]),
        (by_key.union(by_key), ["k"]),
    ]
    for (df, key), expected in itertools.chain(
        zip(shown, itertools.repeat(True)), zip(not_shown, itertools.repeat(False))
    ):
        assert has_one_row_a_key(df, key) is expected, df._jdf.queryExecution().analyzed().toString()
