"""Replicas reach the ends of their logs, whatever stands in the way."""

import errno
import math
import shutil
import sys
import threading

import pytest
from rocksdict import DbClosedError, WriteBatch

from forebay.clock import boot_ms
from forebay.errors import ChangelogUnreachable
from forebay.lag import UNKNOWN_LAG, lag_of
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from forebay_worker.reads.admission import role_of
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.store_factory import OpenedStore, StoreFactory
from forebay_worker.tasks import bulk_restore, restoration
from forebay_worker.tasks.log_continuity import NotContinued
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restoration import Restoration
from tests.support.cluster import wait_until
from tests.support.held_tasks import (
    PARTITIONS,
    TASKS,
    TOPIC,
    TOPOLOGY,
    SlowOpener,
    append,
    applied,
    fill,
    offsets,
    started,
    value_in,
)


def test_set_aside_store_is_kept_until_the_rebuild_is_done(tmp_path, changelog):
    """A later process keeps it too."""
    fill(tmp_path, changelog)
    directory = StateDirectory(tmp_path / "state", "app")
    asides = [directory.set_aside(TASKS[0], "a")]
    # The loser of a collision lay under another ordinal; another partition's is another matter.
    for name in ("3_0-a-7", "0_99-a-7"):
        asides.append(asides[0].with_name(name))
        asides[-1].mkdir()
    directory.close()

    with started(tmp_path, changelog, SlowOpener) as manager:
        manager.hold(TASKS, ())
        assert all(path.exists() for path in asides)
        SlowOpener.let_all()
        wait_until(lambda: [path.exists() for path in asides] == [False, False, True], "the rebuild is done")
        assert manager.replicas["a", 0].view.restored


def test_rebuilds_that_are_not_done_leave_no_pile_of_copies(tmp_path, changelog, monkeypatch):
    """A disk that fails again and again must not be filled with what nobody reads."""
    fill(tmp_path, changelog)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.replicas and manager.replicas["a", 0].view.restored, "the restore")
        replica, asides = manager.replicas["a", 0], tmp_path / "state" / "app" / ".set-aside"
        # No rebuild comes to its end.
        monkeypatch.setattr(manager.applier, "_on_end_reached", lambda replica: None)
        for number in range(4):
            store = replica.view.store
            replica.on_corrupted(replica, store, f"damage {number}")
            wait_until(lambda store=store: replica.view.store is not store, "the rebuild's begin")
        # The last one, and the one that serves meanwhile.
        assert 1 <= len(list(asides.iterdir())) <= 2


def test_what_serves_meanwhile_goes_on_when_the_rebuild_begins_anew(tmp_path, changelog, monkeypatch):
    """As when the log is cut before it has confirmed a copy of another worker's store."""
    fill(tmp_path, changelog)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.replicas and manager.replicas["a", 0].view.restored, "the restore")
        replica, stores = manager.replicas["a", 0], set()
        with monkeypatch.context() as cut:
            fault = NotContinued("the log was cut", "newest")
            cut.setattr("forebay_worker.tasks.apply.continuity_fault", lambda *_: fault)
            append(changelog, 0, 2, [(b"new", b"2", 0)])
            wait_until(lambda: replica.predecessor is not None, "the rebuild's begin")
            serving = replica.predecessor
            wait_until(lambda: stores.add(replica.view.store) or len(stores) > 2, "rebuilds that begin anew")
            assert replica.predecessor is serving
            assert value_in(serving.view.store, b"k") == b"1"
            assert serving.view.log_has_lost == "newest"
            asides = tmp_path / "state" / "app" / ".set-aside"
            wait_until(lambda: len(list(asides.iterdir())) == 1, "only what serves being kept")
            fault.has_lost = "first"
            stores.clear()
            wait_until(lambda: stores.add(replica.view.store) or len(stores) > 2, "further rebuilds")
            assert serving.view.log_has_lost == "newest"
        wait_until(lambda: replica.view.restored and replica.predecessor is None, "the rebuild")
        assert value_in(replica.view.store, b"new") == b"2"


def test_lagging_replica_that_missed_tombstones_is_rebuilt(tmp_path, changelog, monkeypatch):
    """No deleted key comes back."""
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 20)
    tp = TopicPartition(TOPIC, 0)

    def append(batch: int, rows: list[tuple[bytes, bytes | None, int]]) -> None:
        sqlite_batches.append_batch(
            changelog.path(tp), rows, writer="a", query_id="q", batch_id=batch, write_name="a"
        )

    append(2, [(b"deleted", b"1", 0)])
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 2, "all is applied")
    append(3, [(b"deleted", None, 0), *((b"k%d" % i, b"1", 0) for i in range(30))])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))

    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        wait_until(lambda: applied(manager).get(TASKS[0]) == 33, "all is applied")
        store = manager.replicas["a", 0].view.store
        assert value_in(store, b"k29") == b"1"
        assert value_in(store, b"deleted") is None


def test_predecessor_serves_until_the_rebuild_is_done(tmp_path, changelog):
    """After a weekend's shutdown there is no other copy: the old one answers, with the lag that it has."""
    fill(tmp_path, changelog)
    append(changelog, 0, 2, [(b"k", None, 0), (b'"new"', b"2", 0)])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))
    SlowOpener.let.release(1)
    with started(tmp_path, changelog, SlowOpener) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.replicas and manager.replicas["a", 0].predecessor, "the old store's return")
        replica = manager.replicas["a", 0]
        assert not replica.view.restored
        assert value_in(replica.served.view.store, b"k") == b"1"
        former = replica.served
        assert role_of(former.view.progress, former.designated_boot_ms, math.inf, boot_ms()) == "restoring"
        lag = lag_of(replica.served.view.progress, boot_ms())
        assert lag.record_lag == 2
        assert lag.time_lag_ms > 0
        SlowOpener.let_all()
        wait_until(lambda: replica.view.restored, "the rebuild")
        wait_until(lambda: replica.served is replica, "its being served")
        assert value_in(replica.view.store, b"k") is None
        assert value_in(replica.view.store, b'"new"') == b"2"
        wait_until(lambda: not list((tmp_path / "state/app/.set-aside").iterdir()), "the old store's removal")


def test_corrupted_predecessor_is_dropped(tmp_path, changelog):
    """An old store that cannot be read is served no longer, and its rebuild goes on."""
    fill(tmp_path, changelog)
    append(changelog, 0, 2, [(b"k", None, 0), (b'"new"', b"2", 0)])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))
    SlowOpener.let.release(1)
    with started(tmp_path, changelog, SlowOpener) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.replicas and manager.replicas["a", 0].predecessor, "the old store's return")
        replica = manager.replicas["a", 0]
        former = replica.served
        former.on_corrupted(former, former.view.store, "a block is damaged")
        SlowOpener.let_all()
        wait_until(lambda: replica.view.restored and replica.served is replica, "the rebuild")
        assert value_in(replica.view.store, b'"new"') == b"2"
        append(changelog, 0, 3, [(b'"later"', b"3", 0)])
        wait_until(lambda: value_in(replica.view.store, b'"later"') == b"3", "what comes later")


@pytest.mark.parametrize("restore_processes", [0, 1])
def test_compacted_log_is_replayed_once(tmp_path, changelog, monkeypatch, caplog, restore_processes):
    """It may take many polls, and is no cause for a rebuild."""
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 20)
    monkeypatch.setattr("forebay_worker.tasks.applier_thread.MAX_RECORDS_PER_POLL", 3)
    append(changelog, 0, 2, [(b"k%d" % i, b"1", 0) for i in range(30)])
    append(changelog, 0, 3, [(b"deleted", b"1", 0), (b"deleted", None, 0), (b"last", b"1", 0)])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))

    with started(tmp_path, changelog, StoreFactory, restore_processes=restore_processes) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 34, "all is applied")
        store = manager.replicas["a", 0].view.store
        assert value_in(store, b"k29") == b"1"
        assert value_in(store, b"deleted") is None
    assert "it is rebuilt" not in caplog.text


def test_compaction_within_a_replay_resurrects_no_key(tmp_path, changelog, caplog):
    append(changelog, 0, 2, [(b"early", None, 0), (b"deleted", b"1", 0), (b"k", b"1", 0)])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 4, "all is applied")
        assert value_in(manager.replicas["a", 0].view.store, b"deleted") == b"1"
    append(changelog, 0, 3, [(b"k", b"2", 0), (b"deleted", None, 0), (b"last", b"1", 0)])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))

    with started(tmp_path, changelog, StoreFactory) as manager:
        wait_until(lambda: applied(manager).get(TASKS[0]) == 7, "all is applied")
        assert value_in(manager.replicas["a", 0].view.store, b"deleted") is None
    assert "it is rebuilt" in caplog.text


def test_late_end_offset_starts_a_bulk_restore(tmp_path, changelog, monkeypatch):
    """The end offset was unknown when the replica was opened."""
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 20)
    monkeypatch.setattr("forebay_worker.tasks.applier_thread.MAX_RECORDS_PER_POLL", 1)
    append(changelog, 0, 2, [(b"k%d" % i, b"1", 0) for i in range(5_000)])
    with monkeypatch.context() as away:
        away.setattr(SqliteChangelog, "end_offsets", lambda *_: {})
        with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
            manager.hold(TASKS[:1], ())
            wait_until(lambda: manager.bulk_restore.restorations, "a restore in bulk")
            wait_until(lambda: applied(manager).get(TASKS[0]) == 5_001, "all is applied")
            assert value_in(manager.replicas["a", 0].view.store, b"k4999") == b"1"


def test_lagging_replica_of_a_replaced_log_is_rebuilt(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 20)
    fill(tmp_path, changelog)
    changelog.reset(TOPOLOGY.stores["a"])
    rows = [(b"k%d" % i, b"2", 0) for i in range(30)]
    sqlite_batches.append_batch(
        changelog.path(TopicPartition(TOPIC, 0)), rows, writer="a", query_id="q", batch_id=2, write_name="a"
    )

    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        wait_until(lambda: applied(manager).get(TASKS[0]) == 30, "all is applied")
        store = manager.replicas["a", 0].view.store
        assert (value_in(store, b"k29"), value_in(store, b"k")) == (b"2", None)


@pytest.mark.parametrize(
    "waiting", [False, True], ids=["before the start", "while it waits for a restore process"]
)
def test_replaced_log_is_not_served_before_its_restore(tmp_path, changelog, monkeypatch, waiting):
    """The replica is far behind and waits for a restore process."""

    def replace_log() -> None:
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 3, [(b"new%d" % i, b"2", 0) for i in range(200)])

    fill(tmp_path, changelog)
    far_behind(changelog, monkeypatch)
    if not waiting:
        replace_log()
    # All processes have other things to do.
    monkeypatch.setattr(bulk_restore.BulkRestore, "_run", lambda self: None)
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        wait_until(lambda: ("a", 0) in manager.replicas, "the replica")
        replica = manager.replicas["a", 0]
        wait_until(lambda: replica.view.progress.end_offset is not None, "word of the end")
        if waiting:
            assert (value_in(replica.view.store, b"k"), replica.view.diverged) == (b"1", False)
            replace_log()
        wait_until(lambda: replica.view.diverged, "word of the other log")
        assert not replica.view.restored
        wait_until(lambda: begun_anew(replica), "an empty store")


def begun_anew(replica: Replica) -> bool:
    try:
        return value_in(replica.view.store, b"k") is None
    except DbClosedError:
        return False


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unforeseen")])
def test_failed_rebuild_is_retried_until_it_begins(tmp_path, changelog, monkeypatch, error):
    monkeypatch.setattr("forebay_worker.tasks.recovery._RETRY_MS", 50.0)
    refusals = [error, error]

    class Refusing(StoreFactory):
        def open(self, task, spec) -> OpenedStore:
            if task == TASKS[0] and resetting and refusals:
                raise refusals.pop()
            return super().open(task, spec)

    resetting: list[bool] = []
    with started(tmp_path, changelog, Refusing) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        resetting.append(True)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 2, [(b"k", b'"new"', 0)])
        wait_until(lambda: not refusals and manager.replicas["a", 0].view.restored, "the rebuild")
        assert value_in(manager.replicas["a", 0].view.store, b"k") == b'"new"'
        assert (manager.replicas["a", 0].failure, manager.storage_fault) == (None, None)


def test_store_being_read_is_rebuilt_after_the_read(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.recovery._RETRY_MS", 50.0)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        replica = manager.replicas["a", 0]
        read = replica.view.store.scan(USER_TAG, b"\x02")
        next(read)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 2, [(b"k", b'"new"', 0)])
        wait_until(lambda: replica.view.diverged, "the reset")
        del read
        wait_until(lambda: replica.view.restored, "the rebuild")
        assert value_in(replica.view.store, b"k") == b'"new"'


def test_a_store_that_cannot_be_closed_is_rebuilt_all_the_same(tmp_path, changelog, monkeypatch):
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        replica = manager.replicas["a", 0]
        old, close = replica.view.store, replica.view.store.close

        def refuse() -> None:
            close()
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(replica.view.store, "close", refuse)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 1, [(b'"new"', b"1", 0)])
        wait_until(lambda: replica.view.store is not old, "another store")
        wait_until(
            lambda: value_in(replica.view.store, b'"new"') == b"1" and not replica.view.diverged,
            "the rebuild",
        )
        # All of its first keys are checked against the partitioner again.
        assert replica.records.applied == 1


def test_store_opened_offline_is_not_served_for_another_log(tmp_path, changelog, monkeypatch):
    """The log's identity was unknown when the store was opened, and the log was reset meanwhile."""
    with monkeypatch.context() as unreachable:

        def refuse(*_: object) -> str:
            raise ChangelogUnreachable("away")

        unreachable.setattr(SqliteChangelog, "identity", refuse)
        fill(tmp_path, changelog)
    changelog.reset(TOPOLOGY.stores["a"])
    for partition in range(PARTITIONS):
        append(changelog, partition, 2, [(b"other%d" % i, b"2", 0) for i in range(30)])
    with started(tmp_path, changelog, StoreFactory) as manager:
        wait_until(lambda: set(applied(manager).values()) == {30}, "all is applied")
        for partition in range(PARTITIONS):
            assert value_in(manager.replicas["a", partition].view.store, b"k") is None


def test_waiting_restores_request_end_offsets_in_turn(tmp_path, changelog, monkeypatch):
    """However many wait, requests are few and small."""
    futures: list[list[TopicPartition]] = []
    own = changelog.end_offsets

    def end_offsets(wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        futures.append(list(wanted))
        return own(wanted)

    monkeypatch.setattr("forebay_worker.tasks.recovery._ENDS_AT_ONCE", 4)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        waiting = [Restoration(replica, n, 0.0) for n, replica in enumerate(manager.replicas.values())]
        monkeypatch.setattr(changelog, "end_offsets", end_offsets)
        monkeypatch.setattr(
            manager.bulk_restore, "restorations", {one.replica.topic_partition: one for one in waiting}
        )
        wait_until(lambda: len({tp for lookup in futures for tp in lookup}) == PARTITIONS, "every end")
    assert max(map(len, futures)) <= 4


def far_behind(changelog: SqliteChangelog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 20)
    append(changelog, 0, 2, [(b"k%d" % i, b"1", 0) for i in range(100)])


def test_undeletable_set_aside_store_does_not_stop_a_replica(tmp_path, changelog, monkeypatch):
    """The replica applies what is written after its restore."""
    far_behind(changelog, monkeypatch)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(StateDirectory, "discard_set_aside", refuse)
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 101, "the restore")
        append(changelog, 0, 3, [(b'"new"', b"1", 0)])
        wait_until(lambda: applied(manager).get(TASKS[0]) == 102, "what was written after it")


def test_replaced_logs_store_is_never_served(tmp_path, changelog, monkeypatch):
    """The store can neither be set aside nor deleted at first."""
    monkeypatch.setattr("forebay_worker.tasks.recovery._RETRY_MS", 20.0)
    seen: list[str] = []

    class Watched(StoreFactory):
        def open(self, task, spec) -> OpenedStore:
            seen.append("opened")
            return super().open(task, spec)

    with started(tmp_path, changelog, Watched) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 1, "all is applied")
        replica = manager.replicas["a", 0]

        def refuse(*_: object) -> None:
            seen.append("refused")
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            for way in ("set_aside", "delete_store"):
                broken.setattr(StateDirectory, way, refuse)
            changelog.reset(TOPOLOGY.stores["a"])
            append(changelog, 0, 2, [(b'"new"', b"1", 0)])
            wait_until(lambda: len(seen) > 4, "several attempts")
            assert set(seen[1:]) == {"refused"}
            assert (replica.view.restored, replica.view.diverged) == (False, True)
            # What is told of it is not what is told of a replica that is current.
            assert lag_of(replica.view.progress, boot_ms()) == UNKNOWN_LAG
        wait_until(lambda: replica.view.restored and not replica.view.diverged, "the rebuild")
        assert (value_in(replica.view.store, b'"new"'), value_in(replica.view.store, b"k")) == (
            b"1",
            None,
        )


def test_without_a_spare_thread_records_are_applied_singly(tmp_path, changelog, monkeypatch, caplog):
    """A bulk restore that cannot start is logged once."""
    far_behind(changelog, monkeypatch)
    monkeypatch.setattr("forebay_worker.tasks.recovery._FALLEN_BEHIND", 0)
    monkeypatch.setattr("forebay_worker.tasks.applier_thread.MAX_RECORDS_PER_POLL", 5)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "forebay-restore":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 101, "all is applied")
        append(changelog, 0, 3, [(b"new%d" % i, b"1", 0) for i in range(3_000)])
        wait_until(lambda: applied(manager).get(TASKS[0]) == 3_101, "all is applied again")
    # Not begun over and over again.
    assert caplog.text.count("cannot be restored in bulk") == 1


def test_dying_restore_processes_fall_back_to_the_applier(tmp_path, changelog, monkeypatch):
    """The replica is restored record by record."""
    far_behind(changelog, monkeypatch)
    monkeypatch.setattr("forebay_worker.tasks.recovery._FALLEN_BEHIND", 0)
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 101, "all is applied")
        wait_until(lambda: manager.replicas["a", 0].failure is None, "word of the success")


def test_a_task_whose_recovery_could_not_begin_is_opened_later(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.manager._REOPEN_MS", 50.0)
    refusals, ends = [RuntimeError("unforeseen")], changelog.end_offsets

    def refuse(wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        if wanted and refusals:
            raise refusals.pop()
        return ends(wanted)

    monkeypatch.setattr(changelog, "end_offsets", refuse)
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS[:2], ())
        wait_until(lambda: applied(manager) == {TASKS[0]: 1, TASKS[1]: 2}, "all is applied")


@pytest.mark.parametrize("lost", ["directory", "manifest", "content"])
def test_a_store_that_is_lost_while_it_is_open_is_rebuilt(tmp_path, changelog, monkeypatch, lost):
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 50.0)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 1, "all is applied")
        store = manager.replicas["a", 0].view.store
        if lost == "manifest":
            for manifest in store.path.glob("MANIFEST*"):
                manifest.write_bytes(b"damaged")
        else:
            shutil.rmtree(store.path)
            if lost == "content":
                store.path.mkdir()
        # As after a write that a full disk refused: it must be opened again.
        store._refused = True
        append(changelog, 0, 2, [(b'"new"', b"1", 0)])
        wait_until(lambda: applied(manager).get(TASKS[0]) == 2, "the rebuild")
        store = manager.replicas["a", 0].view.store
        assert (value_in(store, b'"new"'), value_in(store, b"k")) == (b"1", b"1")


def test_what_was_written_though_it_was_refused_is_known_to_followers(tmp_path, changelog):
    """They are reset, since nobody noted the keys."""
    fill(tmp_path, changelog)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.replicas and manager.replicas["a", 0].view.restored, "the restore")
        replica = manager.replicas["a", 0]
        store, before = replica.view.store, replica.view.recent_changes.reached
        database, refusals = store._db, iter([True])

        class Refusing:
            """The database, which reports a failure of its next write."""

            def __getattr__(self, name):
                return getattr(database, name)

            def write(self, batch):
                database.write(batch)
                if next(refusals, False):
                    raise Exception("IO error: While appending to file: 000004.log: Input/output error")

        store._db = Refusing()
        append(changelog, 0, 7, [(b"refused", b"1", 0)])
        end = changelog.end_offsets([replica.topic_partition])[replica.topic_partition]
        wait_until(lambda: replica.view.progress.position == end and replica.failure is None, "its application")
        missed = replica.view.recent_changes.since(*before)
        assert missed is None or any(b"refused" in key for batch in missed.batches for key in batch.keys)


def test_what_was_polled_and_not_applied_is_polled_again(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 50.0)
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager).get(TASKS[0]) == 1, "all is applied")
        store, consumer = manager.replicas["a", 0].view.store, manager.applier._consumer
        commit, unassign, refusals = store.commit, consumer.unassign, ["commit", "unassign"]

        def refuse_commit(*arguments: object) -> None:
            if refusals == ["commit", "unassign"]:
                refusals.remove("commit")
                # Dropped, as where the disk refuses.
                store._batch = WriteBatch(raw_mode=True)
                raise OSError(errno.EIO, "Input/output error")
            commit(*arguments)

        def refuse_unassign(tp: TopicPartition) -> None:
            if refusals == ["unassign"]:
                refusals.clear()
                raise RuntimeError("unforeseen")
            unassign(tp)

        monkeypatch.setattr(store, "commit", refuse_commit)
        monkeypatch.setattr(consumer, "unassign", refuse_unassign)
        append(changelog, 0, 2, [(b'"new"', b"1", 0)])
        wait_until(lambda: not refusals, "both refusals")
        append(changelog, 0, 3, [(b"newer", b"1", 0)])
        wait_until(lambda: applied(manager).get(TASKS[0]) == 3, "all is applied")
        assert value_in(store, b'"new"') == b"1"
