"""Writes small checkpoints with the Spark that is installed, and beside each what its state holds after every
batch.

``python write_checkpoints.py DIRECTORY [NAME…]``; ``scripts/checkpoints`` runs it once for each Spark minor. What
the state holds is known without reading it: from what the query put out, or computed here from its input.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout
from scala_operators import compile_operators, group_state, processor

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
START_S = 1_704_067_200
"""2024-01-01T00:00:00Z, at which the events begin."""
DELAY_S, WINDOW_S, GAP_S = 10, 60, 30
TTL_MS = 3_600_000_000
"""Longer than the fixtures are to be of use: an expired value would vanish from what Spark itself returns."""

# (key, n, d, seconds after START_S) of each batch. A negative n clears the key where the query has a way to do so.
BATCHES: tuple[tuple[tuple[str | None, int | None, float | None, int], ...], ...] = (
    (("ann", 1, 0.5, 0), ("bob", 2, 1.5, 5), ("ann", 3, None, 10), (None, 4, 2.25, 12)),
    (("käthe", 5, 3.5, 20), ("ann", 6, 0.125, 40), ("bob", None, 4.0, 61)),
    (("ann", -1, 9.0, 70), ("cy", 7, -1.0, 75), ("a key that is longer than the others", 8, 1e300, 80)),
    (("bob", 9, 2.5, 200), ("ann", 10, 6.0, 201), ("cy", 11, 0.0, 202)),
    (("bob", -2, 1.0, 203), ("dora", 12, 5.0, 204), ("käthe", 13, 0.25, 205)),
)
SCHEMA = "key string, n long, d double, at timestamp"

Row = dict[str, Any]
State = dict[str, Any]
"""What a store holds: values by the JSON text of their key."""


def micros(second: int) -> int:
    return (START_S + second) * 1_000_000


def plain(value: Any) -> Any:
    """A value of a row as JSON: timestamps as microseconds since the epoch, decimals as text, maps as pairs."""
    if isinstance(value, datetime.datetime):
        return round((value.astimezone(datetime.UTC) - EPOCH) / datetime.timedelta(microseconds=1))
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return [[plain(name), plain(item)] for name, item in value.items()]
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


class Outputs:
    """What the query has put out, and the watermark, by batch."""

    def __init__(self, rows: dict[int, list[Row]], watermarks_s: dict[int, float]) -> None:
        self.rows, self.watermarks_s = rows, watermarks_s
        self.batches = max(watermarks_s) + 1

    def watermark(self, batch: int) -> int:
        """Microseconds since the epoch, by which the batch evicts; 0 before the first event."""
        return round(self.watermarks_s[batch] * 1_000_000)


def write_events(directory: Path, number: int) -> None:
    lines = [
        json.dumps({"key": key, "n": n, "d": d, "at": plain_time(second)}) + "\n"
        for key, n, d, second in BATCHES[number]
    ]
    file = directory / f"{number}.json"
    file.write_text("".join(lines))
    os.utime(file, (START_S + number, START_S + number))


def plain_time(second: int) -> str:
    return datetime.datetime.fromtimestamp(START_S + second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def by_key(outputs: Outputs, key: Callable[[Row], list[Any]], value: Callable[[Row], Any]) -> list[State]:
    """The last row of every key that was put out; a value of None removes the key."""
    state: State = {}
    states = []
    for batch in range(outputs.batches):
        for row in outputs.rows.get(batch, []):
            held = value(row)
            if held is None:
                state.pop(json.dumps(key(row)), None)
            else:
                state[json.dumps(key(row))] = held
        states.append(dict(state))
    return states


AGGREGATES = (
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "stddev",
    "variance",
    "sum_d",
    "max_key",
    "sum_decimal",
)


def aggregation(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(
        F.count("*").alias("count"),
        F.sum("n").alias("sum"),
        F.min("n").alias("min"),
        F.max("n").alias("max"),
        F.avg("n").alias("avg"),
        F.first("d").alias("first"),
        F.last("d").alias("last"),
        F.stddev("d").alias("stddev"),
        F.variance("n").alias("variance"),
        F.sum("d").alias("sum_d"),
        F.max("key").alias("max_key"),
        F.sum(F.when(F.col("n") > 0, F.col("n").cast("decimal(30, 2)"))).alias("sum_decimal"),
    )


def aggregation_states(outputs: Outputs) -> list[State]:
    return by_key(outputs, lambda row: [row["key"]], lambda row: [row[name] for name in AGGREGATES])


def windows(frame: DataFrame) -> DataFrame:
    windowed = frame.withWatermark("at", f"{DELAY_S} seconds").groupBy(
        F.window("at", f"{WINDOW_S} seconds"), "key"
    )
    return windowed.agg(F.count("*").alias("count"), F.avg("d").alias("avg"))


def window_states(outputs: Outputs) -> list[State]:
    # Retained: a window is evicted by the batch whose watermark has reached its end.
    states = by_key(outputs, lambda row: [row["window"], row["key"]], lambda row: [row["count"], row["avg"]])
    return [
        {key: value for key, value in state.items() if json.loads(key)[0][1] > outputs.watermark(batch)}
        for batch, state in enumerate(states)
    ]


def sessions(frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("at", f"{DELAY_S} seconds").groupBy(
        F.session_window("at", f"{GAP_S} seconds"), "key"
    )
    return grouped.agg(F.count("*").alias("count"), F.sum("n").alias("sum"))


def session_states(outputs: Outputs) -> list[State]:
    """Open sessions: [key, start] to [end, count, sum]."""
    open_sessions: list[tuple[str | None, int, int, list[int | None]]] = []
    states = []
    for batch in range(outputs.batches):
        for key, n, _, second in BATCHES[batch] if batch < len(BATCHES) else ():
            start, end, numbers = micros(second), micros(second + GAP_S), [n]
            for other in [item for item in open_sessions if item[0] == key]:
                if other[1] <= end and start <= other[2]:
                    open_sessions.remove(other)
                    start, end, numbers = min(start, other[1]), max(end, other[2]), other[3] + numbers
            open_sessions.append((key, start, end, numbers))
        open_sessions = [item for item in open_sessions if item[2] > outputs.watermark(batch)]
        states.append(
            {
                json.dumps([key, start]): [end, len(numbers), total(numbers)]
                for key, start, end, numbers in open_sessions
            }
        )
    return states


def total(numbers: list[int | None]) -> int | None:
    present = [number for number in numbers if number is not None]
    return sum(present) if present else None


def counted(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    count, last = state.get if state.exists else (0, "")
    cleared = False
    for frame in frames:
        count += len(frame)
        last = f"{count} of {key[0]}"
        cleared = cleared or bool((frame["n"] < 0).any())
    if cleared:
        state.remove()
    else:
        state.update((count, last))
    yield pd.DataFrame({"key": [key[0]], "count": [count], "last": [last], "cleared": [cleared]})


def pandas_state(frame: DataFrame) -> DataFrame:
    output = "key string, count long, last string, cleared boolean"
    return (
        frame.withWatermark("at", f"{DELAY_S} seconds")
        .groupBy("key")
        .applyInPandasWithState(
            counted, output, "count long, last string", "update", GroupStateTimeout.EventTimeTimeout
        )
    )


def pandas_states(outputs: Outputs) -> list[State]:
    return by_key(
        outputs,
        lambda row: [row["key"]],
        lambda row: None if row["cleared"] else [[row["count"], row["last"]], -1],
    )


class Ledger(StatefulProcessor):
    """A variable of each kind, with and without a time to live, and a timer; puts out what they hold."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "sum long, last string")
        self.recent = handle.getListState("recent", "n long")
        self.by_second = handle.getMapState("by_second", "second int", "n long")
        self.total_ttl = handle.getValueState("total_ttl", "sum long", TTL_MS)
        self.recent_ttl = handle.getListState("recent_ttl", "n long", TTL_MS)
        self.by_second_ttl = handle.getMapState("by_second_ttl", "second int", "n long", TTL_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        variables = [self.total, self.recent, self.by_second, self.total_ttl, self.recent_ttl, self.by_second_ttl]
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now_ms + TTL_MS)
        for frame in rows:
            for n, at in zip(frame["n"], frame["at"], strict=True):
                number = -3 if pd.isna(n) else int(n)
                second = int(at.timestamp()) - START_S
                if number == -1:
                    for variable in variables:
                        variable.clear()
                    continue
                sum_ = (self.total.get()[0] if self.total.exists() else 0) + number
                self.total.update((sum_, f"at {second}"))
                self.total_ttl.update((sum_,))
                for recent in (self.recent, self.recent_ttl):
                    if number == -2:
                        recent.put([(number,), (sum_,)])
                    else:
                        recent.appendValue((number,))
                for mapped in (self.by_second, self.by_second_ttl):
                    mapped.updateValue((second,), (number,))
                    if second == 203:
                        mapped.removeKey((5,))
        held = {
            "total": list(self.total.get()) if self.total.exists() else None,
            "recent": [list(item) for item in self.recent.get()],
            "by_second": [[list(mapped), list(value)] for mapped, value in self.by_second.iterator()],
            "total_ttl": list(self.total_ttl.get()) if self.total_ttl.exists() else None,
            "recent_ttl": [list(item) for item in self.recent_ttl.get()],
            "by_second_ttl": [[list(mapped), list(value)] for mapped, value in self.by_second_ttl.iterator()],
        }
        text = json.dumps(held, default=int)
        yield pd.DataFrame({"key": [key[0]], "held": [text], "expires_ms": [now_ms + TTL_MS]})

    def close(self) -> None:
        pass


def ledger(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").transformWithStateInPandas(
        statefulProcessor=Ledger(),
        outputStructType="key string, held string, expires_ms long",
        outputMode="Update",
        timeMode="ProcessingTime",
    )


def ledger_states(outputs: Outputs) -> list[State]:
    return by_key(outputs, lambda row: [row["key"]], lambda row: [json.loads(row["held"]), row["expires_ms"]])


SCALA_VARIABLES = ("total", "recent", "by_second", "total_ttl", "recent_ttl", "by_second_ttl", "seen")
"""In the order of the case class ``Held``."""


def scala_ledger(frame: DataFrame) -> DataFrame:
    # In Scala a null key can have no timer.
    return processor(frame.where("key IS NOT NULL"), TTL_MS, START_S)


def scala_ledger_states(outputs: Outputs) -> list[State]:
    return by_key(
        outputs,
        lambda row: [row["key"]],
        lambda row: [dict(zip(SCALA_VARIABLES, row["held"], strict=True)), row["expires_ms"]],
    )


def distinct(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["key"])


def distinct_states(outputs: Outputs) -> list[State]:
    return by_key(outputs, lambda row: [row["key"]], lambda row: [])


def distinct_events(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", f"{DELAY_S} seconds").dropDuplicates(["key", "at"])


def distinct_event_states(outputs: Outputs) -> list[State]:
    states = by_key(outputs, lambda row: [row["key"], row["at"]], lambda row: [])
    return [
        {key: value for key, value in state.items() if json.loads(key)[1] > outputs.watermark(batch)}
        for batch, state in enumerate(states)
    ]


def distinct_within(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", f"{DELAY_S} seconds").dropDuplicatesWithinWatermark(["key"])


def distinct_within_states(outputs: Outputs) -> list[State]:
    state: State = {}
    states = []
    for batch in range(outputs.batches):
        for row in outputs.rows.get(batch, []):
            state[json.dumps([row["key"]])] = [row["at"] + DELAY_S * 1_000_000]
        state = {key: value for key, value in state.items() if value[0] > outputs.watermark(batch)}
        states.append(dict(state))
    return states


def joined(frame: DataFrame) -> DataFrame:
    left = frame.withWatermark("at", f"{DELAY_S} seconds").alias("left")
    right = frame.withWatermark("at", f"{DELAY_S} seconds").alias("right")
    on = F.expr("left.key = right.key AND left.at = right.at")
    return left.join(right, on).select("left.key", "left.n")


def no_states(outputs: Outputs) -> list[State]:
    """Joins are not decoded."""
    return []


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str, Callable[[Outputs], list[State]]]] = {
    "aggregation": (aggregation, "update", aggregation_states),
    "windows": (windows, "update", window_states),
    "sessions": (sessions, "append", session_states),
    "pandas_state": (pandas_state, "update", pandas_states),
    "ledger": (ledger, "update", ledger_states),
    "group_state": (group_state, "update", pandas_states),
    "scala_ledger": (scala_ledger, "update", scala_ledger_states),
    "distinct": (distinct, "append", distinct_states),
    "distinct_events": (distinct_events, "append", distinct_event_states),
    "distinct_within": (distinct_within, "append", distinct_within_states),
    "joined": (joined, "append", no_states),
}

STATE_STORE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
}
CHANGELOG = {**ROCKSDB, f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
PROVIDERS: dict[str, dict[str, str]] = {
    "default": {},
    "rocksdb": ROCKSDB,
    "changelog": CHANGELOG,
    "format2": {**CHANGELOG, f"{STATE_STORE}.checkpointFormatVersion": "2"},
    "format2_rocksdb": {**ROCKSDB, f"{STATE_STORE}.checkpointFormatVersion": "2"},
    "zstd": {f"{STATE_STORE}.compression.codec": "zstd"},
    "snappy": {f"{STATE_STORE}.compression.codec": "snappy"},
    "avro": {**CHANGELOG, f"{STATE_STORE}.encodingFormat": "avro"},
}
PROCESSORS = ("ledger", "scala_ledger")
"""Timers of processing time make batches for ever: each of theirs is a run of its own."""
CHECKPOINTS = (
    *((query, "default") for query in QUERIES if query not in PROCESSORS),
    *((query, "changelog") for query in QUERIES if query != "joined"),
    *((query, "format2") for query in QUERIES if query != "joined"),
    *((query, "rocksdb") for query in QUERIES if query != "joined"),
    ("aggregation", "format2_rocksdb"),
    ("aggregation", "zstd"),
    ("aggregation", "snappy"),
    ("ledger", "avro"),
)


def run(writer: DataStreamWriter) -> dict[int, float]:
    """The watermark of each batch, in seconds since the epoch."""
    query = writer.start()
    try:
        if not query.awaitTermination(120):
            raise TimeoutError("The query has not ended after two minutes.")
    finally:
        query.stop()
    watermarks_s = {}
    for progress in query.recentProgress:
        text = progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z")
        watermarks_s[progress["batchId"]] = datetime.datetime.fromisoformat(text).timestamp()
    return watermarks_s


def write(spark: SparkSession, directory: Path, query: str, provider: str) -> None:
    build, mode, states = QUERIES[query]
    target = directory / f"{query}-{provider}"
    work = directory / "work"
    for stale in (target, work):
        shutil.rmtree(stale, ignore_errors=True)
    work.mkdir(parents=True)
    defaults = {name: spark.conf.get(name, None) for settings in PROVIDERS.values() for name in settings}
    for name, value in PROVIDERS[provider].items():
        spark.conf.set(name, value)
    rows: dict[int, list[Row]] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        rows[batch] = [{name: plain(row[name]) for name in frame.columns} for row in frame.collect()]

    directory_of_events = work / "events"
    directory_of_events.mkdir()
    stepwise = query in PROCESSORS
    watermarks_s: dict[int, float] = {}
    try:
        for number in range(len(BATCHES)):
            write_events(directory_of_events, number)
            if stepwise or number == len(BATCHES) - 1:
                trigger = {"once": True} if stepwise else {"availableNow": True}
                frame = (
                    spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory_of_events))
                )
                writer = build(frame).writeStream.outputMode(mode).option("checkpointLocation", str(target))
                watermarks_s |= run(writer.trigger(**trigger).foreachBatch(keep))
    finally:
        for name, default in defaults.items():
            if default is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, default)
    outputs = Outputs(rows, watermarks_s)
    (target / "expected.json").write_text(json.dumps(states(outputs), indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(target / "sources")
    shutil.rmtree(work)


def main(directory: str, *names: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    Path(directory).mkdir(parents=True, exist_ok=True)
    jar = compile_operators(Path(directory))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", str(jar))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(f"{STATE_STORE}.minDeltasForSnapshot", "3")
        .config(f"{STATE_STORE}.maintenanceInterval", "100ms")
        .config("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for query, provider in CHECKPOINTS:
        if not names or f"{query}-{provider}" in names:
            print(f"{query}-{provider}", flush=True)
            write(spark, Path(directory), query, provider)
    spark.stop()
    jar.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
