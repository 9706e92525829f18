"""What a disk changes in a SQLite log is noticed, and what earlier versions wrote is read all the same."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.changelog import Batch, Consumer
from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.changelog.sqlite.checksums import check, checksum, with_checksums
from forebay.changelog.sqlite.compaction import CompactionLimits, compact
from forebay.changelog.sqlite.consumer import SqliteConsumer
from forebay.changelog.sqlite.partition import WriteRefused
from forebay.errors import ChangelogError
from forebay.task_ids import TopicPartition
from forebay.topology import StoreSpec
from tests.core.changelog.sqlite.test_changelog import append, consuming, pairs, poll_one
from tests.core.changelog.sqlite.test_partition import append as append_to
from tests.core.changelog.sqlite.test_partition import beat, logged, rows_of

repeatable = settings(derandomize=True, deadline=None, max_examples=200)

SPEC = StoreSpec("t", "key-value", "string", "json", "murmur2", "t", 1)
ZERO = TopicPartition("t", 0)
OF_0_1 = """
CREATE TABLE log (
    offset INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB, timestamp_ms INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL);
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL, identity TEXT NOT NULL,
    next_offset INTEGER NOT NULL, tombstone_floor INTEGER NOT NULL);
CREATE TABLE batch (
    query_id TEXT NOT NULL, write_name TEXT NOT NULL, batch_id INTEGER NOT NULL,
    row_count INTEGER NOT NULL, digest BLOB NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (query_id, write_name, batch_id)) WITHOUT ROWID;
CREATE TABLE writer (
    writer TEXT NOT NULL, query_id TEXT NOT NULL, superseded INTEGER NOT NULL,
    PRIMARY KEY (writer, query_id)) WITHOUT ROWID;
INSERT INTO state VALUES (0, 1, 'identity', 3, 0);
INSERT INTO log VALUES (0, x'61', x'31', 1, 0), (1, x'62', NULL, 1, 0), (2, x'61', x'32', 1, 0);
"""


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("t", 1)
    return changelog


@pytest.fixture
def old_log(tmp_path: Path) -> str:
    """A partition as 0.1 left it, with three records."""
    path = str(tmp_path / "old.db")
    with closing(sqlite_partition.connect(path, create=True)) as connection:
        sqlite_partition.enable_wal(connection)
        connection.executescript(OF_0_1)
    return path


def execute(path: str, statement: str) -> None:
    with closing(sqlite_partition.connect(path)) as connection:
        assert connection.execute(statement).rowcount in (-1, 1)


def read(path: str, position: int = 0) -> Batch:
    with closing(consumer_of(path, position)) as consumer:
        return poll_one(consumer)


def consumer_of(path: str, position: int) -> Consumer:
    consumer = SqliteConsumer(lambda tp: path)
    consumer.assign(ZERO, position)
    return consumer


numbers = st.integers(0, 2**62)
records = st.tuples(numbers, st.binary(max_size=20), st.none() | st.binary(max_size=20), numbers, st.booleans())


@repeatable
@given(
    st.integers(0, 2**40),
    st.lists(
        st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=8), st.integers(-(2**40), 2**50)),
        min_size=1,
        max_size=8,
    ),
)
def test_many_rows_get_the_checksums_of_each(offset: int, rows: list[tuple[bytes, bytes | None, int]]) -> None:
    expected = [(at, *row, checksum(at, *row, 0)) for at, row in enumerate(rows, offset)]
    assert with_checksums(offset, rows) == [figure for row in expected for figure in row]


@repeatable
@given(records, st.data())
def test_one_changed_bit_of_any_part_is_noticed(
    record: tuple[int, bytes, bytes | None, int, bool], data: st.DataObject
) -> None:
    offset, key, value, timestamp_ms, heartbeat = record
    row = (offset, key, value, timestamp_ms, int(heartbeat))
    expected = checksum(*row)
    assert check([(*row, expected)], 0).damaged_offset is None
    changes = [
        (offset ^ 1 << data.draw(st.integers(0, 61)), key, value, timestamp_ms, heartbeat),
        (offset, key, value, timestamp_ms ^ 1 << data.draw(st.integers(0, 61)), heartbeat),
        (offset, key, value, timestamp_ms, not heartbeat),
        (offset, key, b"" if value is None else None, timestamp_ms, heartbeat),
        *((offset, changed, value, timestamp_ms, heartbeat) for changed in one_bit_less(key, data)),
        *((offset, key, changed, timestamp_ms, heartbeat) for changed in one_bit_less(value or b"", data)),
    ]
    for changed in changes:
        assert check([(*changed, expected)], 0).damaged_offset == changed[0]


def one_bit_less(content: bytes, data: st.DataObject) -> list[bytes]:
    """The content with one bit changed; nothing if it has none."""
    if not content:
        return []
    at = data.draw(st.integers(0, len(content) - 1))
    return [content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]]


@pytest.mark.parametrize("row", [(1, "text", b"", 1, 0), (1, b"k", 5, 1, 0), (1, b"k", b"", "x", 0)])
def test_what_is_no_record_by_its_types_is_damaged(row: tuple[object, ...]) -> None:
    assert check([(0, b"k", b"", 1, 0, checksum(0, b"k", b"", 1, 0)), (*row, 7)], 0).damaged_offset == 1


def test_every_kind_of_record_has_a_checksum(changelog: SqliteChangelog) -> None:
    path = changelog.path(ZERO)
    append_to(path, rows_of("a=1 b"))
    beat(path)
    sqlite_partition.retire_writer(path, "w")
    with closing(sqlite_partition.connect(path)) as connection:
        found = connection.execute(
            "SELECT offset, key, value, timestamp_ms, heartbeat, checksum FROM log"
        ).fetchall()
    assert len(found) == 4
    assert [row[-1] for row in found] == [checksum(*row[:-1]) for row in found]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log SET value = x'39' WHERE offset = 2",
        "UPDATE log SET value = NULL WHERE offset = 2",
        "UPDATE log SET key = x'7a' WHERE offset = 2",
        "UPDATE log SET key = 'text' WHERE offset = 2",
        "UPDATE log SET timestamp_ms = timestamp_ms + 1099511627776 WHERE offset = 2",
        "UPDATE log SET heartbeat = 1 WHERE offset = 2",
        "UPDATE log SET checksum = checksum + 1 WHERE offset = 2",
        "UPDATE log SET checksum = NULL WHERE offset = 2",
    ],
)
def test_nothing_from_a_damaged_record_on_is_delivered(changelog: SqliteChangelog, damage: str) -> None:
    append(changelog, ZERO, "a=1 b=1 a=2 c=3", 0)
    execute(changelog.path(ZERO), damage)
    with consuming(changelog) as consumer:
        batch = poll_one(consumer)
        assert pairs(batch) == [(0, b"a", b"1"), (1, b"b", b"1")]
        assert (batch.position, batch.gap, batch.end.offset) == (2, False, 4)
        assert consumer.failures() == {}
        # The end is known all the same.
        batch = poll_one(consumer)
        assert (batch.records, batch.position, batch.end.offset) == ([], 2, 4)
        for _ in range(3):
            assert list(consumer.poll(10)) == []
            assert consumer.current()[1] == []
        [failure] = consumer.failures().values()
    assert "The record at offset 2 of 't', partition 0, is damaged in" in failure.reason
    assert "forebay changelog reset" in failure.reason
    assert failure.lasting


def test_a_damaged_record_is_looked_at_again_now_and_then_only(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows it may be thousands of records, and there is nothing to see."""
    append(changelog, ZERO, "a=1", 0)
    execute(changelog.path(ZERO), "UPDATE log SET value = x'39' WHERE offset = 0")
    now = 5_000.0
    monkeypatch.setattr("forebay.changelog.sqlite.consumer.boot_ms", lambda: now)
    with consuming(changelog) as consumer:
        # To open a log may make a file beside it, which looks like a write.
        list(consumer.poll(10))
        list(consumer.poll(10))
        assert [list(consumer.poll(10)) for _ in range(3)] == [[], [], []]
        now += 1_001
        assert poll_one(consumer).records == []


def test_a_digit_that_the_disk_changed_is_noticed(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1006 b=1007 c=1008", 0)
    path = Path(changelog.path(ZERO))
    with closing(sqlite_partition.connect(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert content.count(b"1007") == 1
    path.write_bytes(content.replace(b"1007", b"9007"))
    with consuming(changelog) as consumer:
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1006")]
        assert poll_one(consumer).records == []


def test_reading_goes_on_once_the_record_is_as_it_was(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=2", 0)
    path = changelog.path(ZERO)
    execute(path, "UPDATE log SET value = x'39' WHERE offset = 0")
    with consuming(changelog) as consumer:
        assert poll_one(consumer).records == []
        assert ZERO in consumer.failures()
        execute(path, "UPDATE log SET value = x'31' WHERE offset = 0")
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1"), (1, b"b", b"2")]
        assert consumer.failures() == {}


def test_compaction_removes_no_damaged_record(changelog: SqliteChangelog) -> None:
    """Its key may be another's, and the key's last value in it."""
    append(changelog, ZERO, "a=1 b=1 a=2 b=2", 0)
    execute(changelog.path(ZERO), "UPDATE log SET key = x'61' WHERE offset = 1")
    with pytest.raises(ChangelogError, match=r"could not be compacted.*the record at offset 1 is damaged"):
        changelog.compact(SPEC, CompactionLimits(0, 0))
    assert [offset for offset, *_ in logged(changelog.path(ZERO))] == [0, 1, 2, 3]


def test_compaction_keeps_checksums(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=1 a=2 b=2 c=1", 0)
    assert changelog.compact(SPEC, CompactionLimits(0, 10**9)) == 2
    with consuming(changelog) as consumer:
        batch = poll_one(consumer)
    assert [offset for offset, *_ in batch.records] == [2, 3, 4]
    assert batch.unchecked == 0


def test_records_of_0_1_are_read_and_counted_as_unchecked(old_log: str) -> None:
    batch = read(old_log)
    assert pairs(batch) == [(0, b"a", b"1"), (1, b"b", None), (2, b"a", b"2")]
    assert batch.unchecked == 3


@pytest.mark.parametrize(
    "write",
    [
        lambda path: append_to(path, rows_of("c=3")),
        lambda path: beat(path),
        lambda path: sqlite_partition.retire_writer(path, "w"),
    ],
    ids=["batch", "heartbeat", "retirement"],
)
def test_a_log_of_0_1_has_checksums_from_the_first_write_on(old_log: str, write: object) -> None:
    with closing(consumer_of(old_log, 0)) as consumer:
        assert poll_one(consumer).unchecked == 3
        write(old_log)  # type: ignore[operator]
        # Also for those who had it open.
        batch = poll_one(consumer)
        assert (len(batch.records), batch.unchecked) == (1, 0)
    assert read(old_log).unchecked == 3
    execute(old_log, "UPDATE log SET checksum = NULL WHERE offset = 3")
    assert read(old_log).position == 3


def test_unchecked_records_stay_unchecked_in_compaction(old_log: str) -> None:
    """Records from before checksums existed get none from compaction."""
    append_to(old_log, rows_of("b=3"))
    assert compact(old_log, SPEC, CompactionLimits(0, 10**9), 10**12) == 2
    batch = read(old_log)
    assert (pairs(batch), batch.unchecked) == ([(2, b"a", b"2"), (3, b"b", b"3")], 1)


def test_after_a_reset_every_record_is_checked(old_log: str) -> None:
    sqlite_partition.reset(old_log, "another")
    append_to(old_log, rows_of("a=1"))
    batch = read(old_log)
    assert (batch.identity, len(batch.records), batch.unchecked) == ("another", 1, 0)
    execute(old_log, "UPDATE log SET checksum = NULL WHERE offset = 0")
    assert read(old_log).records == []


def test_a_version_that_knows_no_checksums_refuses_such_a_log(
    old_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to(old_log, rows_of("c=3"))
    monkeypatch.setattr(sqlite_partition, "_FORMAT", 1)
    with pytest.raises(
        WriteRefused, match=r"log format 2; this version supports formats up to 1\. Upgrade forebay"
    ):
        append_to(old_log, rows_of("d=4"), 1)
    with closing(consumer_of(old_log, 0)) as consumer:
        assert list(consumer.poll(10)) == []
        [failure] = consumer.failures().values()
    assert "log format 2; this version supports formats up to 1. Upgrade forebay" in failure.reason


def test_open_consumer_notices_a_newer_format(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        poll_one(consumer)
        execute(changelog.path(ZERO), "UPDATE state SET format = 9")
        assert list(consumer.poll(10)) == []
        assert "log format 9" in consumer.failures()[ZERO].reason


@pytest.mark.parametrize("replaced", [False, True])
def test_replaced_write_ahead_log_is_reported_once(
    changelog: SqliteChangelog, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    """A `-wal` file that was deleted or replaced under an open log is logged once."""
    path = changelog.path(ZERO)
    with consuming(changelog) as consumer:
        append(changelog, ZERO, "a=1", 0)
        assert len(poll_one(consumer).records) == 1
        append(changelog, ZERO, "b=1", 1)
        assert len(poll_one(consumer).records) == 1
        assert caplog.messages == []
        wal = Path(f"{path}-wal")
        other = wal.with_suffix(".other")
        other.write_bytes(wal.read_bytes())
        wal.unlink()
        if replaced:
            os.rename(other, wal)
        for _ in range(3):
            list(consumer.poll(10))
        [line] = [line for line in caplog.messages if "-wal" in line]
        assert line.startswith(f"t-0: {path}-wal is not the file that it was")


def test_write_ahead_log_stays_the_same_file(changelog: SqliteChangelog, caplog: pytest.LogCaptureFixture) -> None:
    """Writes and checkpoints do not replace the `-wal` file."""
    with consuming(changelog) as consumer:
        for batch_id in range(20):
            append(changelog, ZERO, "a=1 b=2", batch_id)
            assert len(poll_one(consumer).records) == 2
            with closing(sqlite3.connect(changelog.path(ZERO))) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            list(consumer.poll(10))
    assert caplog.messages == []
