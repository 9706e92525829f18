"""The roles of the tasks that a worker holds."""

import threading
from pathlib import Path

import pytest

from forebay.task_ids import TaskId
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.manager import TaskManager
from tests.support.cluster import wait_until
from tests.support.held_tasks import TASKS, make_changelog, started


def designations(manager: TaskManager) -> dict[TaskId, float | None]:
    return {replica.task: replica.designated_boot_ms for replica in manager.replicas.values()}


def hold_all(manager: TaskManager) -> None:
    manager.hold(TASKS, ())
    wait_until(
        lambda: len(designations(manager)) == len(TASKS) and all(designations(manager).values()), "all tasks"
    )


def test_roles_are_lost_while_the_applier_is_busy(tmp_path: Path):
    """The lease that covers the new generation is published right after."""
    with started(tmp_path, make_changelog(tmp_path), StoreFactory) as manager:
        hold_all(manager)
        busy, over = threading.Event(), threading.Event()
        manager.applier.run(lambda: (busy.set(), over.wait(20)))
        assert busy.wait(20)
        try:
            manager.hold(TASKS[:1], TASKS[1:])
            assert [task for task, since in designations(manager).items() if since is not None] == TASKS[:1]
        finally:
            over.set()


def test_lost_role_does_not_come_back_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The applier was about to give it by the former assignment."""
    with started(tmp_path, make_changelog(tmp_path), StoreFactory) as manager:
        hold_all(manager)
        designate = TaskManager._designate
        there, go_on, lost = threading.Event(), threading.Event(), threading.Event()
        given_after_loss: list[bool] = []

        def designate_late(self: TaskManager, *given: object) -> None:
            late = threading.current_thread().name == "forebay-applier" and not there.is_set()
            if late:
                there.set()
                assert go_on.wait(20)
            designate(self, *given)
            if late:
                given_after_loss.append(lost.is_set())

        monkeypatch.setattr(TaskManager, "_designate", designate_late)
        manager.hold(TASKS, ())
        assert there.wait(20)
        losing = threading.Thread(target=lambda: (manager.hold((), TASKS), lost.set()))
        losing.start()
        losing.join(0.2)
        go_on.set()
        losing.join(20)
        assert given_after_loss == [False]
        assert set(designations(manager).values()) == {None}


def test_a_later_generation_does_not_begin_a_role_anew(tmp_path: Path):
    """An active that is behind stays active: it has once reached an end since it was designated."""
    with started(tmp_path, make_changelog(tmp_path), StoreFactory) as manager:
        hold_all(manager)
        before = designations(manager)
        manager.hold(TASKS, ())
        assert designations(manager) == before
