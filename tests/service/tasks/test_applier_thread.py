"""A replica's claims about itself while its log is compacted, replaced or truncated."""

import contextlib
import dataclasses
import errno
import functools
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.clock import boot_ms
from forebay.lag import EndOffset, lag_of
from forebay.partitioning import Murmur2Partitioner
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.stored_values import STAMP_SIZE
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog import Batch, Heartbeat, ReadFailure
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite import writers as sqlite_writers
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.applier_thread import Applier
from forebay_worker.tasks.apply import apply_batch, progress_at_open
from forebay_worker.tasks.folding import Fold, advance
from forebay_worker.tasks.record_check import BadRecord
from forebay_worker.tasks.replica import Replica
from tests.support.cluster import wait_until
from tests.support.held_tasks import unexpected

TP = TopicPartition("log", 0)
HOUR_MS = 3_600_000


def spec(partitions: int = 1) -> StoreSpec:
    return StoreSpec("s", "key-value", "string", "json", "murmur2", "log", partitions)


class Follower:
    """A replica of one SQLite log, brought forward one poll at a time."""

    def __init__(self, changelog: Any, spec_: StoreSpec | None = None) -> None:
        self.changelog = changelog
        self.reasons: list[str] = []
        self.completions = 0
        self.applier = Applier(
            changelog, 0, lambda error: None, self._on_damaged, self._on_end_reached, lambda: None
        )
        self.replica = Replica.opened(spec_ or spec(), TaskId(0, 0), MemoryStore("s"))
        self.applier.follow(self.replica)

    def poll(self, most: int = 1000) -> None:
        """Every batch in slices of two records, which cuts all that may be cut."""
        for batch in self.applier._consumer.poll(most):
            for part in batch.slices(2):
                if not self.applier.apply(self.replica, part):
                    break
        self.applier.note_current()

    def close(self) -> None:
        self.applier._consumer.close()

    @property
    def content(self) -> dict[bytes, bytes]:
        return {
            key[1:]: value[STAMP_SIZE:] for key, value in self.replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)
        }

    def _on_damaged(self, _: Replica, error: StoreCorrupted) -> None:
        self.reasons.append(str(error))

    def _on_end_reached(self, _: Replica) -> None:
        self.completions += 1


class Log:
    def __init__(self, directory: Path, partitions: int = 1) -> None:
        self.changelog = SqliteChangelog(directory)
        self.changelog.ensure_topic("log", partitions)
        self.history: list[tuple[bytes, bytes | None]] = []
        self._batches = 0

    def append(self, *rows: tuple[bytes, bytes | None], age_ms: int = 0) -> None:
        stamp = int(time.time() * 1000) - age_ms
        self._batches += 1
        sqlite_batches.append_batch(
            self.changelog.path(TP),
            [(key, value, stamp) for key, value in rows],
            writer="s",
            query_id="q",
            batch_id=self._batches,
            write_name="s",
        )
        self.history += rows

    def fold(self, position: int) -> dict[bytes, bytes]:
        content: dict[bytes, bytes] = {}
        for key, value in self.history[:position]:
            content.pop(key, None)
            if value is not None:
                content[key] = value
        return content

    def compact(self, delete_retention_ms: int = 0) -> None:
        self.changelog.compact(spec(), CompactionLimits(HOUR_MS, delete_retention_ms))


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "log")


OLD_MS = 2 * HOUR_MS
ROWS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.one_of(st.none(), st.integers(0, 99))),
    min_size=1,
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("compact"), st.sampled_from([0, 10 * HOUR_MS])),
        st.tuples(st.just("poll"), st.integers(1, 7)),
        st.tuples(st.just("start"), st.none()),
    ),
    min_size=3,
    max_size=16,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_a_replica_never_claims_more_than_it_has(tmp_path_factory, steps: list[tuple[str, Any]]):
    """Whenever a log is compacted and a replica started, the replica's claims are true.

    Where it is consistent it holds exactly the fold of the whole history; elsewhere each key's value is one that
    the key had at or after the consistent position.
    """
    log = Log(tmp_path_factory.mktemp("log"))
    followers = [Follower(log.changelog)]
    for step, argument in steps:
        if step == "append":
            log.append(*((key, None if n is None else b"%d" % n) for key, n in argument), age_ms=OLD_MS)
        elif step == "compact":
            log.compact(delete_retention_ms=argument)
        elif step == "start":
            followers.append(Follower(log.changelog))
        else:
            for follower in followers:
                follower.poll(argument)
                check_claims(log, follower)
    for follower in followers:
        follower.close()


def check_claims(log: Log, follower: Follower) -> None:
    progress, content = follower.replica.view.progress, follower.content
    if follower.reasons:
        return  # it said that it can't be trusted, and will be rebuilt
    assert progress.end_offset == len(log.history)
    if progress.consistent_position == progress.position:
        assert content == log.fold(progress.position)
    folds = [log.fold(q) for q in range(progress.consistent_position or 0, len(log.history) + 1)]
    for key in (b"a", b"b", b"c", b"d"):
        if key in content:
            assert content[key] in [fold.get(key) for fold in folds]
    if follower.replica.view.restored:
        assert progress.consistent_position is not None
    if progress.last_caught_up_boot_ms is not None:
        assert progress.consistent_position is not None


def test_in_the_middle_of_a_compacted_replay_nothing_is_claimed(log):
    log.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), age_ms=OLD_MS)
    log.append((b"a", b"2"), age_ms=OLD_MS)
    log.compact()
    late = Follower(log.changelog)
    late.poll(2)
    # "a" was 1 when "b" and "c" were written; its record is gone and its successor not read yet.
    assert late.content == {b"b": b"1", b"c": b"1"}
    assert late.replica.view.progress.consistent_position is None
    assert late.replica.view.progress.last_caught_up_boot_ms is None
    assert not late.replica.view.restored
    late.poll(2)
    assert late.replica.view.progress.consistent_position == 4
    assert late.replica.view.restored
    assert late.completions == 1
    assert late.content == log.fold(4)
    late.close()


def test_replay_is_consistent_at_the_last_stable_offset():
    empty = Fold.after(CommittedOffset(0))
    gap = Batch(TP, [], 5, True, EndOffset(9, 0.0), 0, 0, "log")
    within = advance(CommittedOffset(0), gap, empty, None, 0.0)
    assert (within.consistent_position, within.pending_end) == (None, 9)
    # A transaction is open at 5, so the end at 9 cannot be reached.
    settled = advance(within, gap._replace(gap=False, end_reached=True), empty, None, 0.0)
    assert (settled.consistent_position, settled.pending_end) == (5, None)


def test_gap_ends_without_new_records():
    """A replica is consistent as soon as a batch without records reaches the end."""
    store = MemoryStore("s")
    store.commit({TP: CommittedOffset(5, 1, pending_end=9, restored=True)})
    replica = Replica.opened(spec(1), TaskId(0, 0), store)
    reported = Batch(TP, [], 5, False, EndOffset(5, boot_ms()), 0, 0, "log", end_reached=True)
    apply_batch(replica, reported._replace(end_reached=False))
    assert store.committed_offset(TP).consistent_position == 1
    apply_batch(replica, reported)
    assert store.committed_offset(TP).consistent_position == replica.view.progress.consistent_position == 5


def test_records_behind_a_bad_one_wait_for_it(log):
    """They are in the same batch."""
    rows = [(b"k%03d" % number, b"1") for number in range(300)]
    log.append(*rows[:200], (b"bad", b"{"), *rows[200:])
    follower = Follower(log.changelog)
    for batch in follower.applier._consumer.poll(1_000):
        follower.applier._apply_in_slices(follower.replica, batch)
    assert follower.content == dict(rows[:200])
    assert "offset 200" in (follower.replica.failure or "")
    follower.close()


def test_replica_that_missed_tombstones_is_rebuilt(log):
    """It was away for longer than tombstones live."""
    log.append((b"a", b"1"), (b"b", b"1"), age_ms=OLD_MS)
    away = Follower(log.changelog)
    away.poll()
    log.append((b"a", None), (b"b", b"2"), age_ms=OLD_MS)
    log.compact(delete_retention_ms=0)
    away.poll()
    assert away.content == {b"a": b"1", b"b": b"1"}
    assert "tombstones up to offset 3 are gone" in away.reasons[0]
    away.close()


LIFE_MS = 24 * HOUR_MS


class KeepsTombstonesForATime:
    """A log whose compaction removes tombstones by their age, as Kafka's does, and says at what age."""

    def __init__(self, changelog: SqliteChangelog, life_ms: float = LIFE_MS) -> None:
        self._changelog = changelog
        self._life_ms = life_ms

    def consumer(self, **options: Any) -> "KeepsTombstonesForATime":
        self._consumer = self._changelog.consumer(**options)
        self.assign, self.current = self._consumer.assign, self._consumer.current
        self.close, self.failures = self._consumer.close, self._consumer.failures
        return self

    def poll(self, most: int) -> list[Batch]:
        return [batch._replace(tombstone_life_ms=self._life_ms) for batch in self._consumer.poll(most)]


def restarted(follower: Follower) -> Follower:
    """A replica of the same store: of what was not committed with it, nothing is known any more."""
    follower.close()
    again = Follower(follower.changelog)
    again.replica.publish(store=follower.replica.view.store)
    again.applier.follow(again.replica)
    return again


@pytest.mark.parametrize(("away_ms", "trusted"), [(0.89 * LIFE_MS, True), (0.91 * LIFE_MS, False)])
def test_replica_away_for_a_tombstones_life_is_rebuilt(log, pass_time, away_ms, trusted):
    """It is trusted where it was away for a little less."""
    log.append((b"a", b"1"))
    follower = Follower(KeepsTombstonesForATime(log.changelog))
    follower.poll()
    log.append((b"b", b"1"))
    pass_time(away_ms)
    back = restarted(follower)
    back.poll()
    assert (back.reasons == []) is trusted
    assert trusted or "the log 'log' keeps tombstones for 86400 s" in back.reasons[0]
    back.close()


def test_replay_dated_in_the_future_proves_nothing(log, pass_time):
    """A wrong clock dated the replay, so that tombstones may be missing and the replica is rebuilt."""
    log.append((b"a", b"1"))
    pass_time(1_000 * LIFE_MS)
    follower = Follower(KeepsTombstonesForATime(log.changelog))
    follower.poll()
    pass_time(-1_000 * LIFE_MS)
    log.append((b"b", b"1"))
    pass_time(2 * LIFE_MS)
    back = restarted(follower)
    back.poll()
    assert "keeps tombstones" in back.reasons[0]
    back.close()


def test_a_log_that_was_idle_all_the_time_is_continued(log, pass_time):
    """Nothing was written, so no tombstone can have been missed, however long the replica was away."""
    log.append((b"a", b"1"))
    follower = Follower(KeepsTombstonesForATime(log.changelog))
    follower.poll()
    pass_time(10 * LIFE_MS)
    back = restarted(follower)
    back.poll()
    assert back.reasons == []
    log.append((b"a", None))
    back.poll()
    assert (back.reasons, back.content) == ([], {})
    back.close()


@pytest.mark.parametrize("life_ms", [LIFE_MS, 60_000])
def test_a_replica_of_an_idle_log_is_trusted_after_a_restart(log, pass_time, life_ms):
    log.append((b"a", b"1"))
    follower = Follower(KeepsTombstonesForATime(log.changelog, life_ms))
    for _ in range(48):
        follower.poll()
        pass_time(life_ms / 8)
    back = restarted(follower)
    back.poll()
    assert (follower.reasons, back.reasons) == ([], [])
    back.close()


def test_replay_longer_than_a_tombstones_life_is_rebuilt(log, pass_time):
    log.append(*((b"%d" % i, b"1") for i in range(9)), age_ms=OLD_MS)
    follower = Follower(KeepsTombstonesForATime(log.changelog))
    follower.poll(3)
    pass_time(0.5 * LIFE_MS)
    follower = restarted(follower)
    follower.poll(3)
    assert (follower.reasons, follower.replica.view.progress.position) == ([], 6)
    # What was read at first may have been deleted since by a tombstone that nobody has seen.
    pass_time(0.5 * LIFE_MS)
    follower.poll(1)
    assert "keeps tombstones" in follower.reasons[0]
    follower.close()


def test_replaced_log_is_noticed_beyond_the_old_offset(log):
    """The new log has grown past the offset that the replica applied."""
    log.append((b"a", b"1"), (b"b", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    log.changelog.reset(spec())
    log.append(*((b"c", b"%d" % i) for i in range(50)))
    follower.poll()
    assert "was replaced" in follower.reasons[0]
    assert follower.replica.view.progress.position == 2
    follower.close()


def test_a_log_that_ends_before_the_position_is_noticed(log):
    log.append((b"a", b"1"), (b"b", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    with sqlite_log_file.connect(log.changelog.path(TP)) as connection:
        connection.execute("DELETE FROM log WHERE offset >= 1")
        connection.execute("UPDATE state SET next_offset = 1")
    connection.close()
    follower.poll()
    assert "ends at 1, before offset 2" in follower.reasons[0]
    follower.close()


def test_repartitioned_log_makes_misses_worthless(log, caplog):
    """A restart knows it too, until the topology has the new count."""
    follower = Follower(log.changelog)
    for partitions, worthless in ((1, False), (2, True)):
        log.append((b"k", b"1"))
        for batch in follower.applier._consumer.poll(10):
            follower.applier.apply(follower.replica, batch._replace(partitions=partitions))
        assert follower.replica.view.repartitioned is worthless
    assert "now has 2 partitions" in caplog.text
    # A restart knows before it has heard from the log.
    again = Replica.opened(follower.replica.spec, TaskId(0, 0), follower.replica.view.store)
    follower.applier.follow(again)
    assert again.view.repartitioned
    # The topology was given the new number.
    mended = Replica.opened(
        dataclasses.replace(again.spec, partitions=2), TaskId(0, 0), follower.replica.view.store
    )
    follower.applier.follow(mended)
    assert not mended.view.repartitioned
    follower.close()


def test_misplaced_key_makes_misses_worthless(tmp_path):
    """A restart knows it too, unless the store's partitioner is another."""
    log = Log(tmp_path / "log", partitions=4)
    placed = Murmur2Partitioner()
    external = next(k for k in (b"k%d" % i for i in range(100)) if placed.partition(k, 4) != 0)
    own = next(k for k in (b"k%d" % i for i in range(100)) if placed.partition(k, 4) == 0)
    follower = Follower(log.changelog, spec(partitions=4))
    log.append((own, b"1"))
    follower.poll()
    assert follower.replica.view.misplaced_keys == ()
    log.append((external, b"1"))
    follower.poll()
    assert follower.replica.view.misplaced_keys == (external,)
    # A restart finds nothing new in the log, and still knows.
    again = Replica.opened(follower.replica.spec, TaskId(0, 0), follower.replica.view.store)
    follower.applier.follow(again)
    assert again.view.misplaced_keys == (external,)
    # By another partitioner the key may lie right.
    mended = Replica.opened(
        dataclasses.replace(again.spec, partitioner="unknown"), TaskId(0, 0), follower.replica.view.store
    )
    follower.applier.follow(mended)
    assert mended.view.misplaced_keys == ()
    follower.close()


def test_misplaced_keys_are_no_longer_there_once_they_are_deleted(tmp_path):
    log = Log(tmp_path / "log", partitions=4)
    placed = Murmur2Partitioner()
    strayed = [k for k in (b"k%d" % i for i in range(100)) if placed.partition(k, 4) != 0][:3]
    follower = Follower(log.changelog, spec(partitions=4))
    log.append(*((key, b"1") for key in strayed))
    follower.poll()
    assert follower.replica.view.misplaced_keys == tuple(strayed)
    log.append((strayed[0], None), (strayed[2], None))
    follower.poll()
    assert follower.replica.view.misplaced_keys == (strayed[1],)
    assert follower.replica.view.doubt is not None
    log.append((strayed[1], None))
    follower.poll()
    assert follower.replica.view.doubt is None
    follower.close()


def test_age_is_that_of_the_oldest_writer_until_it_is_retired(log):
    follower = Follower(log.changelog)
    now_ms = int(time.time() * 1000)

    def beat(writer: str, as_of_ms: int | None) -> None:
        value = Heartbeat(as_of_ms, writer, 0).value()
        log.changelog.append_heartbeat("log", writer=writer, query_id=writer, value=value)
        follower.poll()

    def age_ms() -> float | None:
        return lag_of(follower.replica.view.progress, boot_ms()).age_ms

    follower.poll()
    assert age_ms() is None
    beat("one", now_ms - 1_000)
    assert 1_000 <= age_ms() < 60_000
    beat("two", None)
    assert age_ms() is None
    beat("two", now_ms - 100_000)
    assert 100_000 <= age_ms() < 160_000
    log.changelog.retire_writer("log", "two")
    follower.poll()
    assert age_ms() < 60_000
    assert follower.content == {}
    follower.close()


def test_time_lag_grows_only_while_the_log_is_not_polled(log, pass_time):
    log.append((b"a", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    follower.poll()
    before = lag_of(follower.replica.view.progress, boot_ms())
    pass_time(1_000)
    grown = lag_of(follower.replica.view.progress, boot_ms())
    follower.poll()
    after = lag_of(follower.replica.view.progress, boot_ms())
    assert before.record_lag == grown.record_lag == after.record_lag == 0
    assert grown.time_lag_ms >= 1_000 > after.time_lag_ms
    log.append((b"a", b"2"))
    pass_time(1_000)
    follower.applier.note_current()
    assert lag_of(follower.replica.view.progress, boot_ms()).time_lag_ms >= 1_000
    follower.close()


def test_time_lag_grows_while_the_log_cannot_be_reached(log, monkeypatch):
    log.append((b"a", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    before = follower.replica.view.progress.last_caught_up_boot_ms
    Path(log.changelog.path(TP)).rename(tmp := Path(log.changelog.path(TP) + ".away"))
    follower.applier._consumer._disconnect(TP)
    follower.poll()
    assert follower.replica.view.progress.last_caught_up_boot_ms == before
    tmp.rename(log.changelog.path(TP))
    follower.poll()
    assert follower.replica.view.progress.last_caught_up_boot_ms > before
    follower.close()


def test_new_query_does_not_inherit_the_old_ones_age(log):
    """Both write under the same name."""

    def beat(query: str, as_of_ms: int | None) -> None:
        value = Heartbeat(as_of_ms, query, 1).value()
        sqlite_writers.append_heartbeat(log.changelog.path(TP), writer="w", query_id=query, value=value)

    follower = Follower(log.changelog)
    now_ms = int(time.time() * 1000)
    beat("q1", now_ms)
    follower.poll()
    assert follower.replica.view.progress.as_of_boot_ms is not None
    beat("q1", None)
    follower.poll()
    assert follower.replica.view.progress.as_of_boot_ms is not None
    beat("q2", None)
    follower.poll()
    assert follower.replica.view.progress.as_of_boot_ms is None
    follower.close()


@pytest.mark.parametrize("ahead_ms", [1, 600_000])
def test_time_in_the_future_is_ignored(ahead_ms):
    """A committed time that lies ahead of the wall clock proves nothing."""
    committed = CommittedOffset(5, 5, None, 1_000_000.0 + ahead_ms, {"w": 1_000_000 + ahead_ms}, None, True)
    progress = progress_at_open(committed, 50.0, 1_000_000.0)
    assert (progress.last_caught_up_boot_ms, progress.as_of_boot_ms) == (None, None)


def test_a_token_bounds_what_a_crashed_legacy_store_may_hold():
    progress = progress_at_open(CommittedOffset(10_000, None, 15_000), 50.0, 1_000_000.0)
    assert (progress.position, progress.applying_to) == (10_000, 15_000)


def test_failure_lasts_until_a_commit_succeeds(log, monkeypatch):
    """Nothing new is read from the log meanwhile."""
    log.append((b"k", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    replica = follower.replica
    replica.failure = "No space left on device"
    commit = replica.view.store.commit

    def refuse(offsets: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def recheck() -> None:
        # As the applier does with what failed a while ago.
        follower.applier._consumer.unassign(TP)
        follower.applier._consumer.assign(TP, 1)
        follower.poll()

    monkeypatch.setattr(replica.view.store, "commit", refuse)
    with pytest.raises(OSError, match="No space left"):
        recheck()
    assert replica.failure is not None
    monkeypatch.setattr(replica.view.store, "commit", commit)
    recheck()
    assert replica.failure is None
    follower.close()


class BreakingStore(MemoryStore):
    """A supplied store that fails from its first commit on, whatever it is asked."""

    broken = False

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.broken = True
        raise RuntimeError("gone")

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        if self.broken:
            raise RuntimeError("gone")
        return super().committed_offset(topic_partition)


def test_a_store_that_breaks_holds_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 10.0)
    log = Log(tmp_path / "log", partitions=2)
    other = TopicPartition("log", 1)

    def put(tp: TopicPartition, batch_id: int) -> None:
        names = {"writer": "s", "query_id": "q", "write_name": "s"}
        sqlite_batches.append_batch(log.changelog.path(tp), [(b"k", b"1", 0)], batch_id=batch_id, **names)

    spec_ = dataclasses.replace(spec(2), partitioner="unknown")
    broken = Replica.opened(spec_, TaskId(0, 0), BreakingStore("s"))
    well = Replica.opened(spec_, TaskId(0, 1), MemoryStore("s"))
    applier = Applier(log.changelog, 0, lambda _: None, unexpected, lambda _: None, lambda: None)
    applier.start()
    try:
        for replica in (broken, well):
            applier.run(functools.partial(applier.follow, replica))
        for batch_id in (1, 2, 3):
            put(TP, batch_id)
            wait_until(lambda: broken.failure == "gone", "the failure")
            put(other, batch_id)
            wait_until(lambda: well.view.progress.position == batch_id, "what the other store got")  # noqa: B023
    finally:
        applier.stop()


def test_an_applier_whose_turn_fails_goes_on(log, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 10.0)
    follower = Follower(log.changelog)
    poll, failures = follower.applier._consumer.poll, [OSError("no"), RuntimeError("no")]

    def fail_at_first(most: int) -> Iterable[Batch]:
        if failures:
            raise failures.pop()
        return poll(most)

    monkeypatch.setattr(follower.applier._consumer, "poll", fail_at_first)
    follower.applier.start()
    log.append((b"k", b"1"))
    wait_until(lambda: follower.content == {b"k": b"1"}, "the record")
    follower.applier.stop()


def test_an_identity_that_could_not_be_kept_is_kept_later():
    kept: list[str] = []

    def keep(log: str) -> None:
        kept.append(log)
        if len(kept) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    replica = Replica.opened(spec(), TaskId(0, 0), MemoryStore("s"), identify=keep)
    with pytest.raises(OSError, match="No space left"):
        replica.learn_log("the log")
    for _ in range(2):
        replica.learn_log("the log")
    assert (replica.view.log, kept) == ("the log", ["the log", "the log"])


def test_missing_log_is_reported_once_without_a_lag(log, pass_time, caplog):
    caplog.set_level("INFO")
    log.append((b"a", b"1"))
    follower = Follower(log.changelog)
    follower.poll()
    follower.applier._keep_house()
    assert follower.replica.stopped_by is None
    assert lag_of(follower.replica.view.progress, boot_ms()).record_lag == 0

    directory = Path(log.changelog.path(TP)).parent
    away = directory.rename(directory.with_name("away"))
    for _ in range(3):
        pass_time(3_000)
        follower.poll()
        follower.applier._keep_house()
        assert f"The log's directory {directory} is gone" in follower.replica.stopped_by
        lag = lag_of(follower.replica.view.progress, boot_ms())
        assert lag.record_lag is None
        assert lag.time_lag_ms >= 3_000
        assert follower.replica.view.checked
    [line] = caplog.messages
    assert f"not applied are {TP}: The log's directory {directory} is gone" in line

    away.rename(directory)
    pass_time(3_000)
    follower.poll()
    follower.applier._keep_house()
    assert follower.replica.stopped_by is None
    assert lag_of(follower.replica.view.progress, boot_ms()).record_lag == 0
    assert caplog.messages[1:] == [f"{TP} can be read again"]
    follower.close()


def test_the_lag_behind_a_damaged_record_is_known(log, pass_time):
    log.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    with contextlib.closing(sqlite_log_file.connect(log.changelog.path(TP))) as connection:
        connection.execute("UPDATE log SET value = x'39' WHERE offset = 1")
    follower = Follower(log.changelog)
    for _ in range(3):
        pass_time(3_000)
        follower.poll()
        follower.applier._keep_house()
    assert "The record at offset 1 of 'log', partition 0, is damaged" in follower.replica.stopped_by
    assert follower.content == {b"a": b"1"}
    assert lag_of(follower.replica.view.progress, boot_ms()).record_lag == 2
    assert not follower.replica.view.restored
    follower.close()


def test_shared_read_failure_is_logged_once(caplog):
    """Of many reasons a few are logged."""

    class Failing:
        """A consumer of partitions of which none can be read."""

        def __init__(self) -> None:
            self.found: dict[TopicPartition, ReadFailure] = {}

        def failures(self) -> dict[TopicPartition, ReadFailure]:
            return self.found

        def notices(self, specs: object) -> dict[TopicPartition, dict[str, str]]:
            return {}

    consumer = Failing()
    changelog = SimpleNamespace(consumer=lambda **_: consumer)
    applier = Applier(changelog, 0, lambda error: None, unexpected, unexpected, lambda: None)
    tps = [TopicPartition("log", partition) for partition in range(40)]
    applier._replicas = {tp: Replica.opened(spec(40), TaskId(0, tp.partition), MemoryStore("s")) for tp in tps}
    consumer.found = dict.fromkeys(tps, ReadFailure("No broker answers.", lasting=False))
    applier._note_read_failures()
    assert caplog.messages == ["not applied are log-0 and 39 more: No broker answers."]
    consumer.found = {tp: ReadFailure(f"{tp} is damaged.", lasting=True) for tp in tps}
    applier._note_read_failures()
    assert len(caplog.messages) == 1 + 5 + 1
    assert caplog.messages[-1] == "35 more reasons are in the failures of /v1/status"
    assert all(replica.stopped_by == f"{tp} is damaged." for tp, replica in applier._replicas.items())


class RefusesOnce(MemoryStore):
    """A store whose disk refuses a commit that it then has all the same."""

    refuses = True

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        super().commit(changelog_offsets)
        if self.refuses:
            self.refuses = False
            raise OSError(errno.EIO, "Input/output error")


def test_an_end_that_a_refused_commit_had_is_reported(tmp_path, monkeypatch):
    """Else what was set aside would be served for a rebuilt replica until a restart."""
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 10.0)
    log = Log(tmp_path / "log")
    log.append((b"k", b"1"))
    damaged: list[object] = []
    ends: list[Replica] = []
    replica = Replica.opened(spec(), TaskId(0, 0), RefusesOnce("s"))
    applier = Applier(
        log.changelog, 0, lambda _: None, lambda *found: damaged.append(found), ends.append, lambda: None
    )
    applier.start()
    try:
        applier.run(functools.partial(applier.follow, replica))
        wait_until(lambda: replica.view.restored and replica.failure is None, "the store")
        assert (damaged, ends) == ([], [replica])
    finally:
        applier.stop()


def test_a_malformed_heartbeat_is_a_bad_record_like_any_other(log):
    """What comes before it is applied, and the message says where it is and what to do."""
    log.append((b"a", b"1"))
    path = log.changelog.path(TP)
    sqlite_writers.append_heartbeat(path, writer="w", query_id="q", value=b'{"as_of_ms": 1}')
    log.append((b"b", b"1"))
    follower = Follower(log.changelog)
    with pytest.raises(
        BadRecord, match=r"The record at offset 1 of 'log' does not fit.*is not a heartbeat"
    ) as found:
        follower.poll()
    assert "set external = true" in str(found.value)
    assert follower.content == {b"a": b"1"}
    assert follower.replica.view.progress.position == 1
    follower.close()
