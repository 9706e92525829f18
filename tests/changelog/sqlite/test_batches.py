import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite.log_file import WriteRefused
from tests.support.sqlite_partitions import Row, append, fold, logged, rows_of, state


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "0.db")
    sqlite_log_file.create(file, "identity")
    return file


def test_batches_are_appended_one_after_another_without_gaps(path: str) -> None:
    assert append(path, rows_of("a=1 b=2 a"), 0) == (3, 3)
    assert append(path, [], 1) == (0, 3)
    assert append(path, rows_of("c=3", 7), 2) == (1, 4)
    assert logged(path) == [
        (0, b"a", b"1", 1, 0),
        (1, b"b", b"2", 1, 0),
        (2, b"a", None, 1, 0),
        (3, b"c", b"3", 7, 0),
    ]
    assert state(path) == ("identity", 4, 0)


def test_a_batch_larger_than_a_chunk_keeps_its_order(path: str) -> None:
    rows = [(b"%d" % i, b"", i) for i in range(10_000)]
    assert append(path, rows) == (10_000, 10_000)
    assert [(key, timestamp) for _, key, _, timestamp, _ in logged(path)] == [(key, ts) for key, _, ts in rows]
    assert append(path, rows) == (10_000, 10_000)


def test_repeated_batch_returns_the_first_result(path: str) -> None:
    """Nothing is appended."""
    rows = rows_of("a=1 b")
    first = append(path, rows, 0)
    append(path, rows_of("c=3"), 1)
    before = logged(path)

    assert append(path, rows, 0) == first
    assert append(path, rows_of("a=1 b", timestamp_ms=999), 0) == first
    assert logged(path) == before
    assert state(path)[1] == 3


def test_a_repeated_empty_batch_is_skipped(path: str) -> None:
    assert append(path, []) == append(path, []) == (0, 0)


@pytest.mark.parametrize("other", ["", "a=1", "a=1 c", "a=1b", "b", "c=3 d=4"])
def test_repeated_batch_lacking_a_key_is_refused(path: str, other: str) -> None:
    """Nothing is written."""
    append(path, rows_of("a=1 b"), 4)
    before = logged(path), state(path)
    with pytest.raises(WriteRefused, match=r"Batch 4 of 's' .* 2 rows") as caught:
        append(path, rows_of(other), 4)
    assert "new checkpoint" in str(caught.value)
    assert (logged(path), state(path)) == before


@pytest.mark.parametrize("other", ["a=2 b", "a=1 b= ", "a=1 b=2 c=3", "b a=1"])
def test_repeated_batch_with_other_values_replaces_them(path: str, other: str) -> None:
    """From then on a repeat is compared with the new values."""
    append(path, rows_of("a=1 b"), 4)
    count = len(rows_of(other))
    assert append(path, rows_of(other), 4) == (count, 2 + count)
    assert fold(logged(path)) == {key: value for key, value, _ in rows_of(other) if value is not None}
    # From then on they are what a repeat is compared with.
    before = logged(path), state(path)
    assert append(path, rows_of(other), 4) == (count, 2 + count)
    assert (logged(path), state(path)) == before
    assert append(path, rows_of("z=1"), 5) == (1, 3 + count)


def test_dry_run_tells_what_a_batch_would_do(path: str) -> None:
    """Nothing of it stays: no row, no marker, no claim to the writer's name."""

    def dry_run(text: str, batch_id: int, query: str = "q") -> sqlite_batches.WrittenBatch:
        names = {"writer": "w", "query_id": query, "write_name": "s"}
        return sqlite_batches.append_batch(path, rows_of(text), batch_id=batch_id, dry_run=True, **names)

    append(path, rows_of("a=1 b"), 4)
    before = logged(path), state(path)
    assert not dry_run("a=1 b", 4).is_new
    assert dry_run("a=2 b", 4).is_new
    assert dry_run("a=1", 5, "another").is_new
    with pytest.raises(WriteRefused, match="Batch 4"):
        dry_run("a=1", 4)
    assert (logged(path), state(path)) == before
    assert append(path, rows_of("a=1 b"), 4) == (2, 2)


def test_other_values_of_a_batch_before_the_newest_are_refused(path: str) -> None:
    # They would come after what newer batches wrote.
    append(path, rows_of("a=1"), 4)
    append(path, rows_of("a=2"), 5)
    before = logged(path), state(path)
    with pytest.raises(WriteRefused, match="Batch 4"):
        append(path, rows_of("a=3"), 4)
    assert (logged(path), state(path)) == before


def test_batch_digest_separates_keys_from_values(path: str) -> None:
    """Bytes moved from the value to the key, or back, make another batch."""
    append(path, [(b"ab", b"c", 1)])
    with pytest.raises(WriteRefused):
        append(path, [(b"a", b"bc", 1)])
    with pytest.raises(WriteRefused):
        append(path, [(b"abc", b"", 1)])


def test_rows_for_an_older_empty_batch_are_refused(path: str) -> None:
    """A batch before the newest one that had no rows cannot get some later."""
    append(path, rows_of("a=1"), 4)
    append(path, rows_of("a=2"), 6)
    before = logged(path), state(path)
    with pytest.raises(WriteRefused, match=r"Batch 5 .* with 0 rows, and now has 1 others"):
        append(path, rows_of("a=1"), 5)
    assert (logged(path), state(path)) == before
    assert append(path, [], 5) == (0, 2)


def test_an_empty_value_is_no_tombstone_in_a_repeat(path: str) -> None:
    append(path, [(b"a", None, 1)])
    append(path, [(b"a", b"", 1)])
    assert fold(logged(path)) == {b"a": b""}


def test_repeated_versions_must_match_their_times(path: str) -> None:
    """A repeat of unversioned records may carry other timestamps."""

    def write(batch_id: int, time_ms: int, *, timed: bool) -> None:
        rows = [(b"k", b"v", time_ms)]
        sqlite_batches.append_batch(
            path, rows, writer="w", query_id="q", batch_id=batch_id, write_name="s", timed=timed
        )

    write(0, 1, timed=False)
    write(0, 2, timed=False)
    write(1, 1, timed=True)
    write(1, 1, timed=True)
    with pytest.raises(WriteRefused, match="not deterministic"):
        write(1, 2, timed=True)


def test_one_query_may_write_a_batch_under_several_names(path: str) -> None:
    append(path, rows_of("a=1"), 0, write_name="one")
    append(path, rows_of("b=2"), 0, write_name="two")
    assert [key for _, key, *_ in logged(path)] == [b"a", b"b"]


def test_only_recent_batches_are_remembered(path: str) -> None:
    """Old batch markers are removed."""
    for batch in range(100):
        append(path, rows_of(f"k={batch}"), batch)
    for batch in range(60, 100):
        append(path, rows_of(f"k={batch}"), batch)
    assert len(logged(path)) == 100
    with closing(sqlite_log_file.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM batch").fetchone()[0] <= 64


def test_a_batch_older_than_all_that_is_remembered_is_refused(path: str) -> None:
    # A checkpoint from long ago would write old rows over newer ones.
    for batch in range(100):
        append(path, rows_of(f"k={batch}"), batch)
    with pytest.raises(WriteRefused, match="checkpoint is too old"):
        append(path, rows_of("k=20"), 20)
    append(path, [], 21)
    assert len(logged(path)) == 100


def test_rows_that_fail_on_the_way_leave_nothing_behind(path: str) -> None:
    def rows() -> Iterator[Row]:
        yield from [(b"%d" % i, b"", i) for i in range(5000)]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        sqlite_batches.append_batch(path, rows(), writer="w", query_id="q", batch_id=0, write_name="s")
    assert logged(path) == []
    assert append(path, rows_of("a=1"), 0) == (1, 1)


def test_write_to_a_deleted_partition_does_not_recreate_it(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        append(str(tmp_path / "gone.db"), rows_of("a=1"))
    assert list(tmp_path.iterdir()) == []
