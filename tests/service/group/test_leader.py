"""A leader's conclusions from the members' offsets."""

from dataclasses import replace

import pytest

from forebay.streams_metadata import Generation, HostInfo
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.group.leader import Leader
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import AssignmentInfo, Location, SubscriptionInfo
from forebay_worker.group.placement import Assignment, AssignmentPolicy, Placement
from forebay_worker.group.previous_assignment import assignment_to_continue, with_places_of
from forebay_worker.state.offsets_file import CAUGHT_UP, INCOMPLETE

STORES = [{"name": "a"}, {"name": "b"}]
TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": STORES}]}
)
TASK = TaskId(0, 0)


def test_task_lag_is_that_of_its_farthest_store(tmp_path):
    changelog = SqliteChangelog(tmp_path)
    for spec in TOPOLOGY.stores.values():
        changelog.ensure(spec)
    for tp in TOPOLOGY.topic_partitions(TASK):
        rows = [(b"k", b"1", 0)] * 100
        sqlite_batches.append_batch(changelog.path(tp), rows, writer="w", query_id="q", batch_id=0, write_name="w")
    leader = Leader(TOPOLOGY, changelog, AssignmentPolicy(acceptable_recovery_lag=60))
    lags = leader.lags(
        {
            "behind": {TASK: (100, 39)},
            "active": {TASK: (CAUGHT_UP, CAUGHT_UP)},
            "cold": {TASK: (100, INCOMPLETE)},
            "elsewhere": {TaskId(7, 0): (100,)},
        }
    )
    never_near = lags["cold"].pop(TASK)
    assert never_near > 1e15
    assert lags == {"behind": {TASK: 61}, "active": {TASK: 0}, "cold": {}, "elsewhere": {}}


def test_of_copies_still_restoring_the_nearest_is_active(tmp_path):
    """Neither has reached an end of its logs; what they have restored decides, but releases no other copy."""
    changelog = SqliteChangelog(tmp_path)
    for spec in TOPOLOGY.stores.values():
        changelog.ensure(spec)
    for tp in TOPOLOGY.topic_partitions(TASK):
        rows = [(b"k", b"1", 0)] * 100
        sqlite_batches.append_batch(changelog.path(tp), rows, writer="w", query_id="q", batch_id=0, write_name="w")
    leader = Leader(TOPOLOGY, changelog, AssignmentPolicy(1, acceptable_recovery_lag=10))
    subscriptions = {
        name: SubscriptionInfo(
            name,
            1,
            HostInfo(name, 1),
            TOPOLOGY.fingerprint,
            {TASK: (INCOMPLETE, INCOMPLETE)},
            restoring={TASK: restored_to},
        )
        for name, restored_to in {"begun": (5, 5), "one-store": (100, 5), "nearly": (95, 95)}.items()
    }
    held = Assignment({TASK: Placement("begun", ("one-store", "nearly"))}, {TASK: Placement("begun", ("nearly",))})
    hosts = {name: info.host for name, info in subscriptions.items()}
    before = AssignmentInfo(Generation(1, 1), TOPOLOGY.fingerprint, hosts, held, TOPOLOGY.ordinal_by_store)
    decoded = {name: SubscriptionInfo.decode(info.encode()) for name, info in subscriptions.items()}
    info = leader.next_assignment(decoded, {}, before, Generation(1, 2))
    assert info is not None
    assert info.assignment.current[TASK].active == "nearly"


def test_where_no_end_is_known_a_copy_is_behind_the_foremost(tmp_path):
    leader = Leader(TOPOLOGY, SqliteChangelog(tmp_path), AssignmentPolicy())
    lags = leader.lags({"one": {TASK: (100, 39)}, "other": {TASK: (90, 40)}, "cold": {TASK: (INCOMPLETE, 40)}})
    assert lags["cold"].pop(TASK) > 1e15
    assert lags == {"one": {TASK: 1}, "other": {TASK: 10}, "cold": {}}


def test_copy_with_one_lagging_store_replaces_no_whole_one(tmp_path):
    changelog = SqliteChangelog(tmp_path)
    for spec in TOPOLOGY.stores.values():
        changelog.ensure(spec)
    for tp, count in zip(TOPOLOGY.topic_partitions(TASK), (1_500, 10), strict=True):
        rows = [(b"k", b"1", 0)] * count
        sqlite_batches.append_batch(changelog.path(tp), rows, writer="w", query_id="q", batch_id=0, write_name="w")
    leader = Leader(TOPOLOGY, changelog, AssignmentPolicy(0, acceptable_recovery_lag=1_000))
    reported = {
        name: SubscriptionInfo(name, 1, HostInfo(name, 1), TOPOLOGY.fingerprint, {TASK: positions})
        for name, positions in {"whole": (1_500, 10), "behind": (0, 10)}.items()
    }
    under_way = Assignment({TASK: Placement("whole")}, {TASK: Placement("behind")})
    hosts = {name: info.host for name, info in reported.items()}
    before = AssignmentInfo(Generation(1, 1), TOPOLOGY.fingerprint, hosts, under_way, TOPOLOGY.ordinal_by_store)
    info = leader.next_assignment(reported, {}, before, Generation(1, 2))
    assert info is not None
    assert info.assignment.current == {TASK: Placement("whole", ("behind",))}


def test_placements_follow_stores_into_another_topology():
    one, two = ({"name": name, "partitions": 2, "store": [{"name": name}]} for name in ("one", "two"))
    old = parse_topology({"application_id": "app", "subtopology": [one, two]})
    turned = parse_topology(
        {"application_id": "app", "subtopology": [two, one, {**one, "name": "new", "store": STORES}]}
    )
    held = {task: Placement(f"holder of {task}") for task in old.tasks}
    reported = AssignmentInfo(Generation(1, 1), old.fingerprint, {}, Assignment(held, held), old.ordinal_by_store)
    before = assignment_to_continue(turned, reported)
    assert before.target == before.current == {TaskId(1 - ordinal, p): held[ordinal, p] for ordinal, p in held}


def test_assignment_followed_by_nobody_keeps_only_places():
    """A worker builds nothing for what it was never given. Those who were, and are gone, keep their places."""
    old = parse_topology(
        {"application_id": "app", "subtopology": [{"name": "o", "partitions": 1, "store": [{"name": "a"}]}]}
    )
    held, places = {TASK: Placement("x")}, {TASK: Placement("y", ("z",))}
    followed = AssignmentInfo(Generation(1, 1), old.fingerprint, {}, Assignment(held, held), old.ordinal_by_store)
    newest = AssignmentInfo(
        Generation(1, 2), TOPOLOGY.fingerprint, {}, Assignment(places, places), TOPOLOGY.ordinal_by_store
    )
    combined = with_places_of(newest, followed, TOPOLOGY)
    assert combined.assignment == Assignment(held, places)
    assert combined.generation == Generation(1, 2)


def test_workers_of_one_rack_differ_by_their_machines(tmp_path):
    topology = parse_topology(
        {"application_id": "app", "subtopology": [{"name": "s", "partitions": 8, "store": [{"name": "a"}]}]}
    )
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure(topology.stores["a"])
    leader = Leader(topology, changelog, AssignmentPolicy(num_standby_replicas=1))
    # By name, those on one machine would be next to each other.
    machines = {"a": "left", "b": "left", "c": "right", "d": "right"}
    members = {
        name: SubscriptionInfo(name, 1, HostInfo(machine, port), topology.fingerprint, rack="zone1")
        for port, (name, machine) in enumerate(machines.items(), 8081)
    }
    first = leader.next_assignment(members, {}, None, Generation(1, 1))
    assert {placement_on(machines, placement) for placement in first.assignment.target.values()} == {
        frozenset({"left", "right"})
    }
    # One that is expected back is still where it was.
    del members["d"]
    second = leader.next_assignment(members, {"d": first.locations["d"]}, first, Generation(1, 2))
    assert {placement_on(machines, placement) for placement in second.assignment.target.values()} == {
        frozenset({"left", "right"})
    }


@pytest.mark.parametrize("rack", ["zone1", None], ids=["one rack", "no rack"])
def test_next_leader_knows_where_an_absent_member_was(tmp_path, rack):
    """In every generation until it is back or its place is given away, also after one by an older worker."""
    topology = parse_topology(
        {"application_id": "app", "subtopology": [{"name": "s", "partitions": 8, "store": [{"name": "a"}]}]}
    )
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure(topology.stores["a"])
    members = {
        name: SubscriptionInfo(name, 1, HostInfo(f"machine of {name}", 1), topology.fingerprint, rack=rack)
        for name in "abc"
    }

    def round_of(present: str, previous: AssignmentInfo | None, number: int) -> AssignmentInfo | None:
        absent = {name: previous.locations[name] for name in members if name not in present} if previous else {}
        info = Leader(topology, changelog, AssignmentPolicy(num_standby_replicas=1)).next_assignment(
            {name: members[name] for name in present}, absent, previous, Generation(1, number)
        )
        return None if info is None else AssignmentInfo.decode(info.encode())

    first = round_of("abc", None, 1)
    unknown = {name: location._replace(rack=None) for name, location in first.locations.items()}
    by_older = replace(first, locations=unknown)
    info = round_of("abc", by_older, 2)
    assert (info is None) == (rack is None), "it is known by now"
    info = round_of("ab", info or by_older, 3)
    for number in (4, 5):
        assert info.locations["c"] == members["c"].location
        info = round_of("ab" if number == 5 else "a", info, number)
    assert info.locations["c"] == members["c"].location


def test_place_of_a_non_returning_member_is_given_away(tmp_path):
    """Such a member gets a place again when it is back."""
    topology = parse_topology(
        {"application_id": "app", "subtopology": [{"name": "s", "partitions": 6, "store": [{"name": "a"}]}]}
    )
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure(topology.stores["a"])
    leader = Leader(topology, changelog, AssignmentPolicy(num_standby_replicas=1))
    members = {
        name: SubscriptionInfo(name, 1, HostInfo(name, 1), topology.fingerprint, returns=name != "beside")
        for name in ("a", "b", "beside")
    }
    first = leader.next_assignment(members, {}, None, Generation(1, 1))
    left = {"a": members["a"], "b": members["b"]}
    # The next leader knows of it what the last assignment says.
    next_leader = Leader(topology, changelog, AssignmentPolicy(num_standby_replicas=1))
    second = next_leader.next_assignment(
        left, {"beside": Location()}, AssignmentInfo.decode(first.encode()), Generation(1, 2)
    )
    assert {frozenset(placement.members) for placement in second.assignment.target.values()} == {
        frozenset({"a", "b"})
    }
    # Once it joins as one that comes back, its place is kept.
    back = {**members, "beside": replace(members["beside"], returns=True)}
    third = next_leader.next_assignment(back, {}, first, Generation(1, 2))
    fourth = next_leader.next_assignment(left, {"beside": Location()}, third, Generation(1, 3))
    assert any("beside" in placement.members for placement in fourth.assignment.target.values())


def placement_on(machines: dict[str, str], placement: Placement) -> frozenset[str]:
    return frozenset(machines[member] for member in placement.members)


GLOBAL = parse_topology(
    {
        "application_id": "app",
        "subtopology": [
            {"name": "s", "partitions": 2, "store": [{"name": "a"}]},
            {"name": "g", "partitions": 2, "global": True, "store": [{"name": "b"}]},
        ],
    }
)


def joined(topology: Topology, **healths: MemberHealth) -> dict[str, SubscriptionInfo]:
    return {
        name: SubscriptionInfo(name, 1, HostInfo(name, 1), topology.fingerprint, health=health)
        for name, health in healths.items()
    }


def settled(
    leader: Leader, members: dict[str, SubscriptionInfo], previous: AssignmentInfo | None
) -> AssignmentInfo:
    """The assignment after which nothing changes."""
    for number in range(2, 12):
        following = leader.next_assignment(members, {}, previous, Generation(1, number))
        if following is None:
            assert previous is not None
            return previous
        previous = following
    raise AssertionError(previous)


def test_global_tasks_go_to_all_and_leave_the_others_alone(tmp_path):
    """Whoever holds one has no place among the others by that."""
    changelog = SqliteChangelog(tmp_path)
    for spec in GLOBAL.stores.values():
        changelog.ensure(spec)
    leader = Leader(GLOBAL, changelog, AssignmentPolicy(num_standby_replicas=0))
    well = MemberHealth.HEALTHY
    first = settled(leader, joined(GLOBAL, a=well, b=well, c=well), None).assignment
    for partition in range(2):
        assert len(first.current[TaskId(0, partition)].members) == 1
        assert set(first.current[TaskId(1, partition)].members) == {"a", "b", "c"}
    of_own = {place.active for task, place in first.target.items() if task.ordinal == 0}
    (only_global,) = {"a", "b", "c"} - of_own
    gone, left = sorted(of_own)
    ill = {left: well, only_global: MemberHealth.DEGRADED}
    after = settled(leader, joined(GLOBAL, **ill), AssignmentInfo.decode(encoded(leader, first)))
    assert {place.active for task, place in after.assignment.target.items() if task.ordinal == 0} == {left}
    assert gone not in {name for place in after.assignment.current.values() for name in place.members}


def encoded(leader: Leader, assignment: Assignment) -> bytes:
    hosts = {name: HostInfo(name, 1) for place in assignment.current.values() for name in place.members}
    return AssignmentInfo(
        Generation(1, 1), GLOBAL.fingerprint, hosts, assignment, dict(GLOBAL.ordinal_by_store), frozenset()
    ).encode()


def test_who_is_evicted_is_not_waited_for_by_global_tasks(tmp_path):
    changelog = SqliteChangelog(tmp_path)
    for spec in GLOBAL.stores.values():
        changelog.ensure(spec)
    leader = Leader(GLOBAL, changelog, AssignmentPolicy(num_standby_replicas=0))
    well = MemberHealth.HEALTHY
    settled(leader, joined(GLOBAL, a=well, b=well, c=MemberHealth.EVICTED), None)
