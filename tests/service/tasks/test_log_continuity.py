"""When a replica goes on in a log, and when it does not."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.lag import EndOffset
from forebay.log_epochs import EpochStart
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog import Batch
from forebay_changelog.base import CompactionLimits
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.apply import apply_batch, resume
from forebay_worker.tasks.folding import Fold, advance
from forebay_worker.tasks.log_continuity import NotContinued, continuity_fault
from forebay_worker.tasks.replica import Replica
from tests.support.logs import SqliteLog

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)


def batch(position: int, beginning: int = 0, **fields: object) -> Batch:
    end = EndOffset(position, 0.0)
    whole = Batch(TopicPartition("log", 0), [], position, False, end, beginning, 0, "identity")
    return whole._replace(**{"is_beginning_fixed": True, **fields})


def begun(beginning: int) -> CommittedOffset:
    """The offset after a replay of a log that began there."""
    before = CommittedOffset(0)
    return advance(before, batch(beginning + 10, beginning), Fold.after(before), None, 0.0)


@pytest.mark.parametrize("beginning", [0, 7])
def test_a_beginning_that_moved_behind_the_replay_is_a_rebuild(beginning):
    before = begun(beginning)
    assert continuity_fault(SPEC, "identity", before, None, batch(20, beginning)) is None
    # Even if nothing else was written since.
    for position in (before.position, 20):
        found = continuity_fault(SPEC, "identity", before, None, batch(position, beginning + 1))
        assert found.has_lost == "first"


def test_a_beginning_that_the_brokers_move_means_nothing():
    deleting = batch(20, 5, is_beginning_fixed=False)
    assert continuity_fault(SPEC, "identity", begun(0), None, deleting) is None
    accepted = replace(SPEC, accept_uncompacted=True)
    assert continuity_fault(accepted, "identity", begun(0), None, batch(20, 5)) is None


def test_a_replica_keeps_the_beginning_of_its_replay():
    before = begun(3)
    after = advance(before, batch(40, 3), Fold.after(before), None, 0.0)
    assert CommittedOffset.from_document(after.document()).replay_beginning == 3


def test_a_log_that_lost_records_is_cut():
    for found in (batch(20, truncated=True), batch(5)):
        assert continuity_fault(SPEC, "identity", begun(0), None, found).has_lost == "newest"


def test_a_log_that_lost_what_it_was_compacted_by_is_cut():
    """In a compacted replay, what a gap left out is gone only as long as its successors are there."""
    end = EndOffset(100, 0.0, epoch=5)
    first = CommittedOffset(0)
    gap = batch(50, gap=True, end=end, epochs=(EpochStart(0, 4),))
    before = advance(first, gap, Fold.after(first), None, 0.0)
    before = CommittedOffset.from_document(before.document())
    assert (before.pending_end, before.pending_epoch) == (100, 5)
    for first_offset, epoch, is_cut in ((60, 6, True), (60, 5, False), (100, 6, False)):
        found = batch(120, end=EndOffset(120, 1.0, epoch=6), epochs=(EpochStart(first_offset, epoch),))
        fault = continuity_fault(SPEC, "identity", before, None, found)
        assert (fault is not None and fault.has_lost == "newest") is is_cut
    # Records that came after the end was requested belong to it.
    late = batch(50, gap=True, end=end, epochs=(EpochStart(0, 4), EpochStart(40, 7)))
    assert advance(first, late, Fold.after(first), None, 0.0).pending_epoch == 7
    through = advance(before, batch(120), Fold.after(before), None, 0.0)
    assert (through.pending_end, through.pending_epoch) == (None, None)
    # A log without epochs cannot prove itself.
    unknown = batch(50, gap=True, end=EndOffset(100, 0.0))
    assert advance(first, unknown, Fold.after(first), None, 0.0).pending_epoch is None


def test_what_compaction_removed_by_lost_records_is_not_missed(tmp_path):
    """A replay is interrupted before the cut; the log that is put back has what the replay had found removed."""
    changelog, tp = SqliteChangelog(tmp_path / "log"), TopicPartition(SPEC.topic, 0)
    changelog.ensure(SPEC)
    log, path, kept = SqliteLog(changelog), Path(changelog.path(tp)), tmp_path / "kept.db"

    def put(number: int, *keys: bytes) -> None:
        log.append(SPEC, {0: [(key, b"%d" % number, 0) for key in keys]}, "w", number)

    def replayed(max_records: int) -> Replica:
        """Goes on with one batch, as after a restart."""
        replica = Replica.opened(SPEC, TaskId(0, 0), store, changelog.identity(SPEC.topic))
        committed = store.committed_offset(tp) or CommittedOffset(0)
        resume(replica, committed)
        with closing(changelog.consumer(replay=True)) as consumer:
            consumer.assign(tp, committed.position, committed.proof)
            for found in consumer.poll(max_records):
                apply_batch(replica, found)
        return replica

    store = MemoryStore("s")
    put(1, b"a", b"b", b"c", b"d", b"e")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(kept)) as target:
        source.backup(target)
    put(2, b"a")
    changelog.compact(SPEC, CompactionLimits(0, 10**9))
    assert not replayed(2).view.consistent
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copy(kept, path)
    put(3, b"x", b"y", b"z")
    with pytest.raises(NotContinued, match="by which it was compacted") as fault:
        replayed(100)
    assert fault.value.has_lost == "newest"
