"""The worker group on a real broker, its members in one process; it satisfies what the SQLite group does."""

import asyncio
import contextlib
import secrets
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import GroupAuthorizationFailedError, InvalidSessionTimeoutError
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from forebay.clock import boot_ms
from forebay.streams_metadata import NO_GENERATION, ClusterMap, Generation, HostInfo
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.group.assignor import Assignment, AssignmentPolicy, Placement
from forebay_worker.group.kafka import group_consumer, membership
from forebay_worker.group.kafka.assignments import AssignmentTopic, digest
from forebay_worker.group.kafka.group_consumer import GroupConsumer
from forebay_worker.group.kafka.membership import KafkaMembership
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import VERSION, AssignmentInfo, SubscriptionInfo
from tests.support.cluster import wait_until

pytestmark = pytest.mark.kafka

SESSION_MS = 1_000
INITIAL_MS = 600
NEVER_MS = 600_000
RECORDS = 10
"""In each partition of the log."""

COUNTS = {"name": "counts", "partitions": 4, "store": [{"name": "counts", "topic": "counts"}]}
REST = {
    "name": "rest",
    "partitions": 2,
    "store": [{"name": "numbers", "topic": "numbers"}, {"name": "pairs", "topic": "pairs"}],
}
MORE = {"name": "more", "partitions": 2, "store": [{"name": "more", "topic": "more"}]}
POLICY = AssignmentPolicy(num_standby_replicas=1, acceptable_recovery_lag=RECORDS // 2, max_warmup_replicas=2)


@pytest.fixture(scope="module")
def changelog(tmp_path_factory: pytest.TempPathFactory) -> SqliteChangelog:
    """A log with records in every partition, so that a copy at offset 0 is not caught up."""
    log = SqliteChangelog(tmp_path_factory.mktemp("log"))
    rows = [(b"k%d" % i, b"1", 0) for i in range(RECORDS)]
    for topic, partitions in (("counts", 4), ("numbers", 2), ("pairs", 2), ("more", 2)):
        log.ensure_topic(topic, partitions)
        for partition in range(partitions):
            path = log.path(TopicPartition(topic, partition))
            sqlite_batches.append_batch(path, rows, writer="w", query_id="q", batch_id=0, write_name="w")
    return log


@dataclass
class Node:
    """A worker as its membership sees it: it holds what it is assigned and, unless it is held up, catches up."""

    name: str
    membership: KafkaMembership
    topology: Topology
    offsets: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)
    unchecked: frozenset[TaskId] = frozenset()
    actives: frozenset[TaskId] = frozenset()
    built: set[TaskId] = field(default_factory=set)
    """Tasks that were begun from nothing."""
    built_as_active: set[TaskId] = field(default_factory=set)
    map: ClusterMap = field(default_factory=ClusterMap)
    held_up: bool = False
    incarnation: int = 1
    health: MemberHealth = MemberHealth.HEALTHY
    returns: bool = True
    _loop: asyncio.AbstractEventLoop | None = None
    _thaw: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.host = HostInfo(self.name, 1)
        self.known = NO_GENERATION

    def start(self) -> None:
        self.membership.start(self.subscription, self.on_assignment)

    def subscription(self) -> SubscriptionInfo:
        # It is asked from beside the loop too.
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        return SubscriptionInfo(
            self.name,
            self.incarnation,
            self.host,
            self.topology.fingerprint,
            dict(self.offsets),
            health=self.health,
            unchecked=self.unchecked & self.offsets.keys(),
            returns=self.returns,
        )

    def on_assignment(self, info: AssignmentInfo) -> None:
        self.map = info.map(self.topology)
        self.actives, standbys = info.tasks_of(self.name)
        if info.hosts.get(self.name) != self.host:
            self.actives = frozenset()
        else:
            held = self.actives | standbys
            begun_now = held - self.offsets.keys()
            self.built |= begun_now
            self.built_as_active |= begun_now & self.actives
            self.offsets = {
                task: self.offsets.get(task, self.at(task, RECORDS * (not self.held_up))) for task in held
            }

    def catch_up(self) -> None:
        self.held_up = False
        self.offsets = {task: self.at(task, RECORDS) for task in self.offsets}

    def lag_by(self, records: int) -> None:
        self.offsets = {task: self.at(task, RECORDS - records) for task in self.offsets}

    def at(self, task: TaskId, position: int) -> tuple[int, ...]:
        """The same position in each of a task's stores."""
        return (position,) * len(self.topology.stores_of(task))

    @property
    def running_actives(self) -> frozenset[TaskId]:
        """What it answers for as active, its role judged by its lease."""
        return self.actives if boot_ms() < self.membership.lease_until_boot_ms else frozenset()

    @property
    def standbys(self) -> set[TaskId]:
        return self.offsets.keys() - self.running_actives

    @property
    def leads(self) -> bool:
        return self.membership.member.leads

    def freeze(self) -> None:
        """Stop its part in the group, as SIGSTOP would: no heartbeat, no answer, no leaving."""
        assert self._loop is not None
        self._thaw.clear()
        self._loop.call_soon_threadsafe(self._thaw.wait)

    def thaw(self) -> None:
        self._thaw.set()


@dataclass
class Group:
    """Members of one group on the broker; every test has an application of its own."""

    url: str
    changelog: SqliteChangelog
    application_id: str = field(default_factory=lambda: f"g-{secrets.token_hex(4)}")
    nodes: list[Node] = field(default_factory=list)

    @property
    def topology(self) -> Topology:
        return parse_topology({"application_id": self.application_id, "subtopology": [COUNTS, REST]})

    @property
    def other_topology(self) -> Topology:
        return parse_topology({"application_id": self.application_id, "subtopology": [COUNTS]})

    def node(
        self,
        name: str,
        topology: Topology | None = None,
        *,
        on_disk: Node | None = None,
        rebuild_ms: int = NEVER_MS,
        initial_ms: int = INITIAL_MS,
        probing_ms: int = NEVER_MS,
        held_up: bool = False,
        host: HostInfo | None = None,
        incarnation: int = 1,
        returns: bool = True,
    ) -> Node:
        """A started member."""
        topology = topology or self.topology
        times = GroupTimeouts(SESSION_MS, rebuild_ms, initial_ms, probing_ms)
        node = Node(name, KafkaMembership(self.url, Leader(topology, self.changelog, POLICY), times), topology)
        if on_disk is not None:
            node.offsets = dict(on_disk.offsets)
        node.held_up, node.incarnation, node.returns = held_up, incarnation, returns
        node.host = host or node.host
        self.nodes.append(node)
        node.start()
        return node

    def settled(self, *names: str, **options: Any) -> list[Node]:
        """Members that have shared out the tasks among them."""
        nodes = [self.node(name, **options) for name in names]
        self.wait_served_by(*nodes)
        for node in nodes:
            node.built.clear()
        return nodes

    def wait_served_by(self, *nodes: Node) -> None:
        """Each task active once, and standby on another member where there is one, as all of them know."""
        wait_until(lambda: served_by(*nodes), f"service by {[node.name for node in nodes]}", 30)

    def close(self) -> None:
        threads = [threading.Thread(target=node.membership.leave) for node in self.nodes]
        for node in self.nodes:
            node.thaw()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.fixture
def group(kafka_url: str, changelog: SqliteChangelog) -> Iterator[Group]:
    group = Group(kafka_url, changelog)
    yield group
    group.close()


def served_by(*nodes: Node) -> bool:
    tasks = list(nodes[0].topology.tasks)
    active = sorted(task for node in nodes for task in node.running_actives)
    standby = sorted(task for node in nodes for task in node.standbys)
    known = {node.map.generation for node in nodes}
    return active == tasks and standby == (tasks if len(nodes) > 1 else []) and len(known) == 1


def roles(*nodes: Node) -> list[tuple[frozenset[TaskId], set[TaskId]]]:
    return [(node.running_actives, node.standbys) for node in nodes]


def all_active(*nodes: Node) -> bool:
    return sorted(task for node in nodes for task in node.running_actives) == list(nodes[0].topology.tasks)


def test_the_first_assignment_waits_for_the_others(group):
    nodes = [group.node(name, initial_ms=2_000) for name in "ab"]
    group.wait_served_by(*nodes)
    # Whoever had come first alone would have built everything.
    assert [len(node.built) for node in nodes] == [6, 6]
    assert [len(node.running_actives) for node in nodes] == [3, 3]
    assert nodes[0].map == nodes[1].map
    assert {node.membership.state for node in nodes} == {"member"}


def test_leavers_actives_move_at_once_without_a_rebuild(group):
    nodes = group.settled("a", "b", "c")
    leaver = next(node for node in nodes if not node.leads)
    rest = [node for node in nodes if node is not leaver]
    leaver.membership.leave()
    assert leaver.running_actives == frozenset()
    wait_until(lambda: all_active(*rest), "a take-over")
    assert [node.built for node in rest] == [set(), set()]


def test_a_leader_that_leaves_is_followed(group):
    nodes = group.settled("a", "b", "c")
    leader = next(node for node in nodes if node.leads)
    rest = [node for node in nodes if node is not leader]
    before = nodes[0].map.generation
    leader.membership.leave()
    wait_until(lambda: all_active(*rest), "a take-over")
    assert rest[0].map.generation > before
    assert [node.built for node in rest] == [set(), set()]
    # Back within the delay, it finds everything as it was.
    back = group.node(leader.name, on_disk=leader)
    group.wait_served_by(*rest, back)
    assert back.built == set()


def test_frozen_leader_is_replaced_and_loses_its_lease(group):
    nodes = group.settled("a", "b", "c")
    leader = next(node for node in nodes if node.leads)
    rest = [node for node in nodes if node is not leader]
    leader.freeze()
    wait_until(lambda: all_active(*rest), "a take-over")
    assert leader.running_actives == frozenset()
    assert leader.offsets.keys() == leader.offsets.keys() | leader.actives
    leader.thaw()
    group.wait_served_by(*nodes)
    assert [node.built for node in nodes] == [set(), set(), set()]


def test_a_lost_standby_is_built_after_the_delay_and_not_before(group):
    a, b, c = group.settled("a", "b", "c", rebuild_ms=2_000)
    left_at = boot_ms()
    c.membership.leave()
    wait_until(lambda: all_active(a, b), "a take-over")
    built_at: list[float] = []

    def built() -> bool:
        if a.built | b.built and not built_at:
            built_at.append(boot_ms())
        return served_by(a, b)

    wait_until(built, "the copies lost being built")
    assert built_at[0] - left_at > 2_000


def test_non_returning_leaders_place_is_given_away_at_once(group):
    nodes = group.settled("a", "b", "c", returns=False)
    leader = next(node for node in nodes if node.leads)
    leader.membership.leave()
    group.wait_served_by(*[node for node in nodes if node is not leader])


def test_degraded_member_triggers_a_rebalance(group):
    """A member with a full disk is active again once it has room."""
    a, b = group.settled("a", "b")
    before = roles(a, b)
    # Neither leads nor joins anew: it has to ask for the rebalance itself.
    full, other = (a, b) if b.leads else (b, a)
    full.health = MemberHealth.DEGRADED
    wait_until(lambda: other.running_actives == set(group.topology.tasks), "the other serving all")
    full.health = MemberHealth.HEALTHY
    wait_until(lambda: roles(a, b) == before, "the roles from before")
    assert a.built | b.built == set()


def test_a_warm_up_takes_over_as_soon_as_it_has_caught_up(group):
    a = group.settled("a")[0]
    b = group.node("b", held_up=True)
    wait_until(lambda: b.built, "a copy being built")
    assert a.running_actives == set(group.topology.tasks)
    # The probing interval is minutes away.
    b.catch_up()

    def balanced() -> bool:
        b.catch_up()
        return served_by(a, b) and len(b.running_actives) == 3

    wait_until(balanced, "the tasks being shared", 30)


def test_probing_rebalance_repeats_while_tasks_move(group, monkeypatch):
    """As often as it is set to, though nobody reports that a copy has caught up."""
    monkeypatch.setattr(KafkaMembership, "_caught_up", lambda self, mine: frozenset())
    a = group.settled("a", probing_ms=700)[0]
    b = group.node("b", held_up=True, probing_ms=700)
    wait_until(lambda: b.built, "a copy being built")

    def balanced() -> bool:
        b.catch_up()
        return served_by(a, b) and len(b.running_actives) == 3

    wait_until(balanced, "the tasks being shared", 30)


def test_lags_that_swing_about_the_limit_move_no_active(group, monkeypatch):
    nodes = group.settled("a", "b", "c")
    before = {node.name: node.running_actives for node in nodes}
    looks: Counter[str] = Counter()
    wants = KafkaMembership._wants_rebalance

    def swing(looking: KafkaMembership) -> bool:
        node = next(node for node in group.nodes if node.membership is looking)
        if node not in nodes:
            return wants(looking)
        looks[node.name] += 1
        node.lag_by(POLICY.acceptable_recovery_lag)
        placed = wants(looking)
        # Within the limit whenever it looks, and mostly beyond it when it joins.
        node.lag_by(POLICY.acceptable_recovery_lag + looks[node.name] % 3)
        return placed

    monkeypatch.setattr(membership, "_REBALANCE_CHECK_INTERVAL_MS", 20.0)
    monkeypatch.setattr(membership, "_POLL_MS", 20)
    monkeypatch.setattr(KafkaMembership, "_wants_rebalance", swing)
    for node in nodes:
        node.lag_by(POLICY.acceptable_recovery_lag + 1)
    slow = group.node("d", held_up=True)
    wait_until(lambda: slow.built, "a copy being built")
    looks.clear()
    wait_until(lambda: min(looks[node.name] for node in nodes) >= 100, "a hundred looks by each", 60)
    assert {node.name: node.running_actives for node in nodes} == before


def test_caught_up_copy_rejoins_once_an_interval(group):
    """A copy whose lag swings requests no rebalance each time it catches up."""
    now, beyond = 1_000_000.0, POLICY.acceptable_recovery_lag + 1
    times = GroupTimeouts(SESSION_MS, NEVER_MS, INITIAL_MS, probing_rebalance_interval_ms=5_000)
    own = KafkaMembership(group.url, Leader(group.topology, group.changelog, POLICY), times, lambda: now)
    node = Node("a", own, group.topology)
    own._subscription = node.subscription
    moving, settled, *_ = group.topology.tasks
    there, elsewhere = Placement("a", ("b",)), Placement("b", ("c",))
    assignment = Assignment({moving: there, settled: there}, {moving: elsewhere, settled: there})
    hosts = {name: HostInfo(name, 1) for name in "abc"}
    own._newest = AssignmentInfo(Generation(1, 1), group.topology.fingerprint, hosts, assignment)

    def catches_up(task: TaskId) -> bool:
        node.offsets = dict.fromkeys((moving, settled), (RECORDS - beyond,))
        own.subscription()
        assert not own._wants_rebalance()
        node.offsets[task] = (RECORDS,)
        return own._wants_rebalance()

    # Only of a task that is on its way somewhere the leader would make use.
    assert not catches_up(settled)
    assert catches_up(moving)
    now += 4_000
    assert not catches_up(moving)
    now += 2_000
    node.unchecked = frozenset({moving})
    assert not catches_up(moving)
    node.unchecked = frozenset()
    assert catches_up(moving)


def test_a_settled_group_rebalances_no_more(group, monkeypatch):
    nodes = group.settled("a", "b")
    generation = nodes[0].map.generation
    late = group.node("c")
    group.wait_served_by(*nodes, late)
    moved = nodes[0].map.generation
    assert moved > generation
    looks: list[bool] = []
    wants = KafkaMembership._wants_rebalance
    monkeypatch.setattr(KafkaMembership, "_wants_rebalance", lambda self: looks.append(wants(self)) or looks[-1])
    wait_until(lambda: len(looks) >= 6, "two looks by each")
    assert not any(looks)
    assert {node.map.generation for node in (*nodes, late)} == {moved}


def test_join_is_retried_without_a_spare_thread(group, monkeypatch):
    refused, to_thread = [], asyncio.to_thread

    async def refuse(*arguments: Any) -> Any:
        if len(refused) < 3:
            refused.append(arguments)
            raise RuntimeError("can't start new thread")
        return await to_thread(*arguments)

    monkeypatch.setattr(membership, "_RETRY_S", 0.05)
    monkeypatch.setattr(asyncio, "to_thread", refuse)
    group.wait_served_by(group.node("a"))
    assert len(refused) == 3


def test_a_misconfigured_member_does_not_lead_the_rest(group, caplog):
    nodes = group.settled("a", "b", "c")
    other = group.node("0", group.other_topology)
    wait_until(lambda: other.membership.state == "other-topology", "the difference being noticed", 30)
    assert other.running_actives == frozenset()
    assert "it keeps serving what it holds. This is normal while a new topology" in caplog.text
    leader = next(node for node in nodes if node.leads)
    rest = [node for node in nodes if node is not leader]
    leader.membership.leave()
    wait_until(lambda: all_active(*rest), "a take-over", 30)
    assert {node.membership.state for node in rest} == {"member"}
    wait_until(lambda: other.membership.state == "other-topology", "its following them", 30)


def test_restart_with_another_topology_raises_generations(group):
    """The assignment of the new topology is newer than all of the old one."""
    old = group.node("a", group.other_topology)
    group.wait_served_by(old)
    known = old.map.generation
    old.membership.leave()
    new = group.node("a", on_disk=old)
    group.wait_served_by(new)
    assert new.map.generation > known


def test_whole_groups_return_restores_its_roles(group):
    """All members left and are back, and nothing is built."""
    nodes = group.settled("a", "b", "c")
    before, known = roles(*nodes), nodes[0].map.generation
    for node in nodes:
        node.membership.leave()
    # However slowly they start, the first waits for all.
    back = [group.node(node.name, on_disk=node, initial_ms=20_000) for node in nodes]
    group.wait_served_by(*back)
    assert roles(*back) == before
    assert [node.built for node in back] == [set(), set(), set()]
    assert back[0].map.generation >= known


def beyond(raw: bytes) -> bytes:
    return zlib.compress(msgspec.msgpack.encode({"v": VERSION + 1, "least": VERSION + 1, "data": len(raw)}))


def test_newer_members_version_does_not_stop_the_group(group, monkeypatch, caplog):
    """The newer member gets no task."""
    a, b = group.settled("a", "b")
    newer = group.node("newer")
    encode = SubscriptionInfo.encode
    monkeypatch.setattr(
        SubscriptionInfo, "encode", lambda self: beyond(b"") if self.process_id == "newer" else encode(self)
    )
    wait_until(lambda: "needs a reader of version" in caplog.text or newer.actives, "its joining")
    leader = next(node for node in (a, b) if node.leads)
    leader.membership.leave()
    (rest,) = {a.name, b.name} - {leader.name}
    left = a if a.name == rest else b
    wait_until(lambda: all_active(left), "a take-over", 30)
    assert newer.host not in {metadata.host for metadata in left.map.hosts}


def test_member_that_cannot_read_its_leader_leaves(group, monkeypatch, caplog):
    """The others serve its tasks, and it does not rejoin at once."""
    nodes = group.settled("a", "b", "c")
    older = next(node for node in nodes if not node.leads)
    others = [node for node in nodes if node is not older]

    def unreadable(raw: bytes) -> None:
        AssignmentInfo.decode(beyond(raw))

    monkeypatch.setattr(older.membership, "_accept", unreadable)
    monkeypatch.setattr(membership, "_RETRY_S", 0.01)
    others.append(group.node("d"))
    tasks = set(older.topology.tasks)
    wait_until(lambda: set().union(*(node.running_actives for node in others)) == tasks, "actives elsewhere", 30)
    wait_until(lambda: older.running_actives == frozenset(), "the end of its own")
    # It does not come back at once, to be given tasks of which it would not know.
    assert caplog.text.count("needs a reader of version") == 1


def test_large_assignment_travels_through_the_topic(group, monkeypatch):
    """Members receive its digest over the group protocol."""
    monkeypatch.setattr(membership, "MAX_INLINE_BYTES", 0)
    reported: list[bytes] = []
    follow = KafkaMembership.follow
    monkeypatch.setattr(KafkaMembership, "follow", lambda self, raw: (reported.append(raw), follow(self, raw))[1])
    a, b = group.settled("a", "b")
    c = group.node("c")
    group.wait_served_by(a, b, c)
    assert {len(raw) < 200 for raw in reported} == {True}


def test_the_map_of_a_thousand_members_fits_the_topic(group, kafka_url):
    tasks = [TaskId(0, partition) for partition in range(20_000)]
    names = [secrets.token_hex(16) for _ in range(1_000)]
    placements = {
        task: Placement(names[i * 7 % 1_000], (names[(i * 13 + 1) % 1_000], names[(i * 17 + 2) % 1_000]))
        for i, task in enumerate(tasks)
    }
    hosts = {name: HostInfo(f"worker-{name}.shop.example.com", 8081) for name in names}
    info = AssignmentInfo(Generation(1, 1), "f" * 16, hosts, Assignment(placements, placements))
    raw = info.encode()
    assert len(raw) * 1_000 > membership.MAX_INLINE_BYTES
    topic = AssignmentTopic(KafkaUrl.parse(kafka_url), group.application_id)
    topic.ensure()
    topic.write(raw)
    assert topic.find(digest(raw)) == raw
    assert topic.newest() == info
    # A leader that was deposed before anybody adopted what it wrote is followed by one of the same generation.
    adopted = replace(info, fingerprint="e" * 16)
    topic.write(adopted.encode())
    assert topic.newest() == adopted


class Talker:
    """A member that says always the same, and repeats as leader what it was told."""

    def __init__(self, says: bytes = b"hello") -> None:
        self.says = says
        self.subscribed = 0
        self.reported: list[bytes] = []

    def subscription(self) -> bytes:
        self.subscribed += 1
        return self.says

    def lead(self, members: dict[str, bytes]) -> dict[str, bytes]:
        return {name: b"told " + raw for name, raw in members.items()}

    def follow(self, assignment: bytes) -> None:
        self.reported.append(assignment)


def consumer_of(group: Group, callbacks: Talker, on_heartbeat: Callable[[float], None]) -> GroupConsumer:
    connection = KafkaUrl.parse(group.url).aiokafka()
    return GroupConsumer(connection, group.application_id, callbacks, SESSION_MS, on_heartbeat)


async def until(condition: Callable[[], object], consumer: GroupConsumer | None = None) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await (asyncio.sleep(0.02) if consumer is None else consumer.poll(20))


def test_second_member_of_an_address_is_reported(group, caplog):
    """It gets no tasks."""
    [first] = group.settled("n1")
    second = group.node("n2", host=first.host)
    wait_until(lambda: "as the worker n1 does" in caplog.text, "the leader's complaint")
    wait_until(lambda: second.membership.state == "member", "the second's membership")
    assert served_by(first)
    assert not second.running_actives
    assert not second.standbys


def test_later_process_of_a_process_id_replaces_the_first(group, caplog):
    """The first one gets no tasks, names the other and leaves without taking its tasks away."""
    a, b = group.settled("a", "b")
    copy = group.node("a", on_disk=a, host=HostInfo("elsewhere", 1), incarnation=2)
    wait_until(lambda: served_by(copy, b), "service by the later one", 30)
    # It hears of the same assignment, be it a moment later.
    wait_until(lambda: a.running_actives == frozenset(), "its end as active")
    wait_until(lambda: "elsewhere:1 was started later with this one's process id" in caplog.text, "the complaint")
    assert "This one, at a:1, gets no tasks." in caplog.text
    served = roles(copy, b)
    a.membership.leave()
    generation = b.map.generation
    wait_until(lambda: members(group) == 2, "its leaving")
    group.wait_served_by(copy, b)
    assert roles(copy, b) == served, f"who leaves takes the other along since {generation}"


def test_failed_assignment_is_retried_without_a_lease(group, monkeypatch):
    monkeypatch.setattr(membership, "_RETRY_S", 0.05)
    a, b = group.settled("a", "b")
    follow, failed = b.on_assignment, []

    def fails(info: AssignmentInfo) -> None:
        failed.append(b.membership.lease_until_boot_ms)
        raise RuntimeError("no space left")

    b.membership._on_assignment = fails
    a.membership.leave()
    wait_until(lambda: len(failed) >= 3, "attempts")
    # Meanwhile the coordinator has heard of it several times.
    assert failed[1:] == [0.0] * (len(failed) - 1)
    assert b.running_actives == frozenset()
    b.membership._on_assignment = follow
    wait_until(lambda: all_active(b), "a take-over", 30)


@pytest.mark.parametrize(
    "rubbish", [b"", b"what is this", zlib.compress(b"\x80")], ids=["empty", "text", "members"]
)
def test_damaged_records_in_the_assignments_topic_are_skipped(group, rubbish, caplog):
    """The group goes on from the newest assignment that is readable."""
    nodes = group.settled("a", "b")
    known = nodes[0].map.generation
    for node in nodes:
        node.membership.leave()
    AssignmentTopic(KafkaUrl.parse(group.url), group.application_id).write(rubbish)
    back = [group.node(node.name, on_disk=node) for node in nodes]
    group.wait_served_by(*back)
    assert [node.built for node in back] == [set(), set()]
    # It goes on from the newest assignment that there is.
    assert back[0].map.generation.incarnation == known.incarnation
    assert "is damaged, or no worker wrote it" in caplog.text


def test_rolling_topology_change_builds_no_kept_standby(group):
    """Stores that are in both topologies keep their standbys."""
    nodes = group.settled("a", "b", "c", rebuild_ms=60_000)
    wider = parse_topology({"application_id": group.application_id, "subtopology": [COUNTS, REST, MORE]})
    new: list[Node] = []
    for old in nodes:
        old.membership.leave()
        rest = [node for node in [*nodes, *new] if node.membership._thread.is_alive()]
        wait_until(lambda rest=rest: members(group) == len(rest), "its leaving")
        new.append(group.node(old.name, wider, on_disk=old, rebuild_ms=60_000))
        wait_until(lambda: new[-1].membership.state != "joining", "its joining", 30)
    group.wait_served_by(*new)
    stay = set(group.topology.tasks)
    # A task must have an active, even while all who have a copy follow the other topology.
    assert [(node.built - node.built_as_active) & stay for node in [*nodes, *new]] == [set()] * 6


async def test_client_reports_responses_and_rejoins_on_request(group):
    """The internals of aiokafka in use exist: without them no lease would be renewed, and no lag reported
    again."""
    AssignmentTopic(KafkaUrl.parse(group.url), group.application_id).ensure()
    callbacks, on_response = Talker(), []
    consumer = consumer_of(group, callbacks, on_response.append)
    began = boot_ms()
    await consumer.join(f"{group.application_id}-assignments")
    try:
        await until(lambda: callbacks.reported == [b"told hello"], consumer)
        joined = len(on_response)
        assert joined >= 2  # to join, and to hear the assignment
        await until(lambda: len(on_response) >= joined + 5, consumer)
        assert began < on_response[0]
        assert on_response == sorted(on_response)
        futures = callbacks.subscribed
        consumer.request_rejoin()
        await until(lambda: callbacks.subscribed > futures and len(callbacks.reported) == 2, consumer)
    finally:
        await consumer.leave()


async def test_leader_stays_in_a_round_longer_than_its_session(group):
    """Its heartbeats go on while it computes the assignment."""
    AssignmentTopic(KafkaUrl.parse(group.url), group.application_id).ensure()
    on_response: list[float] = []

    class SlowTalker(Talker):
        def lead(self, members: dict[str, bytes]) -> dict[str, bytes]:
            joined = boot_ms()
            wait_until(lambda: on_response[-1] > joined + 1.5 * SESSION_MS, "heartbeats")
            return super().lead(members)

    callbacks = SlowTalker()
    consumer = consumer_of(group, callbacks, on_response.append)
    await consumer.join(f"{group.application_id}-assignments")
    try:
        await until(lambda: callbacks.reported, consumer)
        assert (callbacks.reported, callbacks.subscribed) == ([b"told hello"], 1)
    finally:
        await consumer.leave()


async def test_a_member_that_is_never_polled_leaves_and_ours_does_not(group, monkeypatch):
    monkeypatch.setattr(group_consumer, "_MAX_POLL_INTERVAL_MS", SESSION_MS)
    worker = group.node("a")
    wait_until(lambda: worker.membership.state == "member", "membership")
    generation = worker.map.generation
    stuck = Talker(SubscriptionInfo("stuck", 1, HostInfo("stuck", 1), "another topology").encode())
    consumer = consumer_of(group, stuck, lambda sent: None)
    await consumer.join(f"{group.application_id}-assignments")
    try:
        await until(lambda: members(group) == 2)
        await until(lambda: members(group) == 1)
    finally:
        await consumer.leave()
    wait_until(lambda: all_active(worker), "service by the one that is polled")
    assert worker.map.generation == generation


def members(group: Group) -> int:
    admin = AdminClient(KafkaUrl.parse(group.url).librdkafka())
    described = admin.describe_consumer_groups([group.application_id])[group.application_id].result(10)
    return len(described.members)


def test_other_consumer_under_the_group_id_is_named(group, caplog):
    """The member joins once that consumer is gone."""
    topic = AssignmentTopic(KafkaUrl.parse(group.url), group.application_id)
    topic.ensure()
    other = Consumer(KafkaUrl.parse(group.url).librdkafka(group_id=group.application_id))
    other.subscribe([topic.name])
    wait_until(lambda: (other.poll(0.05), other.assignment())[1], "the other consumer's partition")
    node = group.node("a")
    wait_until(lambda: (other.poll(0.05), node.membership.refusal)[1], "the refusal")
    deadline = boot_ms() + 2_500
    # Several attempts are made meanwhile.
    wait_until(lambda: (other.poll(0.05), boot_ms() > deadline)[1], "more attempts")
    [line] = [line for line in caplog.messages if "group" in line]
    assert line == node.membership.refusal
    assert (
        f"The group '{group.application_id}' at {KafkaUrl.parse(group.url)} has a member that is no worker" in line
    )
    assert "Stop it or give it another one" in line
    assert node.membership.state == "joining"
    other.close()
    group.wait_served_by(node)
    assert node.membership.refusal is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GroupAuthorizationFailedError("g"), "may not read the group 'g'"),
        (InvalidSessionTimeoutError(), "refuse session_timeout_ms"),
        (OSError("refused"), "cannot be reached: refused"),
    ],
)
def test_what_keeps_a_member_out_is_said(error, message):
    assert message in group_consumer.refusal(error, "g", "kafka://b:1")
