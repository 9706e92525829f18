"""What a disk changes in a SQLite log is noticed."""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ChangelogError
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Consumer
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite import writers as sqlite_writers
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.checksums import Checked, check, checksum, with_checksums, without_holes
from forebay_changelog.sqlite.compaction import CompactionLimits, compact
from forebay_changelog.sqlite.consumer import SqliteConsumer
from tests.changelog.sqlite.test_changelog import append, consuming, pairs, poll_one
from tests.support.sqlite_partitions import append as append_to
from tests.support.sqlite_partitions import beat, logged, rows_of

repeatable = settings(derandomize=True, deadline=None, max_examples=200)

SPEC = StoreSpec("t", "key-value", "string", "json", "murmur2", "t", 1)
ZERO = TopicPartition("t", 0)


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("t", 1)
    return changelog


def execute(path: str, statement: str) -> None:
    with closing(sqlite_log_file.connect(path)) as connection:
        assert connection.execute(statement).rowcount in (-1, 1)


def read(path: str, position: int) -> Batch:
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
    assert check([(*row, expected)]).damaged_offset is None
    changes = [
        (offset ^ 1 << data.draw(st.integers(0, 61)), key, value, timestamp_ms, heartbeat),
        (offset, key, value, timestamp_ms ^ 1 << data.draw(st.integers(0, 61)), heartbeat),
        (offset, key, value, timestamp_ms, not heartbeat),
        (offset, key, b"" if value is None else None, timestamp_ms, heartbeat),
        *((offset, changed, value, timestamp_ms, heartbeat) for changed in one_bit_less(key, data)),
        *((offset, key, changed, timestamp_ms, heartbeat) for changed in one_bit_less(value or b"", data)),
    ]
    for changed in changes:
        assert check([(*changed, expected)]).damaged_offset == changed[0]


def one_bit_less(content: bytes, data: st.DataObject) -> list[bytes]:
    """The content with one bit changed; nothing if it has none."""
    if not content:
        return []
    at = data.draw(st.integers(0, len(content) - 1))
    return [content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]]


@pytest.mark.parametrize("row", [(1, "text", b"", 1, 0), (1, b"k", 5, 1, 0), (1, b"k", b"", "x", 0)])
def test_what_is_no_record_by_its_types_is_damaged(row: tuple[object, ...]) -> None:
    assert check([(0, b"k", b"", 1, 0, checksum(0, b"k", b"", 1, 0)), (*row, 7)]).damaged_offset == 1


def test_every_kind_of_record_has_a_checksum(changelog: SqliteChangelog) -> None:
    path = changelog.path(ZERO)
    append_to(path, rows_of("a=1 b"))
    beat(path)
    sqlite_writers.retire_writer(path, "w")
    with closing(sqlite_log_file.connect(path)) as connection:
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
    ],
)
def test_nothing_from_a_damaged_record_on_is_delivered(changelog: SqliteChangelog, damage: str) -> None:
    append(changelog, ZERO, "a=1 b=1 a=2 c=3", 0)
    execute(changelog.path(ZERO), damage)
    with consuming(changelog) as consumer:
        batch = poll_one(consumer)
        assert pairs(batch) == [(0, b"a", b"1"), (1, b"b", b"1")]
        # The end is known all the same.
        assert (batch.position, batch.gap, batch.end.offset) == (2, False, 4)
        # To open a log may make a file beside it, which looks like a write.
        list(consumer.poll(10))
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
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.boot_ms", lambda: now)
    with consuming(changelog) as consumer:
        list(consumer.poll(10))
        assert [list(consumer.poll(10)) for _ in range(3)] == [[], [], []]
        now += 1_001
        assert poll_one(consumer).records == []


def test_a_digit_that_the_disk_changed_is_noticed(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1006 b=1007 c=1008", 0)
    path = Path(changelog.path(ZERO))
    with closing(sqlite_log_file.connect(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert content.count(b"1007") == 1
    path.write_bytes(content.replace(b"1007", b"9007"))
    with consuming(changelog) as consumer:
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1006")]
        assert "offset 1" in consumer.failures()[ZERO].reason


@pytest.mark.parametrize(
    ("offsets", "begin", "end", "kept", "damaged"),
    [
        ([3, 4, 5], 3, 6, 3, None),
        ([3, 4, 5], 3, 7, 3, 6),
        ([3, 5, 6], 3, 7, 1, 4),
        # Compaction may have removed those before.
        ([1, 3, 5, 6], 5, 7, 4, None),
        ([1, 3, 6], 5, 7, 2, 5),
        ([3, 4, 4], 3, 6, 2, 5),
        ([3, 4, 2], 3, 6, 2, 5),
        ([], 3, 4, 0, 3),
        ([3, 4, 5], 3, 5, 2, 5),
    ],
)
def test_records_that_do_not_ascend_or_have_a_hole_are_cut(
    offsets: list[int], begin: int, end: int, kept: int, damaged: int | None
) -> None:
    checked = Checked([(offset, b"k", b"1", 1, False) for offset in offsets], None)
    found = without_holes(checked, begin, end, are_all=True)
    assert ([record[0] for record in found.records], found.damaged_offset) == (offsets[:kept], damaged)


def test_a_record_whose_offset_is_damaged_is_not_stepped_over(tmp_path: Path) -> None:
    """Compaction has removed others before it, so that a hole is none to wonder at."""
    path = tmp_path / "0.db"
    sqlite_log_file.create(str(path), "identity")
    append_to(str(path), [(b"key%d" % key, b"%d" % key, 1) for key in range(200)])
    with closing(sqlite_log_file.connect(str(path))) as connection:
        connection.execute("UPDATE state SET removed_to = 200")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    # The last 150 before the key is the record's offset, which becomes 22.
    content[content.rindex(b"\x81\x16", 0, content.index(b"key150150"))] ^= 1
    path.write_bytes(content)
    assert read(str(path), 150).records == []
    with closing(consumer_of(str(path), 150)) as consumer:
        list(consumer.poll(10))
        assert "offset 150" in consumer.failures()[ZERO].reason


@pytest.fixture(params=["never compacted", "compacted"])
def long_log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A partition of several pages, all in one file."""
    path = tmp_path / "0.db"
    sqlite_log_file.create(str(path), "identity")
    for batch in range(10):
        rows = [(b"key%d" % key, b"value%d-%d" % (batch, key), 1) for key in range(20)]
        sqlite_batches.append_batch(str(path), rows, writer="w", query_id="q", batch_id=batch, write_name="w")
        if request.param == "compacted" and batch == 4:
            assert compact(str(path), SPEC, CompactionLimits(0, 10**9), 10**12) == 80
    with closing(sqlite_log_file.connect(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def folded(path: Path, polls: int) -> dict[bytes, bytes | None] | None:
    """What a reader of a log has in the end, who starts anew after some polls; None if it knows of damage."""
    values: dict[bytes, bytes | None] = {}
    position, end = 0, 1
    while position < end:
        with closing(SqliteConsumer(lambda tp: str(path), replay=True)) as consumer:
            consumer.assign(ZERO, position)
            for _ in range(polls):
                for batch in consumer.poll(23):
                    values |= {key: value for _, key, value, _, _ in batch.records}
                    position, end = batch.position, batch.end.offset
                if consumer.failures():
                    return None
    return values


@pytest.mark.parametrize("polls", [1, 50])
def test_no_flipped_bit_of_a_log_changes_what_is_read_without_a_word(long_log: Path, polls: int) -> None:
    """Of offsets, too, by which SQLite finds what is next: a wrong one leads it past others."""
    content, chooser = long_log.read_bytes(), random.Random(7)
    expected = {b"key%d" % key: b"value9-%d" % key for key in range(20)}
    assert folded(long_log, polls) == expected
    noticed = 0
    for bit in chooser.sample(range(8 * len(content)), 500):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        for path in (Path(f"{long_log}-wal"), Path(f"{long_log}-shm")):
            path.unlink(missing_ok=True)
        long_log.write_bytes(damaged)
        found = folded(long_log, polls)
        assert found in (None, expected), bit
        noticed += found is None
    assert noticed > 30


def test_reading_goes_on_once_the_record_is_as_it_was(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second later at the latest."""
    now = 5_000.0
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.boot_ms", lambda: now)
    append(changelog, ZERO, "a=1 b=2", 0)
    path = changelog.path(ZERO)
    execute(path, "UPDATE log SET value = x'39' WHERE offset = 0")
    with consuming(changelog) as consumer:
        assert poll_one(consumer).records == []
        assert ZERO in consumer.failures()
        execute(path, "UPDATE log SET value = x'31' WHERE offset = 0")
        now += 1_001
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


@pytest.mark.parametrize(
    ("format_", "remedy"), [(3, "Empty the store's log with 'forebay changelog reset'"), (5, "Upgrade")]
)
def test_open_consumer_notices_another_format(changelog: SqliteChangelog, format_: int, remedy: str) -> None:
    with consuming(changelog) as consumer:
        poll_one(consumer)
        execute(changelog.path(ZERO), f"UPDATE state SET format = {format_}")
        assert list(consumer.poll(10)) == []
        [failure] = consumer.failures().values()
    assert f"log format {format_}; this version reads and writes format 4. {remedy}" in failure.reason
    assert failure.lasting


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
