"""Each argument of the sink, of its queries, batches and fills has an effect: on the log, or as a refusal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forebay.errors import SinkError, TopicMissing
from forebay.topology_file import parse_topology
from tests.end_to_end.test_spark_sink import Source, content
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

SCHEMA = "k string, o string, n int, gone boolean"
Row = tuple[str | None, str, int, bool]
ROWS: list[Row] = [("a", "x", 1, False), ("b", "y", 2, True)]
BY_KEY = {"key": "k", "value": "n", "flatten": True}
FILLED = {b"a": 1, b"b": 2}


class Case(NamedTuple):
    """Arguments that name columns, and what is then in the log."""

    columns: dict[str, Any]
    written: dict[bytes, Any]
    rows: list[Row] = ROWS


COLUMNS = {
    "key": Case({**BY_KEY, "key": "o"}, {b"x": 1, b"y": 2}),
    "value": Case({"key": "k", "value": ["n"]}, {b"a": {"n": 1}, b"b": {"n": 2}}),
    "flatten": Case(BY_KEY, FILLED),
    "order_by": Case({**BY_KEY, "order_by": "o"}, {b"a": 1}, [("a", "x", 3, False), ("a", "y", 1, False)]),
    "delete": Case({**BY_KEY, "delete": "gone"}, {b"a": 1}),
    "null_keys": Case({**BY_KEY, "null_keys": "drop"}, {b"a": 1}, [*ROWS[:1], (None, "y", 2, False)]),
}
STORES = [{"name": name} for name in (*COLUMNS, "plain", "other")]
TOPOLOGY = {"application_id": "t", "subtopology": [{"name": "all", "partitions": 2, "store": STORES}]}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def sink(spark: Any, tmp_path: Path) -> Any:
    from forebay.spark import Sink

    return Sink(parse_topology(TOPOLOGY), changelog=f"sqlite://{tmp_path}/log")


def frame(spark: Any, rows: list[Row] = ROWS) -> Any:
    return spark.createDataFrame(rows, SCHEMA)


def stream(spark: Any, directory: Path, rows: list[Row] = ROWS) -> Any:
    source = Source(spark, directory, SCHEMA)
    source.add(*[dict(zip(("k", "o", "n", "gone"), row, strict=True)) for row in rows])
    return source.df


def started(writer: Any, directory: Path) -> Any:
    return writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()


def in_batch(spark: Any, directory: Path, act: Callable[[Any, int], None]) -> Any:
    """A query of one micro-batch, in which something is done."""
    df = stream(spark, directory / "batch")
    writer = df.writeStream.foreachBatch(act).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert query.exception() is None
    return query


def arguments(function: Callable[..., Any]) -> set[str]:
    """The names of all arguments, in place of the columns each of theirs."""
    from forebay_spark.columns import ColumnArguments

    names = set(inspect.signature(function).parameters) - {"self"}
    return names if "columns" not in names else (names - {"columns"}) | ColumnArguments.__annotations__.keys()


def has_written(sink: Any, store: str, writer: str, query: Any) -> bool:
    topic = sink.topology.stores[store].topic
    return sink._changelog.has_written(topic, writer=writer, query_id=str(query.id)) is True


def test_the_sinks_own_arguments(sink: Any, tmp_path: Path) -> None:
    from forebay.spark import Sink

    topology, url = parse_topology(TOPOLOGY), f"sqlite://{tmp_path}/elsewhere"
    with pytest.raises(TopicMissing):
        Sink(topology, changelog=url, create_topics=False)
    assert Sink(topology, changelog=url).topology is topology
    assert Sink(topology, changelog=url, create_topics=False)._changelog.url == url
    assert arguments(Sink.__init__) == {"topology", "changelog", "create_topics"}


def test_each_argument_of_a_query(spark: Any, sink: Any, tmp_path: Path) -> None:
    """Together, since queries take their time."""
    from forebay.spark import Sink

    begun = {
        name: started(
            sink.write(stream(spark, tmp_path / name, case.rows), name, writer=f"w-{name}", **case.columns),
            tmp_path / f"checkpoint-{name}",
        )
        for name, case in COLUMNS.items()
    }
    for name, query in begun.items():
        query.awaitTermination(60)
        assert (query.name, query.exception()) == (f"w-{name}", None)
        assert has_written(sink, name, f"w-{name}", query)
    assert {name: content(sink, name) for name in COLUMNS} == {
        name: case.written for name, case in COLUMNS.items()
    }

    def of(**given: bool) -> Any:
        return sink.write(begun_df, "plain", key="k", **given)._write_to.writer

    begun_df = stream(spark, tmp_path / "more")
    of(store_begins_here=True).check_continuity("earlier", continued=True)
    with pytest.raises(SinkError, match="has nothing of it"):
        of().check_continuity("earlier", continued=True)
    assert (of(bootstrap=True).bootstraps, of().bootstraps) == (True, False)
    walked = {"df", "store", "writer", "store_begins_here", "bootstrap"}
    assert arguments(Sink.write) == walked | COLUMNS.keys()


def test_each_argument_of_a_batch(spark: Any, sink: Any, tmp_path: Path) -> None:
    from forebay.spark import Sink

    refusals: list[str] = []

    def outputs(batch: Any, batch_id: int) -> None:
        session = batch.sparkSession
        for name, case in COLUMNS.items():
            sink.write_batch(frame(session, case.rows), batch_id, name, **case.columns)
        # That its first batch is the seventh means that it goes on elsewhere, which is refused otherwise.
        sink.write_batch(batch, 7, "plain", writer="mine", store_begins_here=True, **BY_KEY)
        with pytest.raises(SinkError) as refused:
            sink.write_batch(batch, 7, "plain", writer="mine", **BY_KEY)
        refusals.append(str(refused.value))

    query = in_batch(spark, tmp_path, outputs)
    assert {name: content(sink, name) for name in COLUMNS} == {
        name: case.written for name, case in COLUMNS.items()
    }
    assert refusals[0].startswith("plain: batch 7 was already written under the writer 'mine'")
    assert content(sink, "plain") == FILLED
    assert has_written(sink, "plain", "mine", query)
    walked = {"df", "batch_id", "store", "writer", "store_begins_here"}
    assert arguments(Sink.write_batch) == walked | COLUMNS.keys()


def test_each_argument_of_a_fill(spark: Any, sink: Any) -> None:
    from forebay.spark import Sink

    for name, case in COLUMNS.items():
        sink.fill(frame(spark, case.rows), name, name="first", **case.columns)
        assert (name, content(sink, name)) == (name, case.written)
    others = frame(spark, [("c", "z", 3, False)])
    with pytest.raises(SinkError, match="a fill named 'first' was already through"):
        sink.fill(others, "flatten", name="first", **BY_KEY)
    assert sink.fill(others, "flatten", name="first", if_written="skip", **BY_KEY).skipped
    sink.fill(others, "flatten", name="second", **BY_KEY)
    assert content(sink, "flatten") == {**FILLED, b"c": 3}
    with pytest.raises(SinkError, match="more than max_deleted=1"):
        sink.fill(others, "flatten", name="third", snapshot=True, max_deleted=1, **BY_KEY)
    sink.fill(others, "flatten", name="third", snapshot=True, max_deleted=2, **BY_KEY)
    assert content(sink, "flatten") == {b"c": 3}
    walked = {"df", "store", "name", "snapshot", "max_deleted", "if_written"}
    assert arguments(Sink.fill) == walked | COLUMNS.keys()
