import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from forebay.record_orders import with_order
from forebay_changelog.sqlite import log_file as sqlite_log_file

pytestmark = pytest.mark.spark


@pytest.fixture
def target(tmp_path: Path) -> Any:
    from forebay_spark.executor import Target

    (tmp_path / "t").mkdir()
    (tmp_path / sqlite_log_file.DIRECTORY_ID_FILE).write_text("d")
    for partition in (0, 1):
        sqlite_log_file.create(str(tmp_path / "t" / f"{partition}.db"), "i")
    return Target(str(tmp_path), "d", "here", "t", "w", "q", 0, "w", ordered=False, versioned=False)


def placed(keys: list[bytes], partitions: int = 2) -> list[Any]:
    """Arrow batches of two rows each, in order, as a task gets them that writes all partitions."""
    import pyarrow as pa

    from forebay_spark.executor import KeyColumns, partition_rows

    columns = KeyColumns(("k",), as_json=False, suffix=False, as_text=True)
    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    table = pa.Table.from_batches(list(partition_rows(columns, partitions, (0,) * partitions, None, 0)([batch])))
    ordered = table.sort_by([("partition", "ascending"), ("key", "ascending")])
    return ordered.combine_chunks().to_batches(max_chunksize=2)


def records(target: Any, partition: int) -> int:
    with contextlib.closing(sqlite_log_file.connect(f"{target.directory}/t/{partition}.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM log").fetchone()[0])


def test_rows_that_end_before_their_end_are_not_kept(target):
    from forebay_spark.executor import write_rows

    batches = placed([b"k%d" % n for n in range(20)])
    for arrived in range(1, len(batches)):
        with pytest.raises(EOFError):
            list(write_rows(target)(batches[:arrived]))
        # What comes before another partition's rows is all there is of it.
        partitions = [row for batch in batches[:arrived] for row in batch.column("partition").to_pylist()]
        assert records(target, 0) == (partitions.count(0) if 1 in partitions else 0)
        assert records(target, 1) == 0
    written = [row for batch in write_rows(target)(batches) for row in batch.to_pylist()]
    assert sum(row["row_count"] for row in written) == 20
    assert [row["partition"] for row in written] == [0, 1]
    assert records(target, 0) + records(target, 1) == 20


def test_a_task_without_rows_writes_nothing(target):
    from forebay_spark.executor import write_rows

    assert list(write_rows(target)([])) == []


def test_kafka_is_sent_rows_only():
    from forebay_spark.keyed_records import keyed_records

    sent = list(keyed_records("w", 0, False, False)(placed([b"k%d" % n for n in range(5)])))
    assert sorted(key for batch in sent for key in batch.column("key").to_pylist()) == [
        b"k%d" % n for n in range(5)
    ]


def test_a_key_that_is_no_text_is_refused():
    from forebay_changelog.sqlite.log_file import WriteRefused

    with pytest.raises(WriteRefused, match="not valid UTF-8"):
        placed([b"good", b"\xff"])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"window": "visit"}, r"null window or session \(column 'visit'\)"),
        ({"latest_by": "n"}, r"null order \(column 'n'"),
    ],
)
def test_a_row_without_the_end_of_its_key_is_refused(columns, what):
    """The end is the times of its window, or its order."""
    import pyarrow as pa

    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.executor import KeyColumns, place_rows

    key_columns = KeyColumns(("k",), as_json=False, suffix=True, as_text=True, **columns)
    members = {"key": [b"a", b"b"], "suffix": [b"12345678", None], "value": [b"1", b"2"]}
    arrays = {name: pa.array(values, pa.binary()) for name, values in members.items()}
    with pytest.raises(WriteRefused, match=f"^1 rows of this task have a {what}"):
        list(place_rows(key_columns, 2, None, 0)([pa.RecordBatch.from_pydict(arrays)]))


@pytest.mark.parametrize("missing", [True, False])
def test_a_log_that_cannot_be_written_is_named(target, missing):
    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.executor import write_rows

    path = Path(target.directory, "t", "0.db")
    path.unlink()
    if not missing:
        path.write_bytes(b"not a database" * 100)
    with pytest.raises(WriteRefused, match=r"0\.db cannot be written: .* writing to it for 120 seconds\?"):
        list(write_rows(target)(placed([b"k%d" % n for n in range(20)])))


def test_values_of_one_order_are_refused_unless_equal(target):
    """Sources deliver records again, but of two values of one order nothing says which is the latest."""
    from forebay_changelog.sqlite.log_file import WriteRefused
    from forebay_spark.executor import checked

    latest = dataclasses.replace(target, latest=True)
    key, later = with_order(b"k", 1), with_order(b"k", 2)
    assert list(checked([(key, b"1", 0), (key, b"1", 0), (later, b"2", 0)], latest)) == [
        (key, b"1", 0),
        (later, b"2", 0),
    ]
    with pytest.raises(WriteRefused, match="more than one row for the key b'k' of 'w' with the order 1"):
        list(checked([(key, b"1", 0), (key, b"2", 0)], latest))
