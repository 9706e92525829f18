"""What a leader takes from how far the members' copies are."""

from forebay.changelog.sqlite import partition as sqlite_partition
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.tasks import TaskId
from forebay.topology import parse_topology
from forebay_worker.group.leader import Leader
from forebay_worker.group.placement import AssignmentPolicy
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
