"""Rows that go through sorted runs come out as if they had been sorted at once."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.partitioning import Murmur2Partitioner
from forebay_changelog.sqlite import log_file as sqlite_log_file

pytestmark = pytest.mark.spark

PARTITIONS = 3
Row = tuple[bytes, bytes | None]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    (directory / "t").mkdir()
    (directory / sqlite_log_file.DIRECTORY_ID_FILE).write_text("d")
    return directory


def target(directory: Path, latest: bool = False) -> Any:
    from forebay_spark.executor import Target

    return Target(
        str(directory), "d", "here", "t", "w", "q", 0, "w", ordered=False, versioned=False, latest=latest
    )


def runs(directory: Path, *tasks: list[list[Row]]) -> list[Any]:
    """What tasks with these batches of rows put on disk."""
    import pyarrow as pa

    from forebay_spark.executor import KeyColumns, place_rows
    from forebay_spark.sorted_runs import RunPart, write_runs

    place = place_rows(KeyColumns(("k",), as_json=False, suffix=False, as_text=True), PARTITIONS, None, 7)
    write = write_runs(target(directory), str(directory), place)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])

    def batch(rows: list[Row]) -> Any:
        return pa.RecordBatch.from_arrays([*map(pa.array, zip(*rows, strict=True))], schema=schema)

    written = (write(batch(rows) for rows in task if rows) for task in tasks)
    return [RunPart(**row) for of_task in written for found in of_task for row in found.to_pylist()]


def appended(directory: Path, parts: list[Any], latest: bool = False) -> dict[int, list[Row]]:
    """What the partitions have once two tasks have appended these."""
    import pyarrow as pa

    from forebay_spark.sorted_runs import append_runs

    for partition in range(PARTITIONS):
        for file in (directory / "t").glob(f"{partition}.db*"):
            file.unlink()
        sqlite_log_file.create(str(directory / "t" / f"{partition}.db"), "i")
    by_task = [[part for part in parts if part.partition % 2 == task] for task in (0, 1)]
    append = append_runs(target(directory, latest), by_task)
    batches = append(pa.record_batch({"id": [task]}) for task in (0, 1))
    written = [row for batch in batches for row in batch.to_pylist()]
    logs = {row["partition"]: log_of(directory, row["partition"]) for row in written}
    assert {row["partition"]: row["row_count"] for row in written} == {
        each: len(log) for each, log in logs.items()
    }
    return logs


def log_of(directory: Path, partition: int) -> list[Row]:
    connection = sqlite_log_file.connect(str(directory / "t" / f"{partition}.db"))
    found: list[Row] = connection.execute("SELECT key, value FROM log ORDER BY offset").fetchall()
    connection.close()
    return found


keys = st.sets(st.text("ab", max_size=5).map(str.encode), min_size=20, max_size=40)
repeatable = settings(
    derandomize=True, deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@repeatable
@given(keys, st.data())
def test_each_partition_gets_its_rows_by_key(directory, monkeypatch, keys, data):
    """Runs of few bytes, merged few rows at a time."""
    from forebay_spark import sorted_runs

    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 60)
    monkeypatch.setattr(sorted_runs, "CHUNK_ROWS", data.draw(st.integers(1, 4)))
    shuffled = data.draw(st.permutations(sorted(keys)))
    rows = [(key, data.draw(st.none() | st.binary(max_size=3))) for key in shuffled]
    at = data.draw(st.integers(0, len(rows)))
    parts = runs(directory, [rows[:at][i : i + 3] for i in range(0, at, 3)], [rows[at:]])
    partitioner, expected = Murmur2Partitioner(), {}
    for key, value in sorted(rows, key=lambda row: row[0]):
        expected.setdefault(partitioner.partition(key, PARTITIONS), []).append((key, value))
    assert appended(directory, parts) == expected


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_rows_of_one_key_are_refused_wherever_they_are(directory, monkeypatch, chunk_rows):
    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark import sorted_runs

    monkeypatch.setattr(sorted_runs, "CHUNK_ROWS", chunk_rows)
    of_two_tasks = runs(directory, [[(b"k", b"1")]], [[(b"k", b"2")]])
    of_one = runs(directory, [[(b"k", b"1"), (b"k", b"2")]])
    for parts in (of_two_tasks, of_one):
        with pytest.raises(WriteRefused, match="more than one row for the key b'k'"):
            appended(directory, parts)


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_a_row_delivered_twice_with_one_order_counts_once(directory, monkeypatch, chunk_rows):
    from forebay.record_orders import with_order
    from forebay_spark import sorted_runs

    monkeypatch.setattr(sorted_runs, "CHUNK_ROWS", chunk_rows)
    row = (with_order(b"k", 0).replace(b"\x80", b"\x00"), b"1")
    [(_, found)] = appended(directory, runs(directory, [[row, row]], [[row]]), latest=True).items()
    assert found == [row]


def test_runs_are_refused_where_the_log_is_not(directory, tmp_path):
    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.sorted_runs import write_runs

    with pytest.raises(WriteRefused, match="is not the one that the executor"):
        list(write_runs(target(tmp_path), str(directory), iter)(iter([])))
