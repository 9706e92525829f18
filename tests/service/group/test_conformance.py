"""What a membership promises, whatever carries it: each backend's own rounds, in virtual time.

A backend takes part with a ``SimulatedGroup``: SQLite with its database, Kafka with a simulated coordinator. What
a real broker does is in ``kafka/test_protocol.py``.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest

from forebay.streams_metadata import NO_GENERATION, HostInfo
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.messages import SubscriptionInfo
from tests.simulation.kafka_group import KafkaGroup
from tests.simulation.promises import GroupJudge
from tests.simulation.run import SimulatedGroup
from tests.simulation.scheduler import Scheduler
from tests.simulation.sqlite_group import SqliteGroup
from tests.simulation.worker import TOPOLOGY, Ends, SimulatedWorker

SESSION_MS, REBUILD_MS, INITIAL_MS = 6_000, 60_000, 3_000
TIMES = GroupTimeouts(SESSION_MS, REBUILD_MS, INITIAL_MS, probing_rebalance_interval_ms=2_000)
ROUND_MS = 2_500
"""In which every member hears of a change: a few rounds over SQLite, a rebalance over Kafka."""
OTHER_TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "o", "partitions": 2, "store": [{"name": "o"}]}]}
)

WIDE_TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "w", "partitions": 50, "store": [{"name": "w"}]}]}
)


@dataclass
class Group:
    """Workers of a group; every step is judged."""

    carrier: SimulatedGroup
    scheduler: Scheduler
    judge: GroupJudge
    workers: list[SimulatedWorker] = field(default_factory=list)

    def start(
        self,
        name: str,
        *,
        on_disk: SimulatedWorker | None = None,
        topology: Topology = TOPOLOGY,
        host: HostInfo | None = None,
        incarnation: int = 1,
        rack: str | None = None,
    ) -> SimulatedWorker:
        worker = SimulatedWorker(name, incarnation, self.scheduler, self.judge, lambda: 100.0, topology)
        worker.host, worker.rack = host or worker.host, rack
        if on_disk is not None:
            worker.offsets, worker.incarnation = dict(on_disk.offsets), on_disk.incarnation + 1
        self.workers.append(worker)
        self.carrier.join(worker, Ends())
        return worker

    def leave(self, worker: SimulatedWorker) -> None:
        self.carrier.leave(worker)
        self.judge.on_leave(worker)
        self.workers.remove(worker)

    def settled(self, *names: str) -> list[SimulatedWorker]:
        """Workers that have shared out the tasks among them and caught up."""
        return self.settle([self.start(name) for name in names])

    def settle(self, workers: list[SimulatedWorker]) -> list[SimulatedWorker]:
        """Wait until workers have shared out the tasks among them and caught up."""
        self.wait(lambda: served_by(*workers), INITIAL_MS + 3 * SESSION_MS)
        # Until the leader knows that they have caught up.
        self.pass_time(SESSION_MS)
        for worker in workers:
            worker.built.clear()
        return workers

    def wait(self, condition: Callable[[], bool], within_ms: float) -> None:
        assert self.scheduler.run_until(condition, within_ms)

    def pass_time(self, duration_ms: float) -> None:
        self.scheduler.run_for(duration_ms)


@pytest.fixture(params=["sqlite", "kafka"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    scheduler, random = Scheduler(), Random(1)
    carrier = (
        SqliteGroup(scheduler, random, TIMES, tmp_path / "group.db")
        if request.param == "sqlite"
        else KafkaGroup(scheduler, random, TIMES)
    )
    group = Group(carrier, scheduler, GroupJudge(scheduler, TIMES))
    scheduler.on_step = lambda: group.judge.check(group.workers)
    yield group
    carrier.close()


def served_by(*workers: SimulatedWorker) -> bool:
    """Whether each task is active once, and standby on another worker where there is one."""
    tasks = sorted(workers[0].topology.tasks)
    active = sorted(task for worker in workers for task in worker.active)
    standby = sorted(task for worker in workers for task in worker.standby)
    return active == tasks and standby == (tasks if len(workers) > 1 else [])


def all_active(*workers: SimulatedWorker) -> bool:
    return sorted(task for worker in workers for task in worker.active) == sorted(TOPOLOGY.tasks)


def roles(*workers: SimulatedWorker) -> list[tuple[frozenset, set]]:
    return [(worker.active, worker.standby) for worker in workers]


def leader_of(*workers: SimulatedWorker) -> SimulatedWorker:
    [leader] = [worker for worker in workers if worker.membership.member.leads]
    return leader


def test_the_first_assignment_waits_for_the_others(group):
    a, b = group.start("a"), group.start("b")
    group.pass_time(INITIAL_MS - 1)
    assert (a.membership.state, a.generation) == ("joining", NO_GENERATION)
    group.wait(lambda: served_by(a, b), 2 * SESSION_MS)
    assert [len(worker.built) for worker in (a, b)] == [4, 4]


def test_a_settled_group_gives_out_nothing_more(group):
    workers = group.settled("a", "b", "c")
    generation = workers[0].generation
    group.pass_time(2 * REBUILD_MS)
    assert {worker.generation for worker in workers} == {generation}


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_leavers_actives_move_at_once_and_return_with_it(group, leads):
    """Its place is kept for the rebuild delay."""
    workers = group.settled("a", "b", "c")
    before = roles(*workers)
    leaver = next(worker for worker in workers if (worker is leader_of(*workers)) == leads)
    rest = [worker for worker in workers if worker is not leaver]
    group.leave(leaver)
    assert leaver.active == frozenset()
    group.wait(lambda: all_active(*rest), ROUND_MS)
    group.pass_time(REBUILD_MS / 2)
    back = group.start(leaver.name, on_disk=leaver)
    workers[workers.index(leaver)] = back
    group.wait(lambda: roles(*workers) == before, 2 * SESSION_MS)
    assert [worker.built for worker in workers] == [set(), set(), set()]


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
@pytest.mark.parametrize("by", ["rack", "machine"])
def test_absence_in_uneven_racks_rebuilds_nothing(group, leads, by):
    """Three workers are in one rack, or on one machine of the only rack. Who leads next still knows of which."""
    racks = {"a": "left", "b": "left", "c": "right", "d": "left"}
    workers = [
        group.start(name, topology=WIDE_TOPOLOGY, rack=rack)
        if by == "rack"
        else group.start(name, topology=WIDE_TOPOLOGY, rack="zone", host=HostInfo(rack, ord(name)))
        for name, rack in racks.items()
    ]
    group.settle(workers)
    group.pass_time(REBUILD_MS)
    leader = leader_of(*workers)
    gone = (
        leader
        if leads
        else next(worker for worker in workers[::-1] if worker is not leader and worker.name != "c")
    )
    assert gone.name != "c"
    rest = [worker for worker in workers if worker is not gone]
    held = [set(worker.offsets) for worker in rest]
    for worker in rest:
        worker.built.clear()
    group.leave(gone)
    group.pass_time(REBUILD_MS - SESSION_MS)
    assert [worker.built for worker in rest] == [set(), set(), set()]
    assert [set(worker.offsets) for worker in rest] == held


def test_a_change_of_leaders_loses_no_absence(group):
    workers = group.settled("a", "b", "c", "d")
    leader = leader_of(*workers)
    gone = next(worker for worker in workers if not worker.offsets.keys() & leader.offsets.keys())
    rest = [worker for worker in workers if worker not in (leader, gone)]
    group.leave(gone)
    group.pass_time(REBUILD_MS / 2)
    group.leave(leader)
    group.pass_time(REBUILD_MS / 2 - SESSION_MS)
    assert [worker.built for worker in rest] == [set(), set()]
    group.pass_time(REBUILD_MS + SESSION_MS)
    assert served_by(*rest)


def test_a_lost_standby_is_built_after_the_delay_and_not_before(group):
    a, b, c = group.settled("a", "b", "c")
    group.leave(c)
    group.pass_time(REBUILD_MS - 1)
    assert a.built | b.built == set()
    group.wait(lambda: served_by(a, b), 2 * SESSION_MS)
    assert a.built | b.built != set()


def test_stopped_member_returns_only_with_the_newest_assignment(group):
    """Until then it is active for nothing."""
    workers = group.settled("a", "b", "c")
    before = roles(*workers)
    stopped = leader_of(*workers)
    rest = [worker for worker in workers if worker is not stopped]
    stopped.stop()
    group.wait(lambda: all_active(*rest), 3 * SESSION_MS)
    assert stopped.active == frozenset()
    known = rest[0].generation
    stopped.resume()
    group.wait(lambda: bool(stopped.active), 2 * SESSION_MS)
    assert stopped.generation >= known
    group.wait(lambda: roles(*workers) == before, 2 * SESSION_MS)
    assert [worker.built for worker in workers] == [set(), set(), set()]


def test_a_group_that_comes_back_as_a_whole_is_as_before(group):
    workers = group.settled("a", "b", "c")
    before, known = roles(*workers), workers[0].generation
    for worker in workers:
        group.leave(worker)
    back = [group.start(worker.name, on_disk=worker) for worker in workers]
    group.wait(lambda: roles(*back) == before, INITIAL_MS + 2 * SESSION_MS)
    assert [worker.built for worker in back] == [set(), set(), set()]
    assert back[0].generation >= known


def test_a_misconfigured_member_does_not_lead_the_rest(group):
    """Though it was there first, and leads for as long as it is alone."""
    other = group.start("0", topology=OTHER_TOPOLOGY)
    group.pass_time(1_000)
    workers = group.settled("a", "b", "c")
    assert other.membership.state == "other-topology"
    assert other.active == frozenset()
    leader = leader_of(*workers)
    group.leave(leader)
    group.wait(lambda: all_active(*[worker for worker in workers if worker is not leader]), 3 * SESSION_MS)


def test_newer_members_version_does_not_stop_the_leader(group, monkeypatch, caplog):
    """Each leader warns of it once."""
    a, b = group.settled("a", "b")
    encode = SubscriptionInfo.encode
    newer = zlib.compress(msgspec.msgpack.encode({"v": 99, "least": 99}))
    monkeypatch.setattr(SubscriptionInfo, "encode", lambda mine: newer if mine.process_id == "n" else encode(mine))
    group.start("n")

    def warnings() -> int:
        return len([message for message in caplog.messages if "is given no tasks" in message])

    group.pass_time(REBUILD_MS)
    assert warnings() == 1
    group.leave(leader_of(a, b))
    [rest] = {a, b} & set(group.workers)
    group.wait(lambda: all_active(rest), ROUND_MS)
    assert warnings() == 2, "one by each leader"
    assert "n" not in rest.info.hosts


def test_failed_assignment_is_retried_without_a_lease(group):
    a, b = group.settled("a", "b")
    b.refuses = True
    group.leave(a)
    group.pass_time(ROUND_MS)
    assert b.active == frozenset()
    assert b.membership.lease_until_boot_ms == 0
    b.refuses = False
    group.wait(lambda: all_active(b), 2 * SESSION_MS)


def test_second_member_of_an_address_gets_no_tasks(group, caplog):
    """It is reported once."""
    [first] = group.settled("a")
    second = group.start("b", host=first.host, incarnation=2)
    group.pass_time(REBUILD_MS)
    assert served_by(first)
    assert second.offsets == {}
    assert len([message for message in caplog.messages if "as the worker a does" in message]) == 1
