"""What a worker holds, and what it says of its disk, from its start to its stop."""

import errno
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.changelog.sqlite.compaction import CompactionLimits
from forebay.errors import ChangelogUnreachable
from forebay.stored_keys import USER_TAG
from forebay.tasks import TaskId, TopicPartition
from forebay.topology import parse_topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.opening import OpenedStore, StoreOpener
from forebay_worker.state.rocksdb import RocksDbMemory
from forebay_worker.tasks.bulk_restore import Restoration
from forebay_worker.tasks.expiry import Expiry
from forebay_worker.tasks.manager import TaskManager, TaskPolicy
from forebay_worker.tasks.replica import Replica
from tests.cluster import wait_until

MEMORY = RocksDbMemory(8 << 20, 8 << 20)
PARTITIONS = 6
TASKS = [TaskId(0, partition) for partition in range(PARTITIONS)]
TOPOLOGY = parse_topology(
    {
        "application_id": "app",
        "subtopology": [
            {"name": "s", "partitions": PARTITIONS, "store": [{"name": "a", "partitioner": "unknown"}]}
        ],
    }
)
TOPIC = TOPOLOGY.stores["a"].topic


class SlowOpener(StoreOpener):
    """Opens a store only when it is let."""

    let = threading.Semaphore(0)

    def open(self, task, spec) -> OpenedStore:
        self.let.acquire()
        return super().open(task, spec)


@pytest.fixture(autouse=True)
def none_let(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowOpener, "let", threading.Semaphore(0))


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [(b"k", b"1", 0)] * (partition + 1)
        path = changelog.path(TopicPartition(TOPIC, partition))
        sqlite_partition.append_batch(path, rows, writer="a", query_id="q", batch_id=1, write_name="a")
    return changelog


@contextmanager
def started(
    tmp_path: Path,
    changelog: SqliteChangelog,
    opener: type[StoreOpener],
    restore_processes: int = 0,
    cleanup_ms: int = 600_000,
) -> Iterator[TaskManager]:
    directory = StateDirectory(tmp_path / "state", "app")
    manager = TaskManager(
        TOPOLOGY,
        changelog,
        directory,
        opener(directory, changelog, MEMORY, 300_000),
        TaskPolicy(10, 0, restore_processes, cleanup_ms),
    )
    manager.start()
    try:
        yield manager
    finally:
        manager.stop()
        directory.close()


def fill(tmp_path: Path, changelog: SqliteChangelog) -> None:
    with started(tmp_path, changelog, StoreOpener) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")


def offsets() -> dict[TaskId, int]:
    return {task: task.partition + 1 for task in TASKS}


def held(manager: TaskManager) -> set[TaskId]:
    return {replica.task for replica in manager.replicas.values()}


def test_the_offsets_of_all_on_disk_are_known_before_any_store_is_open(tmp_path, changelog):
    fill(tmp_path, changelog)

    with started(tmp_path, changelog, SlowOpener) as manager:
        assert manager.offsets() == offsets()
        assert not manager.settled
        SlowOpener.let.release(PARTITIONS)
        wait_until(lambda: manager.settled, "all stores open")
        wait_until(lambda: manager.offsets() == offsets(), "all logs followed")


def test_what_is_assigned_active_while_stores_are_opened_is_opened_next(tmp_path, changelog, monkeypatch):
    fill(tmp_path, changelog)
    monkeypatch.setattr("forebay_worker.tasks.manager._OPENING_TURN_MS", 0.001)

    with started(tmp_path, changelog, SlowOpener) as manager:
        SlowOpener.let.release()
        wait_until(lambda: held(manager) == {TASKS[0]}, "the first is open")
        manager.hold([TASKS[4]], [task for task in TASKS if task != TASKS[4]])
        SlowOpener.let.release(2)
        wait_until(lambda: len(held(manager)) == 3, "three are open")
        assert TASKS[4] in held(manager)
        SlowOpener.let.release(PARTITIONS)
        wait_until(lambda: manager.settled, "all stores open")


def test_what_is_open_is_followed_while_others_are_still_to_be_opened(tmp_path, changelog, monkeypatch):
    fill(tmp_path, changelog)
    monkeypatch.setattr("forebay_worker.tasks.manager._OPENING_TURN_MS", 0.001)

    with started(tmp_path, changelog, SlowOpener) as manager:
        SlowOpener.let.release()
        wait_until(lambda: held(manager) == {TASKS[0]}, "the first is open")
        SlowOpener.let.release()
        wait_until(lambda: manager.replicas["a", 0].progress.end_offset == 1, "its log is followed")
        assert not manager.settled
        SlowOpener.let.release(PARTITIONS)
        wait_until(lambda: manager.settled, "all stores open")


def test_what_was_set_aside_is_kept_until_the_rebuild_is_done_even_by_a_later_process(tmp_path, changelog):
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
        SlowOpener.let.release(PARTITIONS)
        wait_until(lambda: [path.exists() for path in asides] == [False, False, True], "the rebuild is done")
        assert manager.replicas["a", 0].complete


def test_a_replica_far_behind_that_missed_tombstones_is_rebuilt_and_resurrects_no_key(
    tmp_path, changelog, monkeypatch
):
    monkeypatch.setattr("forebay_worker.tasks.manager.BULK_RESTORE_RECORDS", 20)
    tp = TopicPartition(TOPIC, 0)

    def append(batch: int, rows: list[tuple[bytes, bytes | None, int]]) -> None:
        sqlite_partition.append_batch(
            changelog.path(tp), rows, writer="a", query_id="q", batch_id=batch, write_name="a"
        )

    append(2, [(b"deleted", b"1", 0)])
    with started(tmp_path, changelog, StoreOpener, restore_processes=1) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.offsets().get(TASKS[0]) == 2, "all is applied")
    append(3, [(b"deleted", None, 0), *((b"k%d" % i, b"1", 0) for i in range(30))])
    changelog.compact(TOPOLOGY.stores["a"], CompactionLimits(0, 0))

    with started(tmp_path, changelog, StoreOpener, restore_processes=1) as manager:
        wait_until(lambda: manager.offsets().get(TASKS[0]) == 33, "all is applied")
        store = manager.replicas["a", 0].store
        assert store.get(USER_TAG + b"k29") == b"1"
        assert store.get(USER_TAG + b"deleted") is None


def test_a_replica_whose_logs_end_was_not_known_when_it_was_opened_is_restored_in_bulk_later(
    tmp_path, changelog, monkeypatch
):
    monkeypatch.setattr("forebay_worker.tasks.manager.BULK_RESTORE_RECORDS", 20)
    monkeypatch.setattr("forebay_worker.tasks.applier.MAX_RECORDS_PER_POLL", 1)
    append(changelog, 0, 2, [(b"k%d" % i, b"1", 0) for i in range(5_000)])
    with monkeypatch.context() as away:
        away.setattr(SqliteChangelog, "end_offsets", lambda *_: {})
        with started(tmp_path, changelog, StoreOpener, restore_processes=1) as manager:
            manager.hold(TASKS[:1], ())
            wait_until(lambda: manager.bulk_restore.restorations, "a restore in bulk")
            wait_until(lambda: manager.offsets().get(TASKS[0]) == 5_001, "all is applied")
            assert manager.replicas["a", 0].store.get(USER_TAG + b"k4999") == b"1"


def test_a_replica_far_behind_in_a_log_that_was_replaced_is_rebuilt(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.manager.BULK_RESTORE_RECORDS", 20)
    fill(tmp_path, changelog)
    changelog.reset(TOPOLOGY.stores["a"])
    rows = [(b"k%d" % i, b"2", 0) for i in range(30)]
    sqlite_partition.append_batch(
        changelog.path(TopicPartition(TOPIC, 0)), rows, writer="a", query_id="q", batch_id=2, write_name="a"
    )

    with started(tmp_path, changelog, StoreOpener, restore_processes=1) as manager:
        wait_until(lambda: manager.offsets().get(TASKS[0]) == 30, "all is applied")
        store = manager.replicas["a", 0].store
        assert (store.get(USER_TAG + b"k29"), store.get(USER_TAG + b"k")) == (b"2", None)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unforeseen")])
def test_a_rebuild_that_could_not_begin_is_tried_again_until_it_can(tmp_path, changelog, monkeypatch, error):
    monkeypatch.setattr("forebay_worker.tasks.manager._REOPEN_MS", 50.0)
    refusals = [error, error]

    class Refusing(StoreOpener):
        def open(self, task, spec) -> OpenedStore:
            if task == TASKS[0] and resetting and refusals:
                raise refusals.pop()
            return super().open(task, spec)

    resetting: list[bool] = []
    with started(tmp_path, changelog, Refusing) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        resetting.append(True)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 2, [(b"k", b"new", 0)])
        wait_until(lambda: not refusals and manager.replicas["a", 0].complete, "the rebuild")
        assert manager.replicas["a", 0].store.get(USER_TAG + b"k") == b"new"
        assert (manager.replicas["a", 0].failure, manager.obstacle) == (None, None)


def test_a_store_that_is_still_read_is_rebuilt_once_that_read_is_over(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.manager._REOPEN_MS", 50.0)
    with started(tmp_path, changelog, StoreOpener) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        replica = manager.replicas["a", 0]
        read = replica.store.scan(USER_TAG, b"\x02")
        next(read)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 2, [(b"k", b"new", 0)])
        wait_until(lambda: replica.diverged, "the reset")
        del read
        wait_until(lambda: replica.complete, "the rebuild")
        assert replica.store.get(USER_TAG + b"k") == b"new"


def test_a_store_that_was_opened_while_nobody_knew_its_log_is_not_taken_for_that_of_another(
    tmp_path, changelog, monkeypatch
):
    with monkeypatch.context() as unreachable:

        def refuse(*_: object) -> str:
            raise ChangelogUnreachable("away")

        unreachable.setattr(SqliteChangelog, "identity", refuse)
        fill(tmp_path, changelog)
    changelog.reset(TOPOLOGY.stores["a"])
    for partition in range(PARTITIONS):
        append(changelog, partition, 2, [(b"other%d" % i, b"2", 0) for i in range(30)])
    with started(tmp_path, changelog, StoreOpener) as manager:
        wait_until(lambda: set(manager.offsets().values()) == {30}, "all is applied")
        for partition in range(PARTITIONS):
            assert manager.replicas["a", partition].store.get(USER_TAG + b"k") is None


def test_a_role_that_was_lost_while_stores_were_opened_does_not_come_back(tmp_path, changelog):
    with started(tmp_path, changelog, SlowOpener) as manager:
        manager.hold(TASKS[:1], ())
        SlowOpener.let.release()
        wait_until(lambda: manager.replicas, "the first store")
        manager.hold(TASKS[:2], ())
        # The second store is being opened meanwhile.
        manager.hold((), TASKS[:2])
        SlowOpener.let.release(PARTITIONS)
        wait_until(lambda: manager.settled, "the second store")
        assert {replica.designated_boot_ms for replica in manager.replicas.values()} == {None}


def test_what_was_released_is_deleted_though_windows_cannot_be(tmp_path, changelog, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Expiry, "sweep", refuse)
    with started(tmp_path, changelog, StoreOpener, cleanup_ms=0) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        (released,) = tmp_path.glob(f"state/**/{TASKS[0]}/rocksdb/a")
        manager.hold(TASKS[1:], ())
        wait_until(lambda: not released.exists(), "the deletion")


def append(changelog: SqliteChangelog, partition: int, batch: int, rows: list[tuple[bytes, bytes, int]]) -> None:
    path = changelog.path(TopicPartition(TOPIC, partition))
    sqlite_partition.append_batch(path, rows, writer="a", query_id="q", batch_id=batch, write_name="a")


class Choosy(StoreOpener):
    """Cannot open the first stores, each for a reason of its own."""

    def open(self, task, spec) -> OpenedStore:
        if task.partition < 3:
            raise ValueError("damaged")
        return super().open(task, spec)


def test_a_store_that_cannot_be_opened_keeps_no_other_closed(tmp_path, changelog):
    with started(tmp_path, changelog, Choosy) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: held(manager) == set(TASKS[3:]), "all others are open")
        assert not manager.settled


def test_what_was_on_disk_and_never_opened_is_deleted_once_it_is_released_for_long(tmp_path, changelog):
    fill(tmp_path, changelog)
    with started(tmp_path, changelog, SlowOpener, cleanup_ms=50) as manager:
        # Assigned elsewhere before a single store was open.
        manager.hold(TASKS[:1], ())
        SlowOpener.let.release(PARTITIONS)
        left = tmp_path / "state" / "app"
        wait_until(lambda: len(list(left.glob("0_*/rocksdb/*"))) == 1, "the others are deleted")


def test_a_task_on_disk_that_lacks_a_store_is_told_of_only_while_it_is_held(tmp_path, changelog):
    fill(tmp_path, changelog)
    two = parse_topology(
        {
            "application_id": "app",
            "subtopology": [
                {
                    "name": "s",
                    "partitions": PARTITIONS,
                    "store": [{"name": "a", "partitioner": "unknown"}, {"name": "b", "partitioner": "unknown"}],
                }
            ],
        }
    )
    changelog.ensure_topic(two.stores["b"].topic, PARTITIONS)
    directory = StateDirectory(tmp_path / "state", "app")
    opener = SlowOpener(directory, changelog, MEMORY, 300_000)
    manager = TaskManager(two, changelog, directory, opener, TaskPolicy(10, 0, 0, 600_000))
    manager.start()
    try:
        assert manager.offsets() == {}
        SlowOpener.let.release(2 * PARTITIONS)
        wait_until(lambda: manager.offsets() == offsets(), "all stores open")
    finally:
        manager.stop()
        directory.close()


def test_however_many_wait_for_a_restore_their_ends_are_asked_for_in_turn_and_seldom(
    tmp_path, changelog, monkeypatch
):
    asked: list[list[TopicPartition]] = []
    own = changelog.end_offsets

    def end_offsets(wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(list(wanted))
        return own(wanted)

    monkeypatch.setattr("forebay_worker.tasks.manager._ENDS_AT_ONCE", 4)
    with started(tmp_path, changelog, StoreOpener) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        waiting = [Restoration(replica, n, 0.0) for n, replica in enumerate(manager.replicas.values())]
        monkeypatch.setattr(changelog, "end_offsets", end_offsets)
        monkeypatch.setattr(
            manager.bulk_restore, "restorations", {one.replica.topic_partition: one for one in waiting}
        )
        wait_until(lambda: len({tp for look in asked for tp in look}) == PARTITIONS, "every end")
    assert max(map(len, asked)) <= 4


def test_a_sweep_over_many_stores_ends_in_time_and_goes_on_where_it_ended(tmp_path, changelog, monkeypatch):
    swept: list[TaskId] = []

    def sweep(self: Expiry, replica: Replica) -> int:
        time.sleep(0.02)
        swept.append(replica.task)
        return 0

    with started(tmp_path, changelog, StoreOpener) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        monkeypatch.setattr(Expiry, "sweep", sweep)
        wait_until(lambda: len(swept) >= 2 * PARTITIONS, "two rounds")
        monkeypatch.undo()
    assert Counter(swept[: 2 * PARTITIONS]) == Counter(2 * TASKS)


def test_a_store_that_cannot_be_closed_is_rebuilt_all_the_same(tmp_path, changelog, monkeypatch):
    with started(tmp_path, changelog, StoreOpener) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: manager.offsets() == offsets(), "all is applied")
        replica = manager.replicas["a", 0]
        close = replica.store.close

        def refuse() -> None:
            close()
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(replica.store, "close", refuse)
        changelog.reset(TOPOLOGY.stores["a"])
        append(changelog, 0, 1, [(b"new", b"1", 0)])
        wait_until(lambda: replica.store.get(USER_TAG + b"new") == b"1" and not replica.diverged, "the rebuild")
