import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from forebay.partitioning import Murmur2Partitioner
from forebay.record_orders import with_order
from forebay_changelog.sqlite import log_file as sqlite_log_file

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Any:
    from forebay_spark.executor import BatchId, Target

    (tmp_path / "t").mkdir()
    (tmp_path / sqlite_log_file.DIRECTORY_ID_FILE).write_text("d")
    for partition in (0, 1):
        sqlite_log_file.create(str(tmp_path / "t" / f"{partition}.db"), "i")
    return Target(str(tmp_path), "d", "here", "t", BatchId("q", 0, "w", ()), timestamp_ms=0)


def placed(keys: list[bytes], partitions: int = 2) -> list[Any]:
    """Arrow batches of two rows each, in order, as a task gets them that writes all partitions."""
    import pyarrow as pa

    from forebay_spark.executor import END

    chosen = [Murmur2Partitioner().partition(key, partitions) for key in keys]
    columns = {
        "partition": pa.array([*chosen, END], pa.int32()),
        "key": pa.array([*keys, b""], pa.binary()),
        "value": pa.array([*keys, None], pa.binary()),
    }
    ordered = pa.table(columns).sort_by([("partition", "ascending"), ("key", "ascending")])
    return ordered.combine_chunks().to_batches(max_chunksize=2)


def records(target: Any, partition: int) -> int:
    with contextlib.closing(sqlite_log_file.connect(f"{target.directory}/t/{partition}.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM log").fetchone()[0])


def test_rows_that_end_before_their_end_are_not_kept(target):
    from forebay_spark.executor import append_rows

    batches = placed([b"k%d" % n for n in range(20)])
    for arrived in range(1, len(batches)):
        with pytest.raises(EOFError):
            list(append_rows(target)(batches[:arrived]))
        # What comes before another partition's rows is all there is of it.
        partitions = [row for batch in batches[:arrived] for row in batch.column("partition").to_pylist()]
        assert records(target, 0) == (partitions.count(0) if 1 in partitions else 0)
        assert records(target, 1) == 0
    written = [row for batch in append_rows(target)(batches) for row in batch.to_pylist()]
    assert written == [{"partition": 0}, {"partition": 1}]
    assert records(target, 0) + records(target, 1) == 20


def test_a_task_without_rows_writes_nothing(target):
    from forebay_spark.executor import append_rows

    assert list(append_rows(target)([])) == []


@pytest.mark.parametrize("missing", [True, False])
def test_a_log_that_cannot_be_written_is_named(target, missing):
    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.executor import append_rows

    path = Path(target.directory, "t", "0.db")
    path.unlink()
    if not missing:
        path.write_bytes(b"not a database" * 100)
    with pytest.raises(WriteRefused, match=r"0\.db cannot be written: .* writing to it for 120 seconds\?"):
        list(append_rows(target)(placed([b"k%d" % n for n in range(20)])))


def test_values_of_one_order_are_refused_unless_equal(target):
    """Sources deliver records again, but of two values of one order nothing says which is the latest."""
    import pyarrow as pa

    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.executor import END, append_rows

    append = append_rows(dataclasses.replace(target, latest=True))
    key, later = with_order(b"k", 1), with_order(b"k", 2)

    def batch(rows: list[tuple[bytes, bytes]]) -> Any:
        columns = {
            "partition": pa.array([0] * len(rows) + [END], pa.int32()),
            "key": pa.array([key for key, _ in rows] + [b""]),
            "value": pa.array([value for _, value in rows] + [None], pa.binary()),
        }
        return pa.RecordBatch.from_pydict(columns)

    with pytest.raises(WriteRefused, match="more than one row for the key b'k' of 'w' with the order 1"):
        list(append([batch([(key, b"1"), (key, b"2")])]))
    assert records(target, 0) == 0
    list(append([batch([(key, b"1"), (key, b"1"), (later, b"2")])]))
    assert records(target, 0) == 2
