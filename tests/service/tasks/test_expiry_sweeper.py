import time
from collections import Counter

from forebay.state_store import StoreCorrupted
from forebay.task_ids import TaskId
from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.expiry import Sweeper
from forebay_worker.tasks.replica import Replica
from tests.support.cluster import wait_until
from tests.support.held_tasks import PARTITIONS, TASKS, TOPOLOGY, applied, offsets, started


def test_sweep_over_many_stores_ends_in_time_and_resumes(tmp_path, changelog, monkeypatch):
    swept: list[TaskId] = []

    def sweep(replica: Replica) -> int:
        time.sleep(0.02)
        swept.append(replica.task)
        return 0

    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        monkeypatch.setattr("forebay_worker.tasks.expiry.sweep", sweep)
        wait_until(lambda: len(swept) >= 2 * PARTITIONS, "two rounds")
        monkeypatch.undo()
    assert Counter(swept[: 2 * PARTITIONS]) == Counter(2 * TASKS)


def test_a_store_that_a_sweep_finds_lost_is_rebuilt(monkeypatch):
    def refuse(*_: object) -> int:
        raise StoreCorrupted("its directory is gone")

    monkeypatch.setattr("forebay_worker.tasks.expiry.sweep", refuse)
    replica, lost = Replica.opened(TOPOLOGY.stores["a"], TASKS[0], MemoryStore("a")), []
    Sweeper(lambda *found: lost.append(found), lambda _: None).sweep_some([replica])
    [(damaged, error)] = lost
    assert (damaged, str(error)) == (replica, "its directory is gone")
