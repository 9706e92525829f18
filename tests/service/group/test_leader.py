"""A leader's conclusions from the members' offsets."""

from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.metadata import Generation, HostInfo
from forebay.tasks import TaskId
from forebay.topology import parse_topology
from forebay_worker.group.leader import Leader
from forebay_worker.group.placement import Assignment, AssignmentPolicy, Placement
from forebay_worker.group.wire import AssignmentInfo, SubscriptionInfo
from forebay_worker.state.offsets import CAUGHT_UP

STORES = [{"name": "a"}, {"name": "b"}]
TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": STORES}]}
)
TASK = TaskId(0, 0)


def test_a_task_of_two_stores_may_be_as_far_behind_as_both_may(tmp_path):
    changelog = SqliteChangelog(tmp_path)
    for spec in TOPOLOGY.stores.values():
        changelog.ensure(spec)
    for tp in TOPOLOGY.topic_partitions(TASK):
        rows = [(b"k", b"1", 0)] * 100
        sqlite_partition.append_batch(
            changelog.path(tp), rows, writer="w", query_id="q", batch_id=0, write_name="w"
        )
    leader = Leader(TOPOLOGY, changelog, AssignmentPolicy(acceptable_recovery_lag=60))
    lags = leader.lags({"behind": {TASK: 81}, "active": {TASK: CAUGHT_UP}})
    assert lags == {"behind": {TASK: 60}, "active": {TASK: 0}}


def test_placements_of_another_topology_are_those_of_the_same_stores():
    one, two = ({"name": name, "partitions": 2, "store": [{"name": name}]} for name in ("one", "two"))
    old = parse_topology({"application_id": "app", "subtopology": [one, two]})
    turned = parse_topology(
        {"application_id": "app", "subtopology": [two, one, {**one, "name": "new", "store": STORES}]}
    )
    held = {task: Placement(f"holder of {task}") for task in old.tasks}
    told = AssignmentInfo(Generation(1, 1), old.fingerprint, {}, Assignment(held, held), old.ordinal_by_store)
    before = Leader(turned, None, AssignmentPolicy()).before(told)
    assert before.intended == before.actual == {TaskId(1 - ordinal, p): held[ordinal, p] for ordinal, p in held}


def test_workers_of_one_rack_are_told_apart_by_their_machines(tmp_path):
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
    assert {placement_on(machines, placement) for placement in first.assignment.intended.values()} == {
        frozenset({"left", "right"})
    }
    # One that is expected back is still where it was.
    del members["d"]
    second = leader.next_assignment(members, {"d": "zone1"}, first, Generation(1, 2))
    assert {placement_on(machines, placement) for placement in second.assignment.intended.values()} == {
        frozenset({"left", "right"})
    }


def placement_on(machines: dict[str, str], placement: Placement) -> frozenset[str]:
    return frozenset(machines[member] for member in placement.members)
