import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.partition import WriteRefused, heartbeat_key

repeatable = settings(derandomize=True, deadline=None, max_examples=50)

Row = tuple[bytes, bytes | None, int]
Logged = tuple[int, bytes, bytes | None, int, int]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "0.db")
    sqlite_partition.create(file, "identity")
    return file


def append(
    path: str,
    rows: Sequence[Row],
    batch_id: int = 0,
    *,
    query: str = "q",
    writer: str = "w",
    write_name: str = "s",
) -> tuple[int, int]:
    return sqlite_partition.append_batch(
        path, rows, writer=writer, query_id=query, batch_id=batch_id, write_name=write_name
    )


def beat(path: str, value: bytes = b"{}", *, query: str = "q", writer: str = "w") -> int:
    return sqlite_partition.append_heartbeat(path, writer=writer, query_id=query, value=value)[1]


def logged(path: str) -> list[Logged]:
    with closing(sqlite_partition.connect(path)) as connection:
        return connection.execute(
            "SELECT offset, key, value, timestamp_ms, heartbeat FROM log ORDER BY offset"
        ).fetchall()


def state(path: str) -> tuple[str, int, int]:
    with closing(sqlite_partition.connect(path)) as connection:
        found: tuple[str, int, int] = connection.execute(
            "SELECT identity, next_offset, tombstone_floor FROM state"
        ).fetchone()
    return found


def fold(records: list[Logged]) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for _, key, value, _, _ in records:
        content.pop(key, None)
        if value is not None:
            content[key] = value
    return content


def rows_of(text: str, timestamp_ms: int = 1) -> list[Row]:
    """One row a word: ``k=v``, or ``k`` alone for a tombstone."""
    return [
        (key.encode(), value.encode() if equals else None, timestamp_ms)
        for key, equals, value in (word.partition("=") for word in text.split())
    ]


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
        sqlite_partition.append_batch(
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
    with closing(sqlite_partition.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM batch").fetchone()[0] <= 64


def test_a_batch_older_than_all_that_is_remembered_is_refused(path: str) -> None:
    # A checkpoint from long ago would write old rows over newer ones.
    for batch in range(100):
        append(path, rows_of(f"k={batch}"), batch)
    with pytest.raises(WriteRefused, match="checkpoint is too old"):
        append(path, rows_of("k=20"), 20)
    assert len(logged(path)) == 100


def test_rows_that_fail_on_the_way_leave_nothing_behind(path: str) -> None:
    def rows() -> Iterator[Row]:
        yield from [(b"%d" % i, b"", i) for i in range(5000)]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        sqlite_partition.append_batch(path, rows(), writer="w", query_id="q", batch_id=0, write_name="s")
    assert logged(path) == []
    assert append(path, rows_of("a=1"), 0) == (1, 1)


def test_superseded_query_is_refused(path: str) -> None:
    """Neither batches nor heartbeats of the superseded query are written."""
    append(path, rows_of("a=1"), 0, query="old")
    append(path, rows_of("a=2"), 0, query="new")
    before = logged(path)
    with pytest.raises(WriteRefused, match="Two queries write as 'w': query old") as caught:
        append(path, rows_of("a=3"), 1, query="old")
    assert "writer=" in str(caught.value)
    with pytest.raises(WriteRefused):
        append(path, rows_of("a=1"), 0, query="old")
    with pytest.raises(WriteRefused):
        beat(path, query="old")
    assert logged(path) == before
    append(path, rows_of("a=4"), 1, query="new")


def test_a_heartbeat_supersedes_as_a_batch_does(path: str) -> None:
    append(path, rows_of("a=1"), 0, query="old")
    beat(path, query="new")
    with pytest.raises(WriteRefused):
        append(path, rows_of("a=2"), 1, query="old")


def test_failed_batch_does_not_supersede_a_query(path: str) -> None:
    """A query supersedes another only with a batch that was committed."""
    append(path, rows_of("a=1"), 0, query="one")

    def broken() -> Iterator[Row]:
        yield from rows_of("a=2")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        sqlite_partition.append_batch(path, broken(), writer="w", query_id="two", batch_id=0, write_name="s")
    append(path, rows_of("a=2"), 1, query="one")


def test_two_queries_under_names_of_their_own_both_write(path: str) -> None:
    for batch in range(3):
        append(path, rows_of("a=1"), batch, query="one", writer="first")
        append(path, rows_of("b=1"), batch, query="two", writer="second")
    assert len(logged(path)) == 6


def test_a_heartbeat_takes_an_offset_and_is_marked(path: str) -> None:
    append(path, rows_of("a=1"))
    assert beat(path, b'{"as_of_ms":1}', writer="w") == 2
    offset, key, value, timestamp_ms, heartbeat = logged(path)[-1]
    assert (offset, key, value, heartbeat) == (1, heartbeat_key("w"), b'{"as_of_ms":1}', 1)
    assert timestamp_ms > 1_700_000_000_000


def test_retired_writer_leaves_a_tombstone(path: str) -> None:
    """The writer's name is free again."""
    beat(path, query="old")
    beat(path, query="new")
    sqlite_partition.retire_writer(path, "w")
    assert logged(path)[-1][:3] == (2, heartbeat_key("w"), None)
    assert logged(path)[-1][4] == 1
    assert beat(path, query="old") == 4


def test_a_reset_partition_is_empty_and_another_log(path: str) -> None:
    append(path, rows_of("a=1 a"), 0, query="old")
    append(path, rows_of("b=1"), 0, query="new")
    sqlite_partition.reset(path, "another")
    assert logged(path) == []
    assert state(path) == ("another", 0, 0)
    assert append(path, rows_of("z=1"), 0, query="old") == (1, 1)


def test_creating_a_partition_again_changes_nothing(path: str) -> None:
    append(path, rows_of("a=1"))
    assert sqlite_partition.create(path, "another") == "identity"
    assert state(path) == ("identity", 1, 0)
    assert len(logged(path)) == 1


def test_a_log_of_a_later_format_is_refused_with_the_remedy(path: str) -> None:
    with closing(sqlite_partition.connect(path)) as connection:
        connection.execute("UPDATE state SET format = format + 1")
    with pytest.raises(WriteRefused, match="Upgrade forebay"):
        sqlite_partition.create(path, "identity")


def test_write_to_a_deleted_partition_does_not_recreate_it(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        append(str(tmp_path / "gone.db"), rows_of("a=1"))
    assert list(tmp_path.iterdir()) == []


def test_an_executor_that_sees_the_drivers_directory_may_write(tmp_path: Path) -> None:
    (tmp_path / sqlite_partition.DIRECTORY_ID_FILE).write_text("abc driver\n")
    sqlite_partition.check_directory(str(tmp_path), "abc driver", "driver", "executor")


@pytest.mark.parametrize("found", [None, "", "def driver\n"])
def test_executor_with_another_directory_is_refused(tmp_path: Path, found: str | None) -> None:
    """The error names the hosts of the driver and of the executor."""
    if found is not None:
        (tmp_path / sqlite_partition.DIRECTORY_ID_FILE).write_text(found)
    with pytest.raises(WriteRefused, match="SQLite serves one machine") as caught:
        sqlite_partition.check_directory(str(tmp_path), "abc driver", "driver-host", "executor-host")
    for part in (str(tmp_path), "driver-host", "executor-host"):
        assert part in str(caught.value)
