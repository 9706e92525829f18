import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from forebay.clock import boot_ms
from forebay.errors import (
    ChangelogElsewhere,
    ChangelogError,
    ChangelogUnreachable,
    PartitionCountMismatch,
    TopicMissing,
)
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Consumer, Record, Wake
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import consumer as sqlite_consumer
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.checksums import checksum
from forebay_changelog.sqlite.compaction import CompactionLimits

SPEC = StoreSpec("t", "key-value", "string", "json", "murmur2", "t", 2)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
DEADLINE_S = 60
PAUSE_BY_CHECK = sqlite_consumer._PAUSE_BY_CHECK


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("t", 2)
    return changelog


def append(
    changelog: SqliteChangelog, tp: TopicPartition, rows: str, batch_id: int, timestamp_ms: int = 1
) -> None:
    """One row a word: ``k=v``, or ``k`` alone for a tombstone."""
    pairs = [word.partition("=") for word in rows.split()]
    sqlite_batches.append_batch(
        changelog.path(tp),
        [(key.encode(), value.encode() if equals else None, timestamp_ms) for key, equals, value in pairs],
        writer="w",
        query_id="q",
        batch_id=batch_id,
        write_name="s",
    )


@contextmanager
def consuming(changelog: SqliteChangelog, position: int = 0, tp: TopicPartition = ZERO) -> Iterator[Consumer]:
    with closing(changelog.consumer()) as consumer:
        consumer.assign(tp, position)
        yield consumer


def poll_one(consumer: Consumer, max_records: int = 1000) -> Batch:
    (batch,) = consumer.poll(max_records)
    return batch


def caught_up(consumer: Consumer) -> bool:
    """Whether nothing more is read, and the consumer says so."""
    return not any(batch.records for batch in consumer.poll(10)) and ZERO in consumer.current()[1]


class WakeThatTells(Wake):
    """Says how long it was to wait."""

    timeout_s: float | None = None

    def wait(self, timeout_s: float) -> bool:
        self.timeout_s = timeout_s
        return False


def pairs(batch: Batch) -> list[tuple[int, bytes, bytes | None]]:
    return [record[:3] for record in batch.records]


def read_to_end(changelog: SqliteChangelog, tp: TopicPartition, max_records: int = 1000) -> list[Record]:
    with consuming(changelog, 0, tp) as consumer:
        records: list[Record] = []
        while True:
            batch = poll_one(consumer, max_records)
            records += batch.records
            if batch.position >= batch.end.offset:
                return records


def test_a_new_topic_is_empty_and_has_an_identity(changelog: SqliteChangelog) -> None:
    assert changelog.partitions("t") == 2
    assert changelog.identity("t")
    assert changelog.end_offsets([ZERO, ONE]) == {ZERO: 0, ONE: 0}
    with consuming(changelog) as consumer:
        batch = poll_one(consumer)
    assert batch.records == []
    assert (batch.position, batch.gap, batch.end.offset, batch.beginning) == (0, False, 0, 0)
    assert batch.identity == changelog.identity("t")


def test_a_topic_that_is_there_is_kept(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1", 0)
    identity = changelog.identity("t")
    SqliteChangelog(changelog.directory).ensure_topic("t", 2)
    assert changelog.identity("t") == identity
    assert changelog.end_offsets([ZERO]) == {ZERO: 1}


def test_a_partition_whose_recreation_was_interrupted_is_completed(changelog: SqliteChangelog) -> None:
    """An empty file was left of it."""
    path = changelog.path(ZERO)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    sqlite_log_file.create_private(path)
    changelog.ensure_topic("t", 2)
    append(changelog, ZERO, "a=1", 0)
    assert changelog.end_offsets([ZERO]) == {ZERO: 1}


@pytest.mark.parametrize("partitions", [1, 3])
def test_partition_count_mismatch_names_topic_and_remedy(changelog: SqliteChangelog, partitions: int) -> None:
    with pytest.raises(PartitionCountMismatch, match=r"'t'.* has 2 partitions") as caught:
        changelog.ensure_topic("t", partitions)
    assert f"the topology has {partitions}" in str(caught.value)
    assert "set partitions = 2" in str(caught.value)
    assert changelog.partitions("t") == 2


def test_interrupted_topic_creation_is_completed(tmp_path: Path) -> None:
    """The topic's partitions share the identity of the first one that was created."""
    changelog = SqliteChangelog(tmp_path)
    (tmp_path / "t").mkdir()
    sqlite_log_file.create(changelog.path(ZERO), "the first")
    changelog.ensure_topic("t", 2)
    assert changelog.identity("t") == "the first"
    for tp in (ZERO, ONE):
        with consuming(changelog, 0, tp) as consumer:
            assert poll_one(consumer).identity == "the first"


def test_a_topic_that_is_not_there_is_missing_by_name(changelog: SqliteChangelog) -> None:
    for ask in (changelog.identity, changelog.partitions):
        with pytest.raises(TopicMissing, match="'nonesuch'"):
            ask("nonesuch")
    assert changelog.end_offsets([ZERO, TopicPartition("nonesuch", 0)]) == {ZERO: 0}


def test_a_log_is_read_from_any_offset_in_portions_of_any_size(changelog: SqliteChangelog) -> None:
    for number in range(10):
        append(changelog, ZERO, f"k{number}={number}", number, timestamp_ms=number)
    for position in range(11):
        for max_records in (1, 3, 5, 100):
            with consuming(changelog, position) as consumer:
                records, at = [], position
                while at < 10:
                    batch = poll_one(consumer, max_records)
                    assert len(batch.records) <= max_records
                    assert not batch.gap
                    assert batch.end.offset == 10
                    records += batch.records
                    assert batch.position == at + len(batch.records)
                    at = batch.position
                assert caught_up(consumer)
            assert records == [(n, b"k%d" % n, b"%d" % n, n, False) for n in range(position, 10)]


def test_large_values_are_read_a_few_at_a_time(changelog: SqliteChangelog) -> None:
    rows = [(b"%d" % number, b"x" * (1 << 18), 0) for number in range(200)]
    sqlite_batches.append_batch(changelog.path(ZERO), rows, writer="w", query_id="q", batch_id=1, write_name="s")
    with consuming(changelog) as consumer:
        offsets: list[int] = []
        while len(offsets) < 200:
            batch = poll_one(consumer)
            assert sum(len(value or b"") for _, _, value, _, _ in batch.records) <= 16 << 20
            assert not batch.gap
            offsets += [offset for offset, *_ in batch.records]
        assert offsets == list(range(200))
        assert caught_up(consumer)


def test_an_open_consumer_sees_what_is_appended_later_once(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        assert poll_one(consumer).records == []
        append(changelog, ZERO, "a=1 b", 0)
        batch = poll_one(consumer)
        assert pairs(batch) == [(0, b"a", b"1"), (1, b"b", None)]
        assert batch.end.offset == 2
        assert caught_up(consumer)
        append(changelog, ZERO, "c=3", 1)
        assert pairs(poll_one(consumer)) == [(2, b"c", b"3")]


def test_each_poll_of_an_idle_log_observes_its_end_anew(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5000.0
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.boot_ms", lambda: now)
    append(changelog, ZERO, "a=1", 0)
    with consuming(changelog) as consumer:
        assert poll_one(consumer).end[:2] == (1, 5000.0)
        assert caught_up(consumer)
        now = 5010.0
        assert consumer.current() == (5010.0, [ZERO])


def test_log_is_not_current_before_a_write_is_read(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        for batch_id in range(20):
            append(changelog, ZERO, f"a={batch_id}", batch_id)
            assert consumer.current()[1] == []
            assert pairs(poll_one(consumer)) == [(batch_id, b"a", b"%d" % batch_id)]
            assert caught_up(consumer)


def test_write_is_found_once_it_is_committed(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        with closing(sqlite_log_file.connect(changelog.path(ZERO))) as writer:
            writer.execute("PRAGMA cache_size=1")
            with sqlite_log_file.transaction(writer):
                # More than the cache holds, so that files are written to before there is a commit to see.
                rows = ((offset, b"k%d" % offset, bytes(4096), 1, 0) for offset in range(50))
                writer.executemany(
                    "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", ((*row, checksum(*row)) for row in rows)
                )
                assert caught_up(consumer)
                writer.execute("UPDATE state SET next_offset = 50")
        assert consumer.current()[1] == []
        assert len(poll_one(consumer).records) == 50
        assert caught_up(consumer)


def test_a_log_is_not_called_current_before_all_of_it_is_read(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=1 c=1", 0)
    with consuming(changelog) as consumer:
        assert consumer.current()[1] == []
        assert len(poll_one(consumer, 2).records) == 2
        assert consumer.current()[1] == []


def test_only_logs_that_were_written_to_are_read_again(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        consumer.assign(ONE, 0)
        assert len(list(consumer.poll(10))) == 2
        assert caught_up(consumer)
        append(changelog, ONE, "a=1", 0)
        assert [batch.topic_partition for batch in consumer.poll(10)] == [ONE]


def test_wait_ends_on_a_wake(changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_consumer, "_WAIT_MS", DEADLINE_S * 1000)
    wake = Wake()
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        begun = time.monotonic()
        timer = Timer(0.05, wake.set)
        timer.start()
        consumer.wait(wake, DEADLINE_S)
        timer.join()
        assert time.monotonic() - begun < DEADLINE_S / 2


def test_wait_ends_in_time_for_the_next_check(changelog: SqliteChangelog) -> None:
    wake = WakeThatTells()
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        consumer.wait(wake, DEADLINE_S)
        assert wake.timeout_s == 0.01
        consumer.wait(wake, 0.005)
        assert wake.timeout_s == 0.005


def test_checks_for_polls_take_a_fortieth_of_a_core(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that takes ten milliseconds is made every 400, also by those who wait."""
    monkeypatch.setattr(sqlite_consumer, "_PAUSE_BY_CHECK", PAUSE_BY_CHECK)
    now, worked_s, wake = 1_000.0, 0.0, WakeThatTells()

    def thread_time() -> float:
        nonlocal worked_s
        worked_s += 0.01
        return worked_s

    monkeypatch.setattr("forebay_changelog.sqlite.consumer.boot_ms", lambda: now)
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.time.thread_time", thread_time)
    with consuming(changelog) as consumer:
        poll_one(consumer)
        append(changelog, ZERO, "a=1", 0)
        assert list(consumer.poll(10)) == []
        consumer.wait(wake, DEADLINE_S)
        assert wake.timeout_s == pytest.approx(0.39)
        now += 389.0
        assert list(consumer.poll(10)) == []
        now += 2.0
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1")]
        append(changelog, ZERO, "b=1", 1)
        # Who asks what is current decides how often.
        assert consumer.current()[1] == []
        assert pairs(poll_one(consumer)) == [(1, b"b", b"1")]


def test_write_seen_by_current_is_not_waited_for(changelog: SqliteChangelog) -> None:
    """A write that `current()` noticed ends the next wait at once."""
    wake = WakeThatTells()
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        append(changelog, ZERO, "a=1", 0)
        assert consumer.current()[1] == []
        consumer.wait(wake, DEADLINE_S)
        assert wake.timeout_s is None


def test_a_time_is_claimed_only_from_before_the_check(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        checked_boot_ms: list[float] = []
        data_version = sqlite_consumer._data_version

        def noted(source: object) -> int:
            checked_boot_ms.append(boot_ms())
            return data_version(source)

        monkeypatch.setattr(sqlite_consumer, "_data_version", noted)
        claimed, partitions = consumer.current()
        assert partitions
        assert len(checked_boot_ms) == len(partitions)
        assert claimed <= min(checked_boot_ms)


def test_partitions_are_read_side_by_side_until_unassigned(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1", 0)
    append(changelog, ONE, "b=1 c=1", 0)
    with consuming(changelog) as consumer:
        consumer.assign(ONE, 1)
        batches = {batch.topic_partition: pairs(batch) for batch in consumer.poll(10)}
        assert batches == {ZERO: [(0, b"a", b"1")], ONE: [(1, b"c", b"1")]}
        consumer.unassign(ZERO)
        append(changelog, ZERO, "a=2", 1)
        append(changelog, ONE, "d=1", 1)
        assert [batch.topic_partition for batch in consumer.poll(10)] == [ONE]
        consumer.assign(ONE, 0)
        assert pairs(poll_one(consumer)) == [(0, b"b", b"1"), (1, b"c", b"1"), (2, b"d", b"1")]


def test_a_partition_unassigned_between_two_batches_is_not_read(changelog: SqliteChangelog) -> None:
    with consuming(changelog) as consumer:
        consumer.assign(ONE, 0)
        batches = iter(consumer.poll(10))
        assert next(batches).topic_partition == ZERO
        consumer.unassign(ONE)
        assert list(batches) == []


def test_unreadable_partition_leaves_others_readable(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1", 0)
    with consuming(changelog) as consumer:
        consumer.assign(TopicPartition("late", 0), 0)
        consumer.assign(TopicPartition("broken", 0), 0)
        (changelog.directory / "broken").mkdir()
        Path(changelog.path(TopicPartition("broken", 0))).write_bytes(b"this is no database " * 100)
        assert [batch.topic_partition for batch in consumer.poll(10)] == [ZERO]
        assert {tp.topic for tp in consumer.failures()} == {"late", "broken"}
        changelog.ensure_topic("late", 1)
        assert [batch.topic_partition.topic for batch in consumer.poll(10)] == ["late"]
        [(failed, failure)] = consumer.failures().items()
        assert failed.topic == "broken"
        assert "broken/0.db cannot be read: file is not a database" in failure.reason


@pytest.mark.parametrize("what", ["the changelog", "a topic", "a partition"])
def test_missing_log_is_named_and_read_once_back(changelog: SqliteChangelog, tmp_path: Path, what: str) -> None:
    """The failure names the directory or file that is gone, and the remedy."""
    append(changelog, ZERO, "a=1", 0)
    path = Path(changelog.path(ZERO))
    gone, named = {
        "the changelog": (changelog.directory, f"The log's directory {changelog.directory} is gone."),
        "a topic": (path.parent, f"The log's directory {path.parent} is gone."),
        "a partition": (path, f"The log {path} cannot be read: No such file or directory."),
    }[what]
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert consumer.failures() == {}
        gone.rename(away := tmp_path / "away")
        assert list(consumer.poll(10)) == []
        assert consumer.current()[1] == []
        failure = consumer.failures()[ZERO]
        assert failure.reason.startswith(f"{named} What was applied is served, with growing lag. Put it back;")
        assert not failure.lasting
        away.rename(gone)
        assert poll_one(consumer).end.offset == 1
        assert consumer.failures() == {}


def test_lost_partition_gets_no_heartbeat(tmp_path: Path) -> None:
    """A partition whose file was deleted is left out of what a heartbeat covers."""
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure_topic("t", 2)
    os.unlink(changelog.path(TopicPartition("t", 1)))
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure_topic("t", 2)
    assert changelog.append_heartbeat("t", writer="w", query_id="q", value=b"v") == {0: 1}


def test_log_knows_its_writing_queries_until_reset(changelog: SqliteChangelog) -> None:
    def has_written(writer: str, query: str) -> bool:
        return changelog.has_written("t", writer=writer, query_id=query)

    assert not has_written("w", "q")
    changelog.append_heartbeat("t", writer="w", query_id="q", value=b"v")
    assert has_written("w", "q")
    assert not has_written("another", "q")
    assert not has_written("w", "another")
    names = {"writer": "w", "query_id": "q", "write_name": "w"}
    sqlite_batches.append_batch(changelog.path(ONE), [(b"a", b"1", 1)], batch_id=0, **names)
    changelog.append_heartbeat("t", writer="w", query_id="another", value=b"v")
    assert has_written("w", "q"), "it was superseded, which is another error"
    changelog.retire_writer("t", "w")
    assert has_written("w", "q"), "its rows are still there"
    changelog.reset(SPEC)
    assert not has_written("w", "q")


def test_log_without_a_partition_lacks_a_querys_writes(changelog: SqliteChangelog) -> None:
    """The query counts as having written again once it writes on."""
    changelog.append_heartbeat("t", writer="w", query_id="q", value=b"v")
    os.unlink(changelog.path(ONE))
    again = SqliteChangelog(changelog.directory)
    again.ensure(SPEC)
    assert not again.has_written("t", writer="w", query_id="q")
    again.append_heartbeat("t", writer="w", query_id="q", value=b"v")
    assert again.has_written("t", writer="w", query_id="q"), "it has gone on since"


def test_what_only_looks_makes_nothing_of_what_is_lost(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1", 0)
    os.unlink(changelog.path(ONE))
    found = SqliteChangelog(changelog.directory, create=False)
    found.ensure(SPEC, create=False)
    assert found.end_offsets([ZERO, ONE]) == {ZERO: 1}
    assert not os.path.exists(changelog.path(ONE))
    with pytest.raises(ChangelogError, match=r"no changelog in .*/nowhere"):
        SqliteChangelog(changelog.directory / "nowhere", create=False)
    assert not (changelog.directory / "nowhere").exists()


def test_a_foreign_topic_is_not_made(changelog: SqliteChangelog) -> None:
    external = replace(SPEC, name="stock", topic="misspelt", external=True)
    with pytest.raises(TopicMissing, match=r"no topic 'misspelt'. The store 'stock' is external"):
        changelog.ensure(external)
    with pytest.raises(TopicMissing):
        changelog.partitions("misspelt")
    changelog.ensure(replace(SPEC, external=True))


def test_a_log_with_a_lost_partition_can_be_reset(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1", 0)
    os.unlink(changelog.path(ONE))
    with pytest.raises(ChangelogUnreachable, match=r"1\.db cannot be used"):
        changelog.append_heartbeat("t", writer="w", query_id="q", value=b"v")
    identity = changelog.reset(SPEC)
    assert [changelog.identity("t", partition) for partition in (None, 0, 1)] == [identity] * 3
    assert changelog.end_offsets([ZERO, ONE]) == {ZERO: 0, ONE: 0}


def test_the_time_of_the_last_compaction_is_kept(changelog: SqliteChangelog) -> None:
    assert changelog.compacted_ms("t") is None
    before_ms = time.time_ns() // 1_000_000
    changelog.compact(SPEC)
    kept = SqliteChangelog(changelog.directory).compacted_ms("t")
    assert kept is not None
    assert kept >= before_ms


def test_gap_is_reported_only_over_compacted_offsets(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=1 c=1 b=2 d=1 e=1", 0)
    assert changelog.compact(SPEC) == 1
    with consuming(changelog) as consumer:
        before = poll_one(consumer, 1)
        assert (pairs(before), before.gap, before.position) == ([(0, b"a", b"1")], False, 1)
        over = poll_one(consumer, 2)
        assert (over.gap, over.position, over.end.offset) == (True, 4, 6)
        assert pairs(over) == [(2, b"c", b"1"), (3, b"b", b"2")]
        after = poll_one(consumer, 10)
        assert (after.gap, after.position) == (False, 6)
    with consuming(changelog, 2) as consumer:
        assert not poll_one(consumer).gap
    with consuming(changelog, 1) as consumer:
        assert poll_one(consumer).gap


def test_gap_at_the_log_start_is_reported(changelog: SqliteChangelog) -> None:
    """The log's beginning moves with it."""
    append(changelog, ZERO, "a=1 a=2 b=1", 0)
    changelog.compact(SPEC)
    with consuming(changelog) as consumer:
        batch = poll_one(consumer)
    assert (batch.gap, batch.beginning, batch.position) == (True, 1, 3)


def test_compaction_honours_the_minimum_lag_by_the_wall_clock(changelog: SqliteChangelog) -> None:
    now_ms = int(time.time() * 1000)
    append(changelog, ZERO, "a=1 a=2 a=3", 0, timestamp_ms=now_ms)
    assert changelog.compact(SPEC) == 0
    assert changelog.compact(SPEC, CompactionLimits(min_compaction_lag_ms=0)) == 2


def test_failed_compaction_names_its_partition(changelog: SqliteChangelog) -> None:
    """The log's other partitions are compacted."""
    append(changelog, ZERO, "a=1 a=2", 0)
    append(changelog, ONE, "a=1 a=2", 0)
    Path(changelog.path(ZERO)).write_bytes(b"no database" * 1000)
    with pytest.raises(ChangelogError, match=r"1 of the partitions .* 1 records of the others .*0\.db: "):
        changelog.compact(SPEC)


def test_an_open_consumer_learns_of_the_tombstone_floor(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 a b=1", 0)
    with consuming(changelog) as consumer:
        assert poll_one(consumer).tombstone_floor == 0
        changelog.compact(SPEC)
        batch = poll_one(consumer)
    assert batch.tombstone_floor == 2
    assert not batch.gap
    assert read_to_end(changelog, ZERO) == [(2, b"b", b"1", 1, False)]


def test_an_open_consumer_sees_a_reset_as_another_log(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=1", 0)
    with consuming(changelog) as consumer:
        before = poll_one(consumer)
        identity = changelog.reset(SPEC)
        after = poll_one(consumer)
        assert after.identity == identity == changelog.identity("t")
        assert after.identity != before.identity
        assert (after.records, after.end.offset) == ([], 0)
        append(changelog, ZERO, "z=1", 0)
        consumer.assign(ZERO, 0)
        assert pairs(poll_one(consumer)) == [(0, b"z", b"1")]
    assert changelog.end_offsets([ZERO, ONE]) == {ZERO: 1, ONE: 0}


def test_reset_log_that_outgrew_a_consumer_is_another_log(changelog: SqliteChangelog) -> None:
    """A reset is noticed although the new log is already longer than the offset that was read."""
    append(changelog, ZERO, "a=1", 0)
    with consuming(changelog) as consumer:
        before = poll_one(consumer)
        changelog.reset(SPEC)
        append(changelog, ZERO, "x=1 y=1 z=1", 0)
        assert poll_one(consumer).identity != before.identity


def made_anew(directory: Path) -> SqliteChangelog:
    shutil.rmtree(directory)
    changelog = SqliteChangelog(directory)
    changelog.ensure_topic("t", 2)
    return changelog


def test_open_consumer_notices_a_recreated_log(changelog: SqliteChangelog) -> None:
    append(changelog, ZERO, "a=1 b=1", 0)
    with consuming(changelog) as consumer:
        before = poll_one(consumer)
        identity = made_anew(changelog.directory).identity("t")
        after = poll_one(consumer)
        assert after.identity == identity != before.identity
        assert after.end.offset == 0


def test_open_consumer_notices_a_replaced_directory(
    changelog: SqliteChangelog,
) -> None:
    """A changelog directory that was moved aside for another is noticed by the next check."""
    with consuming(changelog) as consumer:
        before = poll_one(consumer)
        assert caught_up(consumer)
        changelog.directory.rename(changelog.directory.with_name("aside"))
        another = SqliteChangelog(changelog.directory)
        another.ensure_topic("t", 2)
        assert consumer.current()[1] == []
        assert poll_one(consumer).identity == another.identity("t") != before.identity
        consumer.assign(ZERO, 0)
        assert caught_up(consumer)
        append(another, ZERO, "a=1", 0)
        assert consumer.current()[1] == []
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1")]


def test_replaced_log_is_noticed_in_a_directory_at_rest(
    changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are looked at one by one only if something happened in it, and now and then."""
    with consuming(changelog) as consumer:
        poll_one(consumer)
        at_rest_ms(monkeypatch)
        assert caught_up(consumer)
        with monkeypatch.context() as at_rest:
            at_rest.delattr(sqlite_consumer._Assigned, "has_its_files")
            assert caught_up(consumer)
        path = Path(changelog.path(ZERO))
        other = path.with_suffix(".other")
        other.write_bytes(path.read_bytes())
        other.replace(path)
        assert consumer.current()[1] == []


def at_rest_ms(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Has directories be at rest, and time since boot stand still: at this number of milliseconds."""
    later_ns, now_ms = time.time_ns() + 3_600_000_000_000, [60_000.0]
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.time.time_ns", lambda: later_ns)
    monkeypatch.setattr("forebay_changelog.sqlite.consumer.boot_ms", lambda: now_ms[0])
    return now_ms


def test_replaced_log_is_noticed_where_a_link_leads(
    changelog: SqliteChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing happens in the directory of the link."""
    path, elsewhere = Path(changelog.path(ZERO)), tmp_path / "elsewhere.db"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with consuming(changelog) as consumer:
        poll_one(consumer)
        now_ms = at_rest_ms(monkeypatch)
        assert caught_up(consumer)
        other = elsewhere.with_suffix(".other")
        other.write_bytes(elsewhere.read_bytes())
        other.replace(elsewhere)
        now_ms[0] += 5_000
        assert consumer.current()[1] == []


def test_open_consumer_reads_the_log_after_a_deleted_one(
    changelog: SqliteChangelog,
) -> None:
    """Nothing is read while the log is deleted."""
    with consuming(changelog) as consumer:
        poll_one(consumer)
        shutil.rmtree(changelog.directory)
        assert list(consumer.poll(10)) == []
        changelog = SqliteChangelog(changelog.directory)
        changelog.ensure_topic("t", 2)
        append(changelog, ZERO, "z=1", 0)
        assert pairs(poll_one(consumer)) == [(0, b"z", b"1")]


def test_open_consumer_survives_a_brief_directory_move(changelog: SqliteChangelog) -> None:
    """A log's directory that was away for a moment is followed as before."""
    with consuming(changelog) as consumer:
        poll_one(consumer)
        assert caught_up(consumer)
        directory = changelog.directory / "t"
        directory.rename(directory.with_name("aside"))
        directory.with_name("aside").rename(directory)
        assert caught_up(consumer)
        append(changelog, ZERO, "a=1", 0)
        assert consumer.current()[1] == []
        assert pairs(poll_one(consumer)) == [(0, b"a", b"1")]


@pytest.mark.parametrize("file_system", ["nfs4", "cifs", "fuse.sshfs", "ceph", "virtiofs", "9p", "fuse.mount-s3"])
def test_network_file_system_is_refused(tmp_path: Path, file_system: str) -> None:
    """The error names the file system, the directory and the remedy."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"36 22 0:31 / {tmp_path} rw,relatime shared:2 master:1 - {file_system} server:/x rw\n"
    )
    with pytest.raises(ChangelogElsewhere, match="local disk") as caught:
        SqliteChangelog(tmp_path / "log", mounts=mounts)
    assert file_system in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)


def test_the_innermost_and_latest_mount_decides(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    over = tmp_path / "over nfs"
    mounts.write_text(
        "22 1 0:20 / / rw - nfs4 server:/ rw\n"
        f"36 22 0:31 / {str(over).replace(' ', chr(92) + '040')} rw - nfs4 server:/x rw\n"
        f"37 36 0:32 / {str(over).replace(' ', chr(92) + '040')} rw - xfs /dev/vdb rw\n"
        f"38 22 0:33 / {tmp_path}/over rw - cifs //server/x rw\n"
    )
    SqliteChangelog(over / "log", mounts=mounts)
    with pytest.raises(ChangelogElsewhere, match="nfs4"):
        SqliteChangelog(tmp_path / "elsewhere", mounts=mounts)


def test_a_machine_that_does_not_tell_its_mounts_is_trusted(tmp_path: Path) -> None:
    SqliteChangelog(tmp_path / "log", mounts=tmp_path / "nowhere")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ChangelogError, match="file/log cannot be created"):
        SqliteChangelog(tmp_path / "file" / "log")


def test_a_directory_whose_catalogue_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "topics.db").mkdir()
    with pytest.raises(ChangelogError, match="cannot be used"):
        SqliteChangelog(tmp_path)


def test_a_directory_keeps_its_id_and_no_two_share_one(tmp_path: Path) -> None:
    one, again = SqliteChangelog(tmp_path / "one"), SqliteChangelog(tmp_path / "one")
    assert one.directory_id == again.directory_id
    assert one.directory_id != SqliteChangelog(tmp_path / "two").directory_id
    sqlite_log_file.check_directory(str(one.directory), one.directory_id, "here", "here")
    assert {path.name for path in (tmp_path / "one").iterdir()} >= {"directory.id", "topics.db"}
    assert not list((tmp_path / "one").glob(".directory.id.*"))


PRELUDE = """
import sys
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import consumer as sqlite_consumer
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay.task_ids import TopicPartition
directory, name = sys.argv[1], sys.argv[2]
def go():
    print("ready", flush=True)
    sys.stdin.readline()
"""

CREATE = """
go()
changelog = SqliteChangelog(directory)
changelog.ensure_topic("t", 3)
print(changelog.directory_id, changelog.identity("t"), flush=True)
"""

WRITE = """
changelog = SqliteChangelog(directory)
go()
for batch in range(15):
    for partition in range(2):
        rows = [(f"{name}-{batch}-{row}".encode(), b"v", 1) for row in range(5)]
        sqlite_batches.append_batch(changelog.path(TopicPartition("t", partition)), rows,
                        writer=name, query_id=name, batch_id=batch, write_name="s")
print("done", flush=True)
"""

READ = """
changelog = SqliteChangelog(directory)
consumer = changelog.consumer()
wanted = int(name)
positions = {}
for partition in range(2):
    consumer.assign(TopicPartition("t", partition), 0)
go()
while min(positions.values(), default=0) < wanted:
    for batch in consumer.poll(7):
        tp = batch.topic_partition
        offsets = [record[0] for record in batch.records]
        assert not batch.gap
        assert offsets == list(range(positions.get(tp, 0), batch.position)), (offsets, batch)
        positions[tp] = batch.position
print("done", flush=True)
consumer.close()
"""


@contextmanager
def processes(script: str, directory: Path, names: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return out.strip()


def all_at_once(started: list[subprocess.Popen[str]]) -> None:
    for process in started:
        assert line(process) == "ready"
    for process in started:
        release(process)


def test_processes_that_create_a_topic_at_once_agree_on_it(tmp_path: Path) -> None:
    directory = SqliteChangelog(tmp_path / "log").directory
    with processes(CREATE, directory, ["one", "two", "three"]) as started:
        all_at_once(started)
        assert len({finish(process) for process in started}) == 1


def test_processes_that_write_and_read_at_once_lose_nothing(changelog: SqliteChangelog) -> None:
    writers = ["one", "two", "three"]
    per_partition = len(writers) * 15 * 5
    with (
        processes(READ, changelog.directory, [str(per_partition)]) as readers,
        processes(WRITE, changelog.directory, writers) as started,
    ):
        all_at_once(readers + started)
        assert [finish(process) for process in started] == ["done"] * 3
        assert [finish(process) for process in readers] == ["done"]
    for tp in (ZERO, ONE):
        records = read_to_end(changelog, tp, max_records=7)
        assert [offset for offset, *_ in records] == list(range(per_partition))
        for name in writers:
            own = [key.decode() for _, key, *_ in records if key.startswith(name.encode() + b"-")]
            assert own == [f"{name}-{batch}-{row}" for batch in range(15) for row in range(5)]


KILLED_WITHIN_A_BATCH = """
changelog = SqliteChangelog(directory)
path = changelog.path(TopicPartition("t", 0))
def append(rows, batch):
    sqlite_batches.append_batch(path, rows, writer="w", query_id="q", batch_id=batch, write_name="s")
def stalling():
    yield from ((b"%d" % row, b"v", 1) for row in range(9000))
    go()
append([(b"first", b"v", 1)], 0)
append(stalling(), 1)
"""


def test_a_writer_killed_within_a_batch_leaves_nothing_of_it(changelog: SqliteChangelog) -> None:
    with (
        processes(KILLED_WITHIN_A_BATCH, changelog.directory, ["w"]) as (process,),
        consuming(changelog) as consumer,
    ):
        assert line(process) == "ready"
        assert pairs(poll_one(consumer)) == [(0, b"first", b"v")]
        process.kill()
        process.wait(DEADLINE_S)
        assert caught_up(consumer)
        append(changelog, ZERO, "a=1 b=2", 1)
        assert pairs(poll_one(consumer)) == [(1, b"a", b"1"), (2, b"b", b"2")]


KILLED_ANYWHERE = """
changelog = SqliteChangelog(directory)
path = changelog.path(TopicPartition("t", 0))
for batch in range(100_000):
    rows = [(b"%d" % batch, b"v", 1)] * 300
    sqlite_batches.append_batch(path, rows, writer="w", query_id="q", batch_id=batch, write_name="s")
    print(batch, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [0, 3, 11])
def test_killed_writer_leaves_whole_batches(changelog: SqliteChangelog, acknowledged: int) -> None:
    """All batches that the writer acknowledged before it was killed are in the log."""
    with processes(KILLED_ANYWHERE, changelog.directory, ["w"]) as (process,):
        while line(process) != str(acknowledged):
            assert process.poll() is None
        process.kill()
        process.wait(DEADLINE_S)
    records = read_to_end(changelog, ZERO)
    batches, rest = divmod(len(records), 300)
    assert rest == 0
    assert batches > acknowledged
    assert [record[:2] for record in records] == [(n, b"%d" % (n // 300)) for n in range(batches * 300)]


def test_a_new_log_is_for_its_own_user(tmp_path):
    """Whatever the umask; one in a directory that was made for several users is as open as that."""
    before = os.umask(0)
    try:
        shared = tmp_path / "shared"
        shared.mkdir(mode=0o770)
        for directory, mode in ((tmp_path / "own", 0o700), (shared, 0o770)):
            changelog = SqliteChangelog(directory)
            changelog.ensure_topic("log", 2)
            paths = [directory, directory / "log", *directory.rglob("*.db")]
            assert [path.stat().st_mode & 0o777 for path in paths[:2]] == [mode, mode]
            assert {path.stat().st_mode & 0o777 for path in paths[2:]} == {mode & 0o666}
    finally:
        os.umask(before)
