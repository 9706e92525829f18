"""The tasks that a worker holds, and its report of its disk, from start to stop."""

import errno
import logging
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import OffsetCache
from forebay_worker.state.store_factory import OpenedStore, StoreFactory
from forebay_worker.tasks.task_cleanup import TaskCleanup
from tests.support.cluster import wait_until
from tests.support.held_tasks import (
    PARTITIONS,
    TASKS,
    TOPOLOGY,
    TWO_STORES,
    SlowOpener,
    append,
    applied,
    fill,
    held,
    offsets,
    started,
    unexpected,
)


def test_offsets_on_disk_are_known_before_opening(tmp_path, changelog):
    fill(tmp_path, changelog)

    with started(tmp_path, changelog, SlowOpener) as manager:
        assert applied(manager) == offsets()
        # What they are worth is known once they were compared with their logs.
        assert not any(copy.checked for copy in manager.copies(unexpected).values())
        assert not manager.matches_assignment
        SlowOpener.let_all()
        wait_until(lambda: manager.matches_assignment, "all stores open")
        wait_until(lambda: applied(manager) == offsets() and manager.checked, "all logs followed")
        assert all(copy.checked for copy in manager.copies(lambda replica: 0).values())


def test_leftover_restore_files_are_deleted_at_the_start(tmp_path, changelog):
    """No store has been opened yet."""
    left = tmp_path / "state" / "app" / ".restore" / "1-0.sst"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of a file")
    with started(tmp_path, changelog, SlowOpener):
        assert not left.exists()


def test_newly_active_task_is_opened_next(tmp_path, changelog, monkeypatch):
    fill(tmp_path, changelog)
    monkeypatch.setattr("forebay_worker.tasks.manager._OPENING_TURN_MS", 0.001)

    with started(tmp_path, changelog, SlowOpener) as manager:
        SlowOpener.let.release()
        wait_until(lambda: held(manager) == {TASKS[0]}, "the first is open")
        manager.hold([TASKS[4]], [task for task in TASKS if task != TASKS[4]])
        SlowOpener.let.release(2)
        wait_until(lambda: len(held(manager)) == 3, "three are open")
        assert TASKS[4] in held(manager)
        SlowOpener.let_all()
        wait_until(lambda: manager.matches_assignment, "all stores open")


def test_opened_store_is_followed_while_others_open(tmp_path, changelog, monkeypatch):
    fill(tmp_path, changelog)
    monkeypatch.setattr("forebay_worker.tasks.manager._OPENING_TURN_MS", 0.001)

    with started(tmp_path, changelog, SlowOpener) as manager:
        SlowOpener.let.release()
        wait_until(lambda: held(manager) == {TASKS[0]}, "the first is open")
        SlowOpener.let.release()
        wait_until(lambda: manager.replicas["a", 0].view.progress.end_offset == 1, "its log is followed")
        assert not manager.matches_assignment
        SlowOpener.let_all()
        wait_until(lambda: manager.matches_assignment, "all stores open")


def test_role_lost_during_opening_does_not_return(tmp_path, changelog):
    with started(tmp_path, changelog, SlowOpener) as manager:
        manager.hold(TASKS[:1], ())
        SlowOpener.let.release()
        wait_until(lambda: manager.replicas, "the first store")
        manager.hold(TASKS[:2], ())
        # The second store is being opened meanwhile.
        manager.hold((), TASKS[:2])
        SlowOpener.let_all()
        wait_until(lambda: manager.matches_assignment, "the second store")
        assert {replica.designated_boot_ms for replica in manager.replicas.values()} == {None}


def test_what_was_released_is_deleted_though_windows_cannot_be(tmp_path, changelog, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("forebay_worker.tasks.expiry.sweep", refuse)
    with started(tmp_path, changelog, StoreFactory, cleanup_ms=0) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        (released,) = tmp_path.glob(f"state/**/{TASKS[0]}/rocksdb/a")
        manager.hold(TASKS[1:], ())
        wait_until(lambda: not released.exists(), "the deletion")


class Choosy(StoreFactory):
    """Cannot open the first stores, each for a reason of its own."""

    def open(self, task, spec) -> OpenedStore:
        if task.partition < 3:
            raise ValueError("damaged")
        return super().open(task, spec)


def test_a_store_that_cannot_be_opened_keeps_no_other_closed(tmp_path, changelog):
    with started(tmp_path, changelog, Choosy) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: held(manager) == set(TASKS[3:]), "all others are open")
        assert not manager.matches_assignment


def test_locked_store_is_reported_and_blocks_no_other(tmp_path, changelog, monkeypatch):
    """Another process has it open."""
    monkeypatch.setattr("forebay_worker.tasks.manager._REOPEN_MS", 50.0)
    fill(tmp_path, changelog)
    locked = tmp_path / "state" / "app" / str(TASKS[1])
    code = "import sys; from rocksdict import *; db = Rdict(sys.argv[1], Options(raw_mode=True)); print(); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, locked / "rocksdb" / "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        holder.stdout.readline()
        with started(tmp_path, changelog, StoreFactory) as manager:
            wait_until(lambda: held(manager) == set(TASKS) - {TASKS[1]}, "all others are open")
            reported = (
                f"The state directory {locked} cannot be opened: Resource temporarily unavailable. End the process"
            )
            assert manager.storage_fault.startswith(reported)
            # Of this task, another worker's copy counts.
            assert (applied(manager).keys(), manager.machine_storage_fault) == (set(TASKS) - {TASKS[1]}, None)
            holder.kill()
            wait_until(lambda: manager.matches_assignment, "all are open")
            assert manager.storage_fault is None


def test_released_state_on_disk_is_deleted_unopened(tmp_path, changelog, caplog):
    caplog.set_level(logging.INFO)
    fill(tmp_path, changelog)
    with started(tmp_path, changelog, SlowOpener, cleanup_ms=50) as manager:
        # Assigned elsewhere before a single store was open.
        manager.hold(TASKS[:1], ())
        SlowOpener.let_all()
        left = tmp_path / "state" / "app"
        wait_until(lambda: len(list(left.glob("0_*/rocksdb/*"))) == 1, "the others are deleted")
        # Of what is gone no later assignment tells again.
        manager.hold(TASKS[:2], ())
        wait_until(lambda: held(manager) == set(TASKS[:2]), "two are held")
        manager.hold(TASKS[:1], ())
        wait_until(lambda: caplog.text.count(f"of task {TASKS[1]}, released") == 2, "the second's deletion")
        assert caplog.text.count(f"of task {TASKS[2]}, released") == 1
        assert [path.name for path in left.glob("0_*")] == [str(TASKS[0])]


def test_task_lacking_a_store_has_offsets_once_held(tmp_path, changelog):
    """Its offsets on disk are not reported before, since a store is missing."""
    fill(tmp_path, changelog)
    changelog.ensure_topic(TWO_STORES.stores["b"].topic, PARTITIONS)
    with started(tmp_path, changelog, SlowOpener, topology=TWO_STORES) as manager:
        assert applied(manager) == {}
        SlowOpener.let_all()
        wait_until(lambda: applied(manager) == offsets(), "all stores open")


def test_task_neither_opened_nor_closed_is_retried(tmp_path, changelog, monkeypatch):
    monkeypatch.setattr("forebay_worker.tasks.manager._REOPEN_MS", 50.0)
    refusals = [OSError(errno.ENOSPC, "No space left on device")] * 4

    class Refusing(StoreFactory):
        def open(self, task, spec) -> OpenedStore:
            if spec.name == "b" and refusals:
                raise refusals.pop()
            opened = super().open(task, spec)
            close = opened.store.close

            def refuse() -> None:
                close()
                if refusals:
                    raise refusals.pop()

            monkeypatch.setattr(opened.store, "close", refuse)
            return opened

    changelog.ensure_topic(TWO_STORES.stores["b"].topic, PARTITIONS)
    with started(tmp_path, changelog, Refusing, topology=TWO_STORES) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.matches_assignment and manager.storage_fault is None, "the task being open")
        assert refusals == []


def test_unopenable_task_assigned_elsewhere_is_deleted(tmp_path, changelog):
    fill(tmp_path, changelog)
    futures = threading.Event()

    class Refusing(StoreFactory):
        def open(self, task, spec) -> OpenedStore:
            if task == TASKS[1]:
                futures.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().open(task, spec)

    with started(tmp_path, changelog, Refusing, cleanup_ms=50) as manager:
        manager.hold(TASKS[:2], ())
        assert futures.wait(20)
        manager.hold(TASKS[:1], ())
        left = tmp_path / "state" / "app"
        wait_until(lambda: [path.name for path in left.glob("0_*")] == [str(TASKS[0])], "the others' deletion")


def test_what_could_not_be_deleted_is_deleted_later(tmp_path, changelog, monkeypatch, caplog):
    fill(tmp_path, changelog)
    refusals, delete = [OSError(errno.EIO, "Input/output error")], StateDirectory.delete_store

    def refuse(*arguments) -> None:
        if refusals:
            raise refusals.pop()
        delete(*arguments)

    monkeypatch.setattr(StateDirectory, "delete_store", refuse)
    with started(tmp_path, changelog, StoreFactory, cleanup_ms=50) as manager:
        manager.hold(TASKS[:1], ())
        left = tmp_path / "state" / "app"
        wait_until(lambda: [path.name for path in left.glob("0_*")] == [str(TASKS[0])], "the others' deletion")
    assert "could not be deleted, and will be later" in caplog.text


def test_cleanup_delay_counts_from_the_last_assignment(tmp_path, monkeypatch):
    now_ms = [0.0]
    monkeypatch.setattr("forebay_worker.tasks.task_cleanup.boot_ms", lambda: now_ms[0])
    directory = StateDirectory(tmp_path / "state", "app")
    left = directory.store_path(TASKS[0], "a")
    left.mkdir(parents=True)
    released = TaskCleanup(directory, TOPOLOGY, OffsetCache(), 600_000)
    released.add(TASKS[0])
    # Wanted for a while, and not opened.
    for now_ms[0], wanted, kept in ((590_000, TASKS[:1], True), (1_180_000, (), True), (1_190_001, (), False)):
        released.delete_due(wanted)
        assert left.exists() is kept
    directory.close()


def test_cleanup_delay_counts_anew_from_a_start(tmp_path, changelog, monkeypatch):
    now_ms = [1_000_000.0]
    monkeypatch.setattr("forebay_worker.tasks.task_cleanup.boot_ms", lambda: now_ms[0])
    fill(tmp_path, changelog)
    state = tmp_path / "state" / "app" / str(TASKS[0])

    def is_deleted() -> bool:
        now_ms[0] += 599_999
        return not state.exists()

    for _ in range(3):
        assert not is_deleted()
        with started(tmp_path, changelog, StoreFactory) as manager:
            manager.hold(TASKS[1:], ())
            wait_until(lambda: manager.matches_assignment, "the assignment")
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[1:], ())
        wait_until(is_deleted, "the deletion")


def test_state_held_until_the_end_is_not_deleted_at_the_start(tmp_path, changelog, monkeypatch):
    now_ms = [1_000_000.0]
    monkeypatch.setattr("forebay_worker.tasks.task_cleanup.boot_ms", lambda: now_ms[0])
    fill(tmp_path, changelog)
    now_ms[0] += 10_000_000
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.matches_assignment, "the assignment")
    # Whatever was due is deleted by then.
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: manager.matches_assignment, "the assignment")
        assert len(list((tmp_path / "state" / "app").glob("0_*"))) == PARTITIONS


def test_store_outside_the_topology_is_deleted_when_due(tmp_path, changelog, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    now_ms = [1_000_000.0]
    monkeypatch.setattr("forebay_worker.tasks.task_cleanup.boot_ms", lambda: now_ms[0])
    fill(tmp_path, changelog)
    stray = tmp_path / "state" / "app" / str(TASKS[0]) / "rocksdb" / "gone"
    stray.mkdir(parents=True)
    with started(tmp_path, changelog, StoreFactory) as manager:
        now_ms[0] += 599_999
        manager.hold(TASKS, ())
        wait_until(lambda: manager.matches_assignment, "the assignment")
        assert stray.exists()
        assert "0_0/gone does not belong to this topology: it is not opened, and deleted after" in caplog.text
        now_ms[0] += 1
        wait_until(lambda: not stray.exists(), "the deletion")
        wait_until(lambda: "0_0/gone, which the topology has had no place for" in caplog.text, "its log line")
        assert (stray.parent / "a").exists()


@pytest.mark.parametrize(("supplier", "counts"), [("rocksdb", True), ("memory", False)])
def test_released_task_keeps_its_offset_unless_in_memory(tmp_path, changelog, supplier, counts):
    [subtopology] = TOPOLOGY.subtopologies
    stores = (replace(subtopology.stores[0], supplier=supplier),)
    topology = replace(TOPOLOGY, subtopologies=(replace(subtopology, stores=stores),))
    with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
        manager.hold(TASKS[:1], ())
        wait_until(lambda: applied(manager) == {TASKS[0]: 1}, "all is applied")
        append(changelog, 0, 2, [(b"more", b"1", 0)])
        wait_until(lambda: applied(manager) == {TASKS[0]: 2}, "one more")
        manager.hold((), ())
        wait_until(lambda: not held(manager), "the release")
        assert applied(manager) == ({TASKS[0]: 2} if counts else {})
