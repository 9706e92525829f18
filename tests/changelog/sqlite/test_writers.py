from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_changelog.record_headers import heartbeat_key
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite import writers as sqlite_writers
from forebay_changelog.sqlite.log_file import WriteRefused
from tests.support.sqlite_partitions import Row, append, beat, logged, rows_of


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "0.db")
    sqlite_log_file.create(file, "identity")
    return file


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
        sqlite_batches.append_batch(path, broken(), writer="w", query_id="two", batch_id=0, write_name="s")
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
    sqlite_writers.retire_writer(path, "w")
    assert logged(path)[-1][:3] == (2, heartbeat_key("w"), None)
    assert logged(path)[-1][4] == 1
    assert beat(path, query="old") == 4
