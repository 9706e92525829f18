import pytest
from msgspec import to_builtins

from forebay.lag import UNKNOWN_LAG, Lag
from forebay_console.data_routes import partition_replicas
from forebay_web.health.survey import Condition, ReplicaState, condition, first_replica

NEAR, FAR = Lag(0, 5, 50), Lag(9, 900, 9_000)


def test_first_replica_is_active_restoring_then_standby():
    """Of several standbys the one with the least lag is chosen."""
    far, near = ReplicaState("a:1", "standby", FAR), ReplicaState("b:1", "standby", NEAR)
    restoring, active = ReplicaState("c:1", "restoring", FAR), ReplicaState("d:1", "active", FAR)
    assert first_replica([far, near, restoring, active]) == active
    assert first_replica([far, near, restoring]) == restoring
    assert first_replica([far, near, ReplicaState("e:1", "standby")]) == near
    assert first_replica([active._replace(live=False), far]) == far
    assert first_replica([active._replace(live=False)]) is None


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        (ReplicaState("a:1", "active", NEAR), Condition.SERVED),
        (ReplicaState("a:1", "active", NEAR, lagging=True), Condition.LAGGING),
        (ReplicaState("a:1", "active", UNKNOWN_LAG), Condition.LAG_UNKNOWN),
        (ReplicaState("a:1", "restoring", NEAR), Condition.RESTORING),
        (ReplicaState("a:1", "standby", NEAR), Condition.STANDBY),
        (ReplicaState("a:1", "active", NEAR, failure="bad record"), Condition.FAILED),
        (None, Condition.UNHELD),
    ],
)
def test_the_condition_is_that_of_the_replica_that_reads_go_to(replica, expected):
    assert condition(replica) == expected


def test_unknown_lag_is_null_and_dead_replicas_are_listed():
    """Replicas of workers that do not answer polls are listed as not live."""
    silent = ReplicaState("a:1", "active", live=False)
    partition = partition_replicas(3, [ReplicaState("b:1", "standby", Lag(1, None, None)), silent])
    assert partition.condition == "standby"
    unknown = {"record_lag": None, "time_lag_ms": None, "age_ms": None}
    assert to_builtins(partition.replicas) == [
        {"host": "a:1", "role": "active", "live": False, "lagging": False, **unknown},
        {"host": "b:1", "role": "standby", "live": True, "lagging": False, **unknown, "record_lag": 1},
    ]
