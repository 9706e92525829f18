"""Every row of the page on operators: the query runs in the mode and fills the store that the page names."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SinkError, TopologyError
from forebay.topology_file import parse_topology
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.description import describe_operator, topology_snippet
from tests.end_to_end.test_spark_sink import Source, content, latest, log_of, run, sink, spark  # noqa: F401
from tests.support.running_query import store

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WITH_ORDERS = "key-value with [latest_by](topology.md#the-highest-order)"
STORES = {
    "key-value": "latest",
    WITH_ORDERS: "customers",
    "window": "hours",
    "session": "visits",
    "versioned": "prices",
}


def table(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+) \|$", section, re.M)
    return [[cell.strip().removeprefix("`").removesuffix("`") for cell in row.split(" | ")] for row in rows]


SCHEMA = "k string, n int, at timestamp, gone boolean"
ROWS: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {"k": "a", "n": 1, "at": "1970-01-01T00:30:00Z"},
        {"k": "b", "n": 1, "at": "1970-01-01T00:30:00Z"},
    ),
    (
        {"k": "a", "n": 2, "at": "1970-01-01T00:40:00Z"},
        {"k": "b", "n": 2, "at": "1970-01-01T00:50:00Z", "gone": True},
    ),
    ({"k": "z", "n": 1, "at": "1970-01-03T00:00:00Z"},),
    ({"k": "y", "n": 1, "at": "1970-01-03T00:00:00Z"},),
)


def grouped(df: Any) -> Any:
    return df.groupBy("k").count()


def windows(df: Any) -> Any:
    from pyspark.sql import functions as F

    return df.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour"), "k").count()


def sessions(df: Any) -> Any:
    from pyspark.sql import functions as F

    return df.withWatermark("at", "1 minute").groupBy(F.session_window("at", "1 minute"), "k").count()


def deduplicated(df: Any) -> Any:
    return df.dropDuplicates(["k"]).select("k", "n")


def with_table(df: Any) -> Any:
    names = df.sparkSession.createDataFrame([("a", "Ann"), ("b", "Bob")], "k string, name string")
    return df.join(names, "k").select("k", "n", "name")


def with_stream(df: Any) -> Any:
    other = df.selectExpr("k AS other", "n AS m", "at AS seen").withWatermark("seen", "1 minute")
    pairs = "k = other AND n = m AND at BETWEEN seen AND seen + INTERVAL 1 MINUTE"
    from pyspark.sql import functions as F

    return df.withWatermark("at", "1 minute").join(other, F.expr(pairs)).select("k", "n", "m")


def last_and_gone(key: tuple[str], frames: Any, state: Any) -> Any:
    import pandas

    for frame in frames:
        yield pandas.DataFrame({"k": [key[0]], "n": [int(frame["n"].max())], "gone": [bool(frame["gone"].any())]})


def with_pandas_state(df: Any) -> Any:
    known = df.fillna(False, ["gone"])
    return known.groupBy("k").applyInPandasWithState(
        last_and_gone, "k string, n int, gone boolean", "n int", "update", "NoTimeout"
    )


def with_processor(df: Any) -> Any:
    import pandas
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Countdown(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for frame in rows:
                for n in (3, int(frame["n"].max())):
                    yield pandas.DataFrame({"k": [key[0]], "n": [n]})

        def close(self) -> None:
            pass

    grouped = df.groupBy("k")
    return grouped.transformWithStateInPandas(Countdown(), "k string, n int", "Update", "None")


def changes(df: Any) -> Any:
    return df.select("k", "n", "gone")


def history(df: Any) -> Any:
    return df.select("k", "n", "gone", "at")


def at(start_ms: int) -> bytes:
    return start_ms.to_bytes(8, "big", signed=True)


DAY_MS = 86_400_000
CASES: dict[str, tuple[Any, dict[bytes, Any]]] = {
    "groupBy": (grouped, {b"a": {"count": 2}, b"b": {"count": 2}, b"z": {"count": 1}, b"y": {"count": 1}}),
    "window": (
        windows,
        {b"a" + at(0): {"count": 2}, b"b" + at(0): {"count": 2}}
        | {k + at(2 * DAY_MS): {"count": 1} for k in (b"z", b"y")},
    ),
    "session_window": (
        sessions,
        {
            key + at(start + 60_000) + at(start): {"count": 1}
            for key, starts in ((b"a", (1_800_000, 2_400_000)), (b"b", (1_800_000, 3_000_000)))
            for start in starts
        },
    ),
    "dropDuplicates": (deduplicated, {b"a": {"n": 1}, b"b": {"n": 1}, b"z": {"n": 1}, b"y": {"n": 1}}),
    "stream-static join": (with_table, {b"a": {"n": 2, "name": "Ann"}, b"b": {"n": 2, "name": "Bob"}}),
    "stream-stream join": (
        with_stream,
        {b"a": {"n": 2, "m": 2}, b"b": {"n": 2, "m": 2}, b"z": {"n": 1, "m": 1}, b"y": {"n": 1, "m": 1}},
    ),
    "applyInPandasWithState": (with_pandas_state, {b"a": {"n": 2}, b"z": {"n": 1}, b"y": {"n": 1}}),
    "transformWithStateInPandas": (
        with_processor,
        {b"a": {"n": 2}, b"b": {"n": 2}, b"z": {"n": 1}, b"y": {"n": 1}},
    ),
    "CDC": (changes, {b"a": {"n": 2}, b"z": {"n": 1}, b"y": {"n": 1}}),
    "CDC, again or out of order": (changes, {b"a": {"n": 2}, b"z": {"n": 1}, b"y": {"n": 1}}),
    "CDC history": (
        history,
        {
            b"a": {"n": 2, "at": "1970-01-01T00:40:00.000000Z"},
            **{k: {"n": 1, "at": "1970-01-03T00:00:00.000000Z"} for k in (b"z", b"y")},
        },
    ),
}


@pytest.fixture(autouse=True)
def interpreter(spark: Any) -> None:  # noqa: F811
    """Python's own functions of a query are set to an interpreter before the sink has seen it."""
    spark.sparkContext.pythonExec = sys.executable


def test_every_operator_of_the_page_has_its_case():
    assert [row[0] for row in table("Operators")] == list(CASES)


@pytest.mark.parametrize("row", table("Operators"), ids=lambda row: row[0])
def test_an_operator_fills_its_store(spark, sink, tmp_path, row):  # noqa: F811
    operator, store, mode, arguments, _ = row
    build, expected = CASES[operator]
    source = Source(spark, tmp_path / "in", SCHEMA)
    for rows in ROWS:
        source.add(*rows)
    columns = eval(f"dict({arguments})")
    writer = sink.write(build(source.df), STORES[store], **columns)
    assert writer.mode in mode.split(" or ")
    if operator == "transformWithStateInPandas":
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        run(writer, tmp_path)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    found = latest if store == WITH_ORDERS else content
    assert found(sink, STORES[store]) == expected


def test_timer_row_follows_the_input_row_of_its_batch(spark, sink, tmp_path):  # noqa: F811
    """The timer's row is the latest of its key."""
    import pandas
    from pyspark.sql.streaming import StatefulProcessor

    class Presence(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for _ in rows:
                self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 120_000)
                yield pandas.DataFrame({"k": [key[0]], "state": ["here"]})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield pandas.DataFrame({"k": [key[0]], "state": ["gone"]})

        def close(self) -> None:
            pass

    source = Source(spark, tmp_path / "in", SCHEMA)
    for key, minute in (("b", "10"), ("a", "11"), ("b", "30"), ("a", "31")):
        source.add({"k": key, "at": f"2026-01-01T00:{minute}:00Z"})
    groups = source.df.withWatermark("at", "1 minute").groupBy("k")
    states = groups.transformWithStateInPandas(Presence(), "k string, state string", "Update", "EventTime")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        run(sink.write(states, "latest", key="k", order_by="emitted"), tmp_path)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    written = [(r[1], json.loads(r[2])["state"]) for records in log_of(sink, "latest").values() for r in records]
    assert [state for key, state in written if key == b"a"] == ["here", "here", "gone"]


def test_documented_recipe_numbers_rows_in_an_operator(spark, sink, tmp_path):  # noqa: F811
    from pyspark.sql.streaming import StatefulProcessor

    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (recipe,) = re.findall(r"```python\n(class Numbered.*?)```", page, re.S)
    names: dict[str, Any] = {"StatefulProcessor": StatefulProcessor}
    exec(recipe, names)
    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add({"k": "a", "n": 5}, {"k": "a", "n": 3})
    source.add({"k": "a", "n": 4})
    schema = "k string, n int, sequence bigint"
    numbered = source.df.groupBy("k").transformWithStateInPandas(names["Numbered"](), schema, "Update", "None")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        run(sink.write(numbered.repartition(3), "latest", key="k", order_by="sequence"), tmp_path)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    written = [json.loads(r[2]) for records in log_of(sink, "latest").values() for r in records]
    assert [row["sequence"] for row in written] == [0, 1, 2]
    assert content(sink, "latest")[b"a"] == {"n": 4, "sequence": 2}


def test_every_type_has_the_form_that_the_page_shows(spark, sink, tmp_path):  # noqa: F811
    rows = table("Types")
    source = Source(spark, tmp_path / "in", "k string")
    source.add({"k": "a"})
    expressions = [
        f"CAST({value} AS {kind}) AS c{i}" if kind != "void" else f"{value} AS c{i}"
        for i, (kind, value, *_) in enumerate(rows)
    ]
    df = source.df.selectExpr("k", *expressions)

    def write(batch: Any, batch_id: int) -> None:
        sink.write_batch(batch, batch_id, "latest", key="k")
        for i, (_, _, _, key) in enumerate(rows):
            if key == "refused":
                with pytest.raises(SinkError, match="which the key codec 'json' does not take"):
                    sink.kafka_columns(batch, "by_pair", key=f"c{i}")
            else:
                sink.write_batch(batch, batch_id, "by_pair", key=["k", f"c{i}"], value=[], writer=f"w{i}")

    run(df.writeStream.foreachBatch(write), tmp_path)
    (text,) = [r[2].decode() for records in log_of(sink, "latest").values() for r in records]
    members = ",".join(f'"c{i}":{value}' for i, (_, _, value, _) in enumerate(rows))
    assert text == f"{{{members}}}"
    assert json.loads(text)["c4"] == 2**53 - 1
    keys = {f'["a",{key}]'.encode() for *_, key in rows if key != "refused"}
    assert set(content(sink, "by_pair")) == keys


def test_buffers_that_only_spark_reads_are_refused_by_name(spark, tmp_path):  # noqa: F811
    """They are no values: `describe` proposes the other fields, which a store takes."""
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", SCHEMA)
    source.add(*ROWS[0])
    opaque = [F.collect_list("n"), F.percentile_approx("n", 0.5), F.approx_count_distinct("n")]
    counted = source.df.groupBy("k").agg(F.count("*"), *opaque, F.max("n"))
    checkpoint = tmp_path / "checkpoint"
    query = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    operator = Checkpoint.open(str(checkpoint)).operator(0, 0)
    [described] = describe_operator(operator).tables
    assert [field.name for field in described.value if not field.opaque] == ["count", "max"]
    proposed = tomllib.loads(f'application_id = "a"\n{topology_snippet("proposed", 0, described)}')
    assert set(TableMapping(parse_topology(proposed).stores["proposed"], operator).members) == {"count", "max"}
    fields = [{"name": "all", "position": 1}, {"name": "half", "position": 2}, {"name": "distinct", "position": 3}]
    served = store(spark_state={"fields": fields})
    with pytest.raises(TopologyError, match=r"'all' \(buf\), 'half' \(buf\), 'distinct' \(MS\[0\]\) of 'tapped'"):
        TableMapping(served, operator)
