"""The life cycle of replicas: which phases follow which, and whose thread changes a replica."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import defaultdict
from typing import Any

import pytest

from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.phases import PhaseError, ReplicaPhase, check_transition
from forebay_worker.tasks.replica import Replica
from tests.support.cluster import wait_until
from tests.support.held_tasks import (
    TASKS,
    TOPOLOGY,
    append,
    applied,
    make_changelog,
    offsets,
    started,
    value_in,
)

P = ReplicaPhase
NEXT = {
    (P.CREATED, P.FOLLOWING),
    (P.FOLLOWING, P.RESTORING),
    (P.FOLLOWING, P.SUSPENDED),
    (P.RESTORING, P.FOLLOWING),
    (P.SUSPENDED, P.FOLLOWING),
    (P.SUSPENDED, P.RESTORING),
    (P.REBUILDING, P.CREATED),
}
OF_READERS = {"designated_boot_ms", "admitted"}
"""What other threads may set: the role, lost in the thread that learns of it, and what reads keep."""


@pytest.mark.parametrize(("before", "after"), [*itertools.product(P, P)])
def test_a_phase_follows_only_those_of_the_diagram(before, after):
    ends = after in (P.REBUILDING, P.CLOSED) and before is not P.CLOSED
    if before is after or ends or (before, after) in NEXT:
        check_transition(before, after)
    else:
        with pytest.raises(PhaseError, match=f"{before.value} cannot become {after.value}"):
            check_transition(before, after)


def test_predecessor_has_its_replicas_role():
    """What is served during a rebuild is active or standby as its replica is."""
    replica = Replica.opened(TOPOLOGY.stores["a"], TASKS[0], MemoryStore("a"))
    former = dataclasses.replace(replica)
    # By another thread, once the copy was made.
    replica.designate(5.0)
    replica.serve_predecessor(former)
    assert former.designated_boot_ms == 5.0
    replica.designate(None)
    assert former.designated_boot_ms is None


def test_one_thread_changes_a_replica_through_all_of_its_life(tmp_path, monkeypatch):
    """Opened, restored in bulk, followed, damaged, rebuilt, released."""
    monkeypatch.setattr("forebay_worker.tasks.recovery.BULK_RESTORE_RECORDS", 1)
    writers: dict[str, set[str]] = defaultdict(set)
    phases: list[ReplicaPhase] = []

    class Watched(Replica):
        def __setattr__(self, name: str, value: Any) -> None:
            writers[name].add(threading.current_thread().name)
            if name == "phase" and self.task.partition == 3 and phases[-1:] != [value]:
                phases.append(value)
            super().__setattr__(name, value)

    monkeypatch.setattr("forebay_worker.tasks.manager.Replica", Watched)
    changelog = make_changelog(tmp_path)
    with started(tmp_path, changelog, StoreFactory, restore_processes=1) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")
        replica = manager.replicas["a", 3]
        wait_until(lambda: replica.phase is P.FOLLOWING, "the end of the restore")
        replica.on_corrupted(replica, replica.view.store, "a block is damaged")
        wait_until(lambda: P.REBUILDING in phases, "the rebuild")
        wait_until(lambda: replica.view.restored and replica.phase is P.FOLLOWING, "the end of the rebuild")
        append(changelog, 3, 2, [(b"later", b"1", 0)])
        wait_until(lambda: value_in(replica.view.store, b"later") == b"1", "the next record")
        manager.hold((), ())
        wait_until(lambda: not manager.replicas, "the release")
    assert phases == [
        P.CREATED,
        *(P.FOLLOWING, P.RESTORING, P.FOLLOWING),
        *(P.REBUILDING, P.CREATED, P.FOLLOWING, P.RESTORING, P.FOLLOWING),
        P.CLOSED,
    ]
    foreign = {name for name, threads in writers.items() if threads != {"forebay-applier"}} - OF_READERS
    assert not foreign
    assert TOPOLOGY.stores["a"].partitions > 3
