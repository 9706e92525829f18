import time
from collections import Counter

from forebay.tasks import TaskId
from forebay_worker.state.opening import StoreOpener
from forebay_worker.tasks.expiry import Expiry
from forebay_worker.tasks.replica import Replica
from tests.cluster import wait_until
from tests.service.tasks.held_tasks import PARTITIONS, TASKS, offsets, started


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
