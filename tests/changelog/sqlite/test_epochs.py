"""A SQLite log that was replaced by an older copy of itself is not taken for the one that a reader left."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forebay.log_epochs import OffsetAndEpoch
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Heartbeat
from forebay_changelog.sqlite import log_file
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
TP = TopicPartition("t", 0)
BEAT = Heartbeat(1, "q", 1).value()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    SqliteChangelog(tmp_path / "log").ensure(SPEC)
    return tmp_path / "log"


def write(changelog: SqliteChangelog, batch: int, *keys: bytes) -> None:
    """A batch and its heartbeat, as a sink writes them."""
    names = {"writer": "w", "query_id": "q", "batch_id": batch}
    changelog.append_batch("t", **names, rows={0: [(key, b"1") for key in keys]}, heartbeat=BEAT)


def polled(changelog: SqliteChangelog, position: int = 0, proof: OffsetAndEpoch | None = None) -> Batch:
    consumer = changelog.consumer()
    consumer.assign(TP, position, proof)
    (batch,) = consumer.poll(1_000)
    consumer.close()
    return batch


def epochs(changelog: SqliteChangelog) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(changelog.path(TP))) as connection:
        return connection.execute("SELECT first_offset, epoch FROM epoch ORDER BY first_offset").fetchall()


def copied(changelog: SqliteChangelog, to: Path) -> Path:
    with closing(sqlite3.connect(changelog.path(TP))) as connection, closing(sqlite3.connect(to)) as copy:
        connection.backup(copy)
    return to


def replaced(changelog: SqliteChangelog, by: Path, *, in_place: bool) -> None:
    path = Path(changelog.path(TP))
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    if not in_place:
        path.unlink()
    shutil.copy(by, path)


@pytest.mark.parametrize("in_place", [True, False], ids=["overwritten", "a new file"])
@pytest.mark.parametrize("same_writer", [True, False], ids=["its writer goes on", "another run of it"])
def test_an_older_copy_that_grew_is_another_history(directory, tmp_path, in_place, same_writer):
    changelog = SqliteChangelog(directory)
    write(changelog, 0, b"a", b"b")
    copy = copied(changelog, tmp_path / "copy.db")
    write(changelog, 1, b"c")
    left = polled(changelog)
    proof = left.proof(None)
    replaced(changelog, copy, in_place=in_place)
    writer = changelog if same_writer else SqliteChangelog(directory)
    for batch in range(2, 5):
        write(writer, batch, b"d")
    found = polled(changelog, left.position, proof)
    assert found.end.offset > left.position
    assert found.truncated
    assert (found.records, found.position) == ([], left.position)


def test_a_log_that_its_reader_left_goes_on(directory):
    changelog = SqliteChangelog(directory)
    write(changelog, 0, b"a")
    left = polled(changelog)
    proof = left.proof(None)
    for run in range(3):
        write(SqliteChangelog(directory), run + 1, b"b")
    changelog.compact(SPEC, CompactionLimits(0, 0))
    found = polled(changelog, left.position, proof)
    assert not found.truncated
    # The newest value and the newest heartbeat are left.
    assert found.records[0][1] == b"b"
    assert found.proof(proof) == polled(changelog).proof(None)


def test_a_run_of_a_writer_is_one_epoch(directory):
    changelog = SqliteChangelog(directory)
    for batch in range(4):
        write(changelog, batch, b"a")
    other = SqliteChangelog(directory)
    for batch in range(4, 8):
        write(other, 2 * batch, b"a")
        write(changelog, 2 * batch + 1, b"b")
    # A writer that knows nothing of the log yet begins one with its batch, and one with the heartbeat after that.
    assert [first for first, _ in epochs(changelog)] == [0, 1, 8, 9]
    assert sorted(epoch for _, epoch in epochs(changelog)) == [epoch for _, epoch in epochs(changelog)]


def test_epochs_are_bounded(directory, monkeypatch):
    monkeypatch.setattr(log_file, "_MAX_EPOCHS", 3)
    for batch in range(9):
        write(SqliteChangelog(directory), batch, b"a")
    changelog = SqliteChangelog(directory)
    assert [first for first, _ in epochs(changelog)] == [15, 16, 17]
    # Who was away for longer cannot be shown that the log is the same.
    assert polled(changelog, 2, OffsetAndEpoch(2, 5)).truncated
