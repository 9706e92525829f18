import contextlib
import logging
import sqlite3
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from forebay.errors import ConfigurationError
from forebay.streams_metadata import NO_GENERATION, ClusterMap, Generation, HostInfo
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.election import holders
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import VERSION, AssignmentInfo, SubscriptionInfo, UnsupportedVersion
from forebay_worker.group.sqlite import lease_database
from forebay_worker.group.sqlite.membership import SqliteMembership
from tests.support.cluster import wait_until

SESSION_MS = 6_000
REBUILD_MS = 60_000
INITIAL_MS = 3_000
TICK_MS = SESSION_MS / 12
RECORDS = 10
"""In each partition of the log."""

COUNTS = {"name": "counts", "partitions": 4, "store": [{"name": "counts"}]}
REST = {"name": "rest", "partitions": 2, "store": [{"name": "numbers"}, {"name": "pairs"}]}
TOPOLOGY = parse_topology({"application_id": "app", "subtopology": [COUNTS, REST]})
OTHER_TOPOLOGY = parse_topology({"application_id": "app", "subtopology": [COUNTS]})
WIDER_TOPOLOGY = parse_topology(
    {
        "application_id": "app",
        "subtopology": [COUNTS, REST, {"name": "new", "partitions": 2, "store": [{"name": "new"}]}],
    }
)
POLICY = AssignmentPolicy(num_standby_replicas=1, acceptable_recovery_lag=RECORDS // 2, max_warmup_replicas=2)


@pytest.fixture(scope="module")
def changelog(tmp_path_factory: pytest.TempPathFactory) -> SqliteChangelog:
    """A log with records in every partition, so that a copy at offset 0 is not caught up."""
    log = SqliteChangelog(tmp_path_factory.mktemp("log"))
    rows = [(b"k%d" % i, b"1", 0) for i in range(RECORDS)]
    for spec in WIDER_TOPOLOGY.stores.values():
        log.ensure_topic(spec.topic, spec.partitions)
        for partition in range(spec.partitions):
            sqlite_batches.append_batch(
                log.path(TopicPartition(spec.topic, partition)),
                rows,
                writer="w",
                query_id="q",
                batch_id=0,
                write_name="w",
            )
    return log


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A worker as its membership sees it: it holds what it is assigned, and catches up when it is told to."""

    name: str
    membership: SqliteMembership
    topology: Topology
    clock: Clock
    offsets: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)
    unchecked: frozenset[TaskId] = frozenset()
    actives: frozenset[TaskId] = frozenset()
    built: set[TaskId] = field(default_factory=set)
    """Tasks that were begun from nothing."""
    built_as_active: set[TaskId] = field(default_factory=set)
    map: ClusterMap = field(default_factory=ClusterMap)
    info: AssignmentInfo | None = None
    incarnation: int = 1
    rack: str | None = None
    health: MemberHealth = MemberHealth.HEALTHY
    returns: bool = True

    def __post_init__(self) -> None:
        self.host = HostInfo(self.name, 1)

    def subscription(self) -> SubscriptionInfo:
        reported = self.name, self.incarnation, self.host, self.topology.fingerprint, dict(self.offsets)
        unchecked = self.unchecked & self.offsets.keys()
        return SubscriptionInfo(
            *reported, rack=self.rack, health=self.health, unchecked=unchecked, returns=self.returns
        )

    def on_assignment(self, info: AssignmentInfo) -> None:
        self.map, self.info = info.map(self.topology), info
        self.actives, standbys = info.tasks_of(self.name)
        if self.name in info.hosts:
            held = self.actives | standbys
            self.built |= held - self.offsets.keys()
            self.built_as_active |= self.actives - self.offsets.keys()
            self.offsets = {task: self.offsets.get(task, self.at(task, 0)) for task in held}

    def catch_up(self) -> None:
        self.offsets |= {task: self.at(task, RECORDS) for task in self.topology.tasks if task in self.offsets}

    def at(self, task: TaskId, position: int) -> tuple[int, ...]:
        """The same position in each of a task's stores."""
        return (position,) * len(self.topology.stores_of(task))

    @property
    def running_actives(self) -> frozenset[TaskId]:
        """What it answers for as active, its role judged by its lease."""
        return self.actives if self.clock() < self.membership.lease_until_boot_ms else frozenset()

    @property
    def standbys(self) -> set[TaskId]:
        return self.offsets.keys() - self.running_actives


@dataclass
class Group:
    """Members that tick one after another, by a clock that only the test moves."""

    path: Path
    changelog: SqliteChangelog
    clock: Clock = field(default_factory=Clock)
    nodes: list[Node] = field(default_factory=list)
    session_ms: int = SESSION_MS

    def node(
        self,
        name: str,
        topology: Topology = TOPOLOGY,
        *,
        on_disk: Node | None = None,
        policy: AssignmentPolicy = POLICY,
    ) -> Node:
        """A worker that has been given its callbacks, as by ``start``, but no thread."""
        times = GroupTimeouts(self.session_ms, REBUILD_MS, INITIAL_MS)
        leader = Leader(topology, self.changelog, policy)
        membership = SqliteMembership(self.path, leader, times, clock=self.clock)
        node = Node(name, membership, topology, self.clock)
        if on_disk is not None:
            node.offsets = dict(on_disk.offsets)
        membership._subscription = node.subscription
        membership._on_assignment = node.on_assignment
        self.nodes.append(node)
        return node

    def round(self, *nodes: Node) -> None:
        for node in nodes:
            node.membership.tick()

    def go_on(self, *nodes: Node, for_ms: float) -> None:
        """Let time pass, the members ticking; what they were assigned they catch up with."""
        until = self.clock.now + for_ms
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + self.session_ms / 12)
            self.round(*nodes)
            for node in nodes:
                node.catch_up()

    def settled(self, *names: str) -> list[Node]:
        """Members that have shared out the tasks among them and caught up."""
        nodes = [self.node(name) for name in names]
        self.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
        for node in nodes:
            node.built.clear()
            node.built_as_active.clear()
        self.assert_served_by(*nodes)
        return nodes

    def assert_served_by(self, *nodes: Node) -> None:
        """Each task is active once, and a standby on another member where there is one."""
        assert sorted(task for node in nodes for task in node.running_actives) == list(TOPOLOGY.tasks)
        expected = list(TOPOLOGY.tasks) if len(nodes) > 1 else []
        assert sorted(task for node in nodes for task in node.standbys) == expected

    def close(self) -> None:
        for node in self.nodes:
            node.membership._database.close()


@pytest.fixture
def group(tmp_path: Path, changelog: SqliteChangelog) -> Iterator[Group]:
    group = Group(tmp_path / "group.db", changelog)
    yield group
    group.close()


def remove_database(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def roles(*nodes: Node) -> list[tuple[frozenset[TaskId], set[TaskId]]]:
    return [(node.running_actives, node.standbys) for node in nodes]


def test_the_first_assignment_waits_for_the_others(group):
    a, b = group.node("a"), group.node("b")
    group.round(a, b)
    group.go_on(a, b, for_ms=INITIAL_MS - TICK_MS)
    assert (a.membership.state, a.map.generation, a.offsets) == ("joining", NO_GENERATION, {})
    group.go_on(a, b, for_ms=2 * TICK_MS)
    assert (a.membership.state, b.membership.state) == ("member", "member")
    group.assert_served_by(a, b)


def test_actives_are_shared_out_and_standbys_are_on_other_hosts(group):
    nodes = group.settled("a", "b", "c")
    assert {len(node.running_actives) for node in nodes} == {2}
    assert {len(node.standbys) for node in nodes} == {2}
    for active, standbys in nodes[0].map.by_topic_partition.values():
        assert len({active, *standbys}) == 2
    assert nodes[0].map == nodes[1].map == nodes[2].map


def test_unresponsive_members_actives_move_after_its_session(group):
    """Nothing is built before the rebuild delay."""
    a, b, silent = group.settled("a", "b", "c")
    lost = silent.running_actives
    group.go_on(a, b, for_ms=SESSION_MS + TICK_MS)
    assert silent.running_actives == frozenset()
    assert a.running_actives | b.running_actives == set(TOPOLOGY.tasks)
    assert lost <= a.running_actives | b.running_actives
    group.go_on(a, b, for_ms=REBUILD_MS - SESSION_MS)
    assert a.built | b.built == set()
    group.go_on(a, b, for_ms=SESSION_MS + 4 * TICK_MS)
    assert a.built | b.built != set()
    group.assert_served_by(a, b)


def test_a_member_that_leaves_gives_its_actives_away_at_once(group):
    a, b, leaver = group.settled("a", "b", "c")
    leaver.membership.leave()
    assert leaver.running_actives == frozenset()
    group.round(a, b, a)
    assert a.running_actives | b.running_actives == set(TOPOLOGY.tasks)
    assert a.built | b.built == set()


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_place_of_a_non_returning_member_is_given_away(group, how):
    """The member leaves or dies."""
    a, b, beside = group.settled("a", "b", "c")
    beside.returns = False
    group.go_on(a, b, beside, for_ms=2 * TICK_MS)
    if how == "leaves":
        beside.membership.leave()
    group.go_on(a, b, for_ms=(SESSION_MS if how == "dies" else 0) + 4 * TICK_MS)
    assert a.built | b.built != set()
    group.assert_served_by(a, b)


@pytest.mark.parametrize("gone", ["does not return", "evicted", "left within a round"])
def test_member_that_is_gone_for_good_gets_no_place_again(group, gone):
    """A place that it had would leave tasks without a standby for the rebuild delay."""
    a, b = group.settled("a", "b")
    leaver = group.node("c")
    if gone == "left within a round":
        group.round(leaver)
    else:
        leaver.returns = gone != "does not return"
        group.go_on(a, b, leaver, for_ms=SESSION_MS)
        leaver.health = MemberHealth.EVICTED if gone == "evicted" else MemberHealth.HEALTHY
        group.go_on(a, b, leaver, for_ms=SESSION_MS)
    leaver.membership.leave()
    group.go_on(a, b, for_ms=SESSION_MS)
    group.assert_served_by(a, b)
    assert holders(a.info.assignment) == {"a", "b"}
    assert a.info.assignment.settled


def test_degraded_members_actives_move_before_its_place(group):
    """The disk is full, and its place moves once the member is evicted."""
    a, b, full = group.settled("a", "b", "c")
    before = roles(a, b, full)
    full.health = MemberHealth.DEGRADED
    group.go_on(a, b, full, for_ms=2 * TICK_MS)
    assert full.running_actives == frozenset()
    assert len(full.standbys) == sum(map(len, before[2]))
    group.assert_served_by(a, b, full)
    assert a.built | b.built == set()
    full.health = MemberHealth.HEALTHY
    group.go_on(a, b, full, for_ms=2 * TICK_MS)
    assert roles(a, b, full) == before
    full.health = MemberHealth.EVICTED
    group.go_on(a, b, full, for_ms=SESSION_MS)
    group.assert_served_by(a, b)
    assert full.offsets == {}
    full.health = MemberHealth.HEALTHY
    group.go_on(a, b, full, for_ms=2 * SESSION_MS)
    assert [len(held) for node in (a, b, full) for held in (node.running_actives, node.standbys)] == [2] * 6


def test_a_rolling_restart_builds_nothing(group):
    nodes = group.settled("a", "b", "c")
    before = roles(*nodes)
    for i, node in enumerate(nodes):
        node.membership.leave()
        group.go_on(*nodes[:i], *nodes[i + 1 :], for_ms=SESSION_MS)
        nodes[i] = group.node(node.name, on_disk=node)
        group.go_on(*nodes, for_ms=SESSION_MS)
    assert roles(*nodes) == before
    assert [node.built for node in nodes] == [set(), set(), set()]


def test_leader_stopped_within_its_round_changes_nothing(group, monkeypatch):
    """Its assignment is dropped, since another leader has written one."""
    leader, b, c = group.settled("a", "b", "c")
    joiner = group.node("d")
    group.round(joiner)
    written: list[Generation] = []

    def stopped(placed: list[TopicPartition]) -> dict[TopicPartition, int]:
        # The leader has read the group and is about to write; meanwhile the others go on without it.
        monkeypatch.setattr(leader.membership, "_leader", leads)
        group.go_on(b, c, joiner, for_ms=SESSION_MS + 2 * TICK_MS)
        written.append(b.map.generation)
        return group.changelog.end_offsets(placed)

    leads = leader.membership._leader
    monkeypatch.setattr(leader.membership, "_leader", replace(leads, changelog=Interrupted(stopped)))
    before = leader.map.generation
    group.round(leader)
    assert written[0] > before
    assert leader.map.generation == before
    assert leader.running_actives == frozenset()
    group.round(b, c, joiner)
    assert b.map.generation == written[0]
    # It wakes as one of the members, and the tasks are shared among all.
    group.go_on(leader, b, c, joiner, for_ms=2 * SESSION_MS)
    group.assert_served_by(leader, b, c, joiner)


@dataclass
class Interrupted:
    """A changelog whose ends take so long to read that something else happens meanwhile."""

    end_offsets: Callable[[list[TopicPartition]], dict[TopicPartition, int]]


def test_other_topologys_member_gets_no_task_and_serves_on(group, caplog):
    """It is warned of once."""
    a, b = group.settled("a", "b")
    before = roles(a, b)
    other = group.node("c", OTHER_TOPOLOGY, on_disk=b)
    held = dict(other.offsets)
    group.go_on(a, b, other, for_ms=2 * REBUILD_MS)
    assert other.membership.state == "other-topology"
    assert other.offsets == held
    assert other.running_actives == frozenset()
    assert roles(a, b) == before
    assert {metadata.host for metadata in a.map.hosts} == {a.host, b.host}
    message = [record.message for record in caplog.records if "leader has topology" in record.message]
    assert message == [
        f"the group's leader has topology {TOPOLOGY.fingerprint}, this worker {OTHER_TOPOLOGY.fingerprint}: "
        "it keeps serving what it holds. This is normal while a new topology is rolled out; otherwise "
        "restart it with the group's."
    ]


def test_roles_stay_under_a_leader_of_another_topology(group):
    other = group.node("a", OTHER_TOPOLOGY)
    group.go_on(other, for_ms=INITIAL_MS + SESSION_MS)
    assert other.running_actives == set(OTHER_TOPOLOGY.tasks)
    late = group.node("b")
    group.go_on(other, late, for_ms=SESSION_MS)
    assert late.membership.state == "other-topology"
    assert other.running_actives == set(OTHER_TOPOLOGY.tasks)


def test_other_topologys_member_does_not_lead(group):
    """The rest are led by one of their own topology when their leader leaves."""
    leader, b, c = group.settled("a", "b", "c")
    other = group.node("d", OTHER_TOPOLOGY)
    group.go_on(leader, b, c, other, for_ms=SESSION_MS)
    leader.membership.leave()
    group.go_on(other, b, c, for_ms=SESSION_MS)
    assert b.running_actives | c.running_actives == set(TOPOLOGY.tasks)
    assert (b.membership.state, other.membership.state) == ("member", "other-topology")


def test_a_group_restarted_with_another_topology_follows_it(group):
    old = group.node("a", OTHER_TOPOLOGY)
    group.go_on(old, for_ms=INITIAL_MS + SESSION_MS)
    old.membership.leave()
    new = group.node("a", on_disk=old)
    group.go_on(new, for_ms=INITIAL_MS + SESSION_MS)
    assert new.membership.state == "member"
    assert new.running_actives == set(TOPOLOGY.tasks)


@pytest.mark.parametrize("names", ["abcdef", "fedcba"])
def test_rolling_topology_change_builds_no_kept_standby(group, names):
    """Whoever of them leads, and goes last or first."""
    nodes = group.settled(*"abcdef")
    at = {node.name: node for node in nodes}
    for name in names:
        old = at[name]
        old.membership.leave()
        group.go_on(*(node for node in at.values() if node is not old), for_ms=SESSION_MS)
        at[name] = group.node(name, WIDER_TOPOLOGY, on_disk=old)
        # Longer than a member may be away: it is there, if of the next topology.
        group.go_on(*at.values(), for_ms=2 * REBUILD_MS)
    new = list(at.values())
    group.go_on(*new, for_ms=2 * REBUILD_MS)
    stay = set(TOPOLOGY.tasks)
    everyone = [*nodes, *new]
    assert [(node.built - node.built_as_active) & stay for node in everyone] == [set()] * 12
    # A task must have an active, even while all who have a copy follow the other topology: the old, then the new.
    begun = Counter(task for node in everyone for task in node.built_as_active & stay)
    assert all(times <= 2 for times in begun.values())
    assert sorted(task for node in new for task in node.running_actives) == list(WIDER_TOPOLOGY.tasks)
    assert sorted(task for node in new for task in node.standbys) == list(WIDER_TOPOLOGY.tasks)


def test_a_leader_whose_topology_most_no_longer_have_hands_over(group):
    a, b, c = group.settled("a", "b", "c")
    for old in (b, c):
        old.membership.leave()
    b, c = (group.node(old.name, WIDER_TOPOLOGY, on_disk=old) for old in (b, c))
    # Sooner than its lease as a leader would run out.
    group.go_on(a, b, c, for_ms=4 * TICK_MS)
    assert (a.membership.state, b.membership.state, c.membership.state) == ("other-topology", "member", "member")
    assert b.running_actives | c.running_actives == set(WIDER_TOPOLOGY.tasks)


def test_renumbered_tasks_keep_their_places(group):
    """A topology in another order gives its tasks other ordinals."""
    a, b = group.settled("a", "b")
    turned = parse_topology({"application_id": "app", "subtopology": [REST, COUNTS]})

    def renumbered(tasks: set[TaskId]) -> set[TaskId]:
        return {TaskId(1 - task.ordinal, task.partition) for task in tasks}

    before = [renumbered(set(node.running_actives)) for node in (a, b)]
    for node in (a, b):
        node.membership.leave()
    again = [group.node(node.name, turned, on_disk=node) for node in (a, b)]
    for node in again:
        node.offsets = {task: node.at(task, RECORDS) for task in renumbered(set(node.offsets))}
    group.go_on(*again, for_ms=INITIAL_MS + SESSION_MS)
    assert [set(node.running_actives) for node in again] == before
    assert [node.built for node in again] == [set(), set()]


@pytest.mark.parametrize("how", ["at once", "one by one"])
def test_changed_policy_holds_after_a_restart_of_all(group, how):
    nodes = [group.node(name, policy=replace(POLICY, num_standby_replicas=0)) for name in "ab"]
    group.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
    assert [node.standbys for node in nodes] == [set(), set()]
    for i, node in enumerate(nodes):
        node.membership.leave()
        if how == "one by one":
            nodes[i] = group.node(node.name, on_disk=node)
            group.go_on(*nodes, for_ms=SESSION_MS)
    if how == "at once":
        nodes = [group.node(node.name, on_disk=node) for node in nodes]
    group.go_on(*nodes, for_ms=INITIAL_MS + 2 * SESSION_MS)
    group.assert_served_by(*nodes)


def test_racks_that_are_reported_after_a_restart_count(group):
    nodes = group.settled("a", "b", "c", "d")
    for node in nodes:
        node.membership.leave()
    nodes = [group.node(node.name, on_disk=node) for node in nodes]
    for node in nodes:
        node.rack = "left" if node.name in "ab" else "right"
    group.go_on(*nodes, for_ms=INITIAL_MS + 10 * SESSION_MS)
    group.assert_served_by(*nodes)
    left = [node for node in nodes if node.rack == "left"]
    on_left = [task for node in left for task in (*node.running_actives, *node.standbys)]
    assert sorted(on_left) == list(TOPOLOGY.tasks), "one of each two replicas"


def test_later_process_of_a_process_id_replaces_the_first(group, caplog):
    """The first one gets no tasks, names the other and leaves without taking its tasks away."""
    a, b = group.settled("a", "b")
    copy = group.node("a", on_disk=a)
    copy.host, copy.incarnation = HostInfo("elsewhere", 1), 2
    group.go_on(copy, b, for_ms=TICK_MS)
    with pytest.raises(ConfigurationError, match=r"elsewhere:1 was started later.*process\.json"):
        a.membership.tick()
    group.go_on(copy, b, for_ms=2 * SESSION_MS)
    assert a.running_actives == frozenset()
    group.assert_served_by(copy, b)
    served, generation = roles(copy, b), b.map.generation
    a.membership.leave()
    group.go_on(b, copy, for_ms=2 * TICK_MS)
    assert (roles(copy, b), b.map.generation) == (served, generation), "who leaves takes the other along"


@dataclass
class SlowRound:
    """A leader's round that takes as long as its changelog; the others go on, and the leader renews its leases."""

    group: Group
    leader: Node
    others: list[Node]
    led_ms: float = 0.0
    """For how long it led within the round."""

    def run(self, monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
        """Run the round, in which time passes until a condition holds."""

        latest = self.group.clock.now + 10 * self.group.session_ms

        def end_offsets(placed: list[TopicPartition]) -> dict[TopicPartition, int]:
            while not until():
                self._step()
                assert self.group.clock.now < latest
            return self.group.changelog.end_offsets(placed)

        member = self.leader.membership
        monkeypatch.setattr(member, "_leader", replace(member._leader, changelog=Interrupted(end_offsets)))
        with ThreadPoolExecutor(1) as threads:
            member.tick(threads)

    def _step(self) -> None:
        now = self.group.clock.now = self.group.clock.now + self.group.session_ms / 12
        renewed = now + self.group.session_ms
        is_followed = self.others[0].map.generation == self.leader.map.generation
        if is_followed:
            wait_until(lambda: self.leader.membership.lease_until_boot_ms == renewed, "a renewal")
        self.group.round(*self.others)
        if not any(node.membership.member.leads for node in self.others):
            self.led_ms += self.group.session_ms / 12


def test_a_round_longer_than_a_session_costs_no_lease(group, monkeypatch):
    """Nor the lead: its assignment is the next."""
    group.session_ms = 120
    leader, b, joiner = *group.settled("a", "b"), group.node("c")
    group.round(joiner)
    generation, active = leader.map.generation, leader.running_actives
    long = SlowRound(group, leader, [b, joiner])
    long.run(monkeypatch, until=lambda: long.led_ms >= 2.5 * group.session_ms)
    assert leader.running_actives == active != frozenset()
    assert (b.map.generation, leader.map.generation.number) == (generation, generation.number + 1)
    group.go_on(leader, b, joiner, for_ms=2 * group.session_ms)
    group.assert_served_by(leader, b, joiner)


def test_a_round_that_does_not_end_costs_the_lead(group, monkeypatch):
    """The leader is active until another has written an assignment, and then no longer than its lease."""
    group.session_ms = 120
    leader, b, joiner = *group.settled("a", "b"), group.node("c")
    group.round(joiner)
    generation = leader.map.generation
    endless = SlowRound(group, leader, [b, joiner])
    endless.run(monkeypatch, until=lambda: b.map.generation > generation and not leader.running_actives)
    assert 3 * group.session_ms <= endless.led_ms <= 4 * group.session_ms
    assert leader.map.generation == generation, "it writes nothing"
    group.go_on(leader, b, joiner, for_ms=2 * group.session_ms)
    group.assert_served_by(leader, b, joiner)


def test_a_database_made_anew_goes_on_above_what_members_know(group):
    nodes = group.settled("a", "b", "c")
    known = nodes[0].map.generation
    remove_database(group.path)
    group.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
    assert nodes[0].map.generation.incarnation > known.incarnation
    assert nodes[0].map == nodes[1].map == nodes[2].map
    group.assert_served_by(*nodes)


def test_recreated_database_activates_only_holders(group):
    nodes = group.settled("a", "b", "c")
    remove_database(group.path)
    group.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
    group.assert_served_by(*nodes)
    assert [node.built_as_active for node in nodes] == [set(), set(), set()]


def test_recreated_database_exceeds_known_generations(group, monkeypatch):
    """The clock was set back before."""
    nodes = group.settled("a", "b")
    known = nodes[0].map.generation
    step_wall_clock(monkeypatch, -86_400)
    remove_database(group.path)
    group.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
    assert nodes[0].map.generation > known
    assert nodes[0].map == nodes[1].map
    group.assert_served_by(*nodes)


def test_restored_backup_exceeds_known_generations(group, tmp_path):
    a = group.settled("a")[0]
    backup = sqlite3.connect(tmp_path / "backup.db")
    live = sqlite3.connect(group.path)
    live.backup(backup)
    b = group.node("b")
    group.go_on(a, b, for_ms=2 * SESSION_MS)
    known = a.map.generation
    backup.backup(live)
    for connection in (backup, live):
        connection.close()
    group.go_on(a, b, for_ms=INITIAL_MS + SESSION_MS)
    assert a.map.generation > known
    group.assert_served_by(a, b)


def test_leases_from_before_a_reboot_are_void(group, tmp_path, monkeypatch):
    a, b = group.settled("a", "b")
    reboot(group, tmp_path, monkeypatch)
    after = [group.node(node.name, on_disk=node) for node in (b, a)]
    # The clock began anew, so the old leases would hold for as long as the machine ran before.
    group.go_on(*after, for_ms=INITIAL_MS + SESSION_MS)
    assert [node.membership.state for node in after] == ["member", "member"]
    group.assert_served_by(*after)


def test_a_member_lost_at_reboot_gets_no_task(group, tmp_path, monkeypatch):
    a, b = group.settled("a", "b")
    reboot(group, tmp_path, monkeypatch)
    # By the old clock, b's lease would hold for as long as the machine ran before.
    alone = group.node("a", on_disk=a)
    group.go_on(alone, for_ms=INITIAL_MS + SESSION_MS)
    assert alone.running_actives == set(TOPOLOGY.tasks)
    assert b.host not in {metadata.host for metadata in alone.map.hosts if metadata.active_topic_partitions}


@pytest.mark.parametrize("rebooted", [False, True], ids=["restarted", "rebooted"])
def test_whole_groups_return_restores_its_roles(group, tmp_path, monkeypatch, rebooted):
    """All members left and are back, also after a reboot, and nothing is built."""
    nodes = group.settled("a", "b", "c")
    before = roles(*nodes)
    for node in nodes:
        node.membership.leave()
    if rebooted:
        reboot(group, tmp_path, monkeypatch)
    first, *rest = [group.node(node.name, on_disk=node) for node in nodes]
    group.go_on(first, for_ms=INITIAL_MS - TICK_MS)
    group.go_on(first, *rest, for_ms=SESSION_MS)
    assert roles(first, *rest) == before
    assert [node.built for node in (first, *rest)] == [set(), set(), set()]


def test_a_lone_worker_is_active_again_at_once_after_a_restart(group):
    alone = group.settled("a")[0]
    alone.membership.leave()
    back = group.node("a", on_disk=alone)
    group.go_on(back, for_ms=TICK_MS)
    group.assert_served_by(back)


def reboot(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group.close()
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another boot\n")
    monkeypatch.setattr(lease_database, "_BOOT_ID", boot_id)
    group.clock.now = 10_000.0


def test_the_group_of_another_application_is_refused(group):
    group.settled("a")
    stranger = group.node("b", parse_topology({"application_id": "stranger", "subtopology": [COUNTS]}))
    with pytest.raises(ConfigurationError) as refused:
        stranger.membership.start(stranger.subscription, stranger.on_assignment)
    assert "belongs to application 'app' (format 2)" in str(refused.value)
    assert "Give each application its own --group" in str(refused.value)


def test_group_directory_that_cannot_be_made_is_refused(group, tmp_path):
    (tmp_path / "file").touch()
    group.path = tmp_path / "file" / "group.db"
    node = group.node("a")
    with pytest.raises(ConfigurationError, match="cannot be created"):
        node.membership.start(node.subscription, node.on_assignment)


def test_an_address_of_a_live_member_is_refused(group):
    a, _ = group.settled("a", "b")
    twin = group.node("twin")
    twin.host = a.host
    with pytest.raises(ConfigurationError, match="a:1 is advertised by another live worker"):
        twin.membership.start(twin.subscription, twin.on_assignment)


@pytest.mark.parametrize("gone", ["left", "expired"])
def test_an_address_of_a_member_that_is_gone_may_be_taken(group, gone):
    a, b = group.settled("a", "b")
    if gone == "left":
        a.membership.leave()
    else:
        group.go_on(b, for_ms=SESSION_MS)
    heir = group.node("heir")
    heir.host = a.host
    heir.membership.start(heir.subscription, heir.on_assignment)
    heir.membership.leave()


@pytest.mark.parametrize("step_s", [3_600, -3_600])
def test_a_stepped_wall_clock_changes_nothing(group, monkeypatch, step_s):
    nodes = group.settled("a", "b", "c")
    before, generation = roles(*nodes), nodes[0].map.generation
    step_wall_clock(monkeypatch, step_s)
    group.go_on(*nodes, for_ms=REBUILD_MS)
    assert roles(*nodes) == before
    assert nodes[0].map.generation == generation


def step_wall_clock(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + step_s)


def fill_with_garbage(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.write_bytes(b"not a database, " * (file.stat().st_size // 16 + 1))


def tick_or_fail(node: Node) -> None:
    try:
        node.membership.tick()
    except sqlite3.Error:
        # As the thread does: the next round connects anew.
        node.membership._database.close()


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_members_of_a_corrupted_group_become_standbys(group, restarted):
    nodes = group.settled("a", "b")
    if restarted:
        group.close()
        nodes = [group.node(node.name, on_disk=node) for node in nodes]
    held = [set(node.offsets) for node in nodes]
    fill_with_garbage(group.path)
    for _ in range(13):
        group.clock.now += TICK_MS
        for node in nodes:
            tick_or_fail(node)
        actives = [task for node in nodes for task in node.running_actives]
        assert len(actives) == len(set(actives))
    assert [node.running_actives for node in nodes] == [frozenset(), frozenset()]
    assert [set(node.offsets) for node in nodes] == held
    # The remedy is to remove it.
    remove_database(group.path)
    group.go_on(*nodes, for_ms=INITIAL_MS + SESSION_MS)
    group.assert_served_by(*nodes)


def test_corrupted_database_delays_joining_until_removed(group, caplog):
    """The worker starts beside it."""
    group.path.write_bytes(b"not a database, " * 1_000)
    times = GroupTimeouts(120, REBUILD_MS, 0)
    membership = SqliteMembership(group.path, Leader(TOPOLOGY, group.changelog, POLICY), times)
    node = Node("a", membership, TOPOLOGY, group.clock)
    caplog.set_level(logging.WARNING)
    membership.start(node.subscription, node.on_assignment)
    try:
        warned = f"the worker group {group.path} cannot be reached: file is not a database"
        wait_until(lambda: [record.message for record in caplog.records].count(warned) >= 1, "an attempt")
        assert (membership.state, membership.lease_until_boot_ms) == ("joining", 0.0)
        remove_database(group.path)
        wait_until(lambda: membership.state == "member", "joining")
        assert node.actives == set(TOPOLOGY.tasks)
    finally:
        membership.leave()
    assert membership.lease_until_boot_ms == 0.0


def test_damaged_schema_that_is_no_text_is_named(group):
    """SQLite quotes it in its message, which then is no UTF-8 either."""
    node = group.settled("a")[0]
    group.close()
    whole = group.path.read_bytes()
    assert whole.count(b"CREATE TABLE member") == 1
    group.path.write_bytes(whole.replace(b"CREATE TABLE member", b"CRE\xc1TE TABLE member"))
    with pytest.raises(sqlite3.DatabaseError, match="it is damaged"):
        group.node("a", on_disk=node).membership.tick()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE grp SET generation = 'x'",
        "UPDATE grp SET leader = 'a', leader_until = 'soon'",
        "UPDATE grp SET leader = NULL; UPDATE member SET lease_until = 'soon' WHERE id = 'a'",
        "UPDATE grp SET boot_id = x'ff'",
    ],
)
def test_column_of_another_type_is_damage(group, damage):
    node = group.settled("a", "b")[1]
    group.close()
    with contextlib.closing(sqlite3.connect(group.path)) as connection:
        connection.executescript(damage)
    with pytest.raises(sqlite3.DatabaseError, match="it is damaged"):
        group.node("b", on_disk=node).membership.tick()


def test_row_of_a_member_that_is_gone_ends_no_lease(group):
    """The leader alone reads what those that are away last said."""
    follower = group.settled("a", "b", "c")[1]
    with contextlib.closing(sqlite3.connect(group.path)) as connection, connection:
        connection.execute("UPDATE member SET lease_until = 0, subscription = 'x' WHERE id = 'c'")
    before = Leases(group.path).until(follower)
    group.clock.now += TICK_MS
    group.round(follower)
    assert Leases(group.path).until(follower) > before


def beyond(raw: bytes) -> bytes:
    return zlib.compress(msgspec.msgpack.encode({"v": VERSION + 1, "least": VERSION + 1, "data": len(raw)}))


def test_member_that_cannot_read_its_leader_counts_as_gone(group):
    """It does not lead either."""
    older = group.settled("a", "b", "c")[2]
    known = older.map.generation
    with sqlite3.connect(group.path) as connection:
        (written,) = connection.execute("SELECT assignment FROM grp").fetchone()
        connection.execute("UPDATE grp SET generation = generation + 1, assignment = ?", (beyond(written),))
    connection.close()
    leases = Leases(group.path)
    before = leases.until(older)
    group.clock.now += TICK_MS
    with pytest.raises(UnsupportedVersion):
        group.round(older)
    assert leases.until(older) == before
    group.clock.now += SESSION_MS
    with pytest.raises(UnsupportedVersion):
        group.round(older)
    assert older.running_actives == frozenset()
    assert older.map.generation == known
    assert leases.leader() != older.name


@dataclass
class Leases:
    """What the database says, whatever its members think."""

    path: Path

    def until(self, node: Node) -> float:
        return float(self._one("SELECT lease_until FROM member WHERE id = ?", node.name))

    def leader(self) -> str:
        return str(self._one("SELECT leader FROM grp"))

    def _one(self, query: str, *parameters: object) -> object:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, parameters).fetchone()[0]


def test_removed_write_ahead_log_splits_no_group(tmp_path):
    """Members go on with one `-wal` file after the database's was removed."""
    path = tmp_path / "group.db"
    group = lease_database.GroupDatabase(path, "a")
    with group.transaction(0, 1) as writing:
        writing.put_leader("first", 10)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    # In another process, since one has its connections share what was removed.
    command = [sys.executable, "-c", WRITES_AS_SECOND, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout.readline() == "written\n"
        with group.transaction(0, 1) as reading:
            assert reading.connection.execute("SELECT leader FROM grp").fetchone() == ("second",)
        second.stdin.close()
    group.close()


WRITES_AS_SECOND = """
import sys
from pathlib import Path
from forebay_worker.group.sqlite.lease_database import GroupDatabase
group = GroupDatabase(Path(sys.argv[1]), "a")
with group.transaction(0, 1) as writing:
    writing.put_leader("second", 20)
print("written", flush=True)
sys.stdin.read()
"""
