"""A router's knowledge of workers that have reported little."""

from forebay.clock import boot_ms
from forebay.lag import UNKNOWN_LAG, Lag, Tolerance
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import ClusterMap, Generation, HostInfo, StreamsMetadata
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.status import Identity
from forebay.wire.answers import ReplicaInfo, replica_info_head
from forebay_router.cluster.cluster import Cluster
from forebay_router.cluster.worker_view import Report, Restore, WorkerView
from forebay_web.health.survey import ReplicaState

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 2)
HOST = HostInfo("h", 1)


def cluster(view: WorkerView) -> Cluster:
    known = Cluster(1_000)
    active = StreamsMetadata(HOST, active_topic_partitions=frozenset({TopicPartition("t", 0)}))
    known.metadata.stores = {"s": SPEC}
    known.metadata.on_change(ClusterMap(Generation(1, 1), (active,)))
    known.workers[HOST] = view
    return known


def test_hung_worker_of_unknown_tasks_is_suspect():
    """Its status was never read, so that a map alone names what it holds."""
    view = WorkerView(HOST, live=True, slow_reads=3, ceiling=Tolerance(5))
    (holder,) = cluster(view).holders(SPEC, 0, lambda host: 0)
    assert (holder.role, holder.suspect, holder.ceiling) == ("active", True, Tolerance(5))


def test_returning_worker_of_unknown_tasks_starts_slowly():
    """Slow start applies before its first status is read."""
    view = WorkerView(HOST, live=True)
    view.slow_start.lose()
    (holder,) = cluster(view).holders(SPEC, 0, lambda host: 0)
    assert holder.window == 1


def test_partitions_that_nobody_who_answers_holds_are_counted():
    view = WorkerView(HOST, live=True)
    known = cluster(view)
    assert known.unheld(SPEC) == 2
    known.on_answer_headers(
        HOST, ("s", 1), replica_info_head(ReplicaInfo(1, "p", "standby", str(HOST), Lag(0, 0, 0)))
    )
    assert known.unheld(SPEC) == 1
    known.on_unreachable(HOST)
    assert known.unheld(SPEC) == 2


def test_a_lag_report_expires():
    """Which worker is asked first then rests on nothing, and neither does whether it is beyond a bound."""
    view = WorkerView(HOST, live=True)
    known = cluster(view)

    def lag(reported_ms_ago: float) -> Lag:
        view.replicas["s", 0] = Report("active", Lag(3, 5, 7), boot_ms() - reported_ms_ago)
        (holder,) = known.holders(SPEC, 0, lambda host: 0)
        assert holder.role == "active"
        return holder.lag

    assert lag(0) == Lag(3, 5, 7)
    assert lag(1_100) == UNKNOWN_LAG


def test_answer_headers_update_the_lag_report():
    view = WorkerView(HOST, live=True)
    known = cluster(view)
    view.replicas["s", 0] = Report("active", Lag(500, 500, 500), boot_ms() - 900)
    known.on_answer_headers(
        HOST, ("s", 0), replica_info_head(ReplicaInfo(0, "p", "standby", str(HOST), Lag(2, 3, None)))
    )
    (holder,) = known.holders(SPEC, 0, lambda host: 0)
    assert (holder.role, holder.lag) == ("standby", Lag(2, 3, None))


def test_an_older_map_is_not_adopted():
    known = cluster(WorkerView(HOST, live=True))
    assert not known.adopt("older", [], ClusterMap(Generation(1, 0), ()))
    # Nor is the topology of the worker that gave it.
    assert (known.fingerprint, known.metadata.stores) == ("", {"s": SPEC})
    assert known.metadata.map.hosts
    assert known.adopt("newer", [SPEC], ClusterMap(Generation(1, 2), ()))
    assert known.fingerprint == "newer"
    assert not known.metadata.map.hosts


def test_the_state_of_a_replica_is_as_of_now():
    view = WorkerView(HOST, live=True, replicas={("s", 0): Report("active", Lag(3, 10, None), boot_ms() - 500)})
    view.failures["s", 0], view.restores["s", 0] = "bad record", Restore(70, None)
    known = cluster(view)
    [state] = known.replica_states(SPEC, 0)
    assert state.lag.time_lag_ms is not None
    assert 510 <= state.lag.time_lag_ms < 2_000
    assert (state.lag.record_lag, state.lag.age_ms) == (3, None)
    assert (state.failure, state.restored_records, state.restore_seconds_left) == ("bad record", 70, None)
    assert state.live
    view.slow_reads = 3
    assert not known.replica_states(SPEC, 0)[0].live


def test_of_a_replica_that_only_the_map_names_nothing_is_known():
    known = cluster(WorkerView(HOST))
    del known.workers[HOST]
    assert known.replica_states(SPEC, 0) == [ReplicaState("h:1", "active", UNKNOWN_LAG, live=False)]


def test_a_report_that_is_too_old_gives_no_lag():
    view = WorkerView(HOST, live=True, replicas={("s", 0): Report("active", Lag(3, 10, 9), boot_ms() - 1_500)})
    assert cluster(view).replica_states(SPEC, 0)[0].lag == UNKNOWN_LAG


def test_map_is_believed_while_a_worker_with_a_lease_can_renew_it():
    """One that lost its group still answers polls, but learns of no process that took another's place."""
    other = HostInfo("other", 1)
    replaced = StreamsMetadata(other, process_ids=frozenset({"before"}))
    known = Cluster(1_000)
    known.metadata.on_change(ClusterMap(Generation(1, 1), (replaced,)))
    view = known.workers[HOST] = WorkerView(HOST, live=True)
    newcomer = Identity("worker", "a", "after", 1)
    view.replicas["s", 0] = Report("active", UNKNOWN_LAG, boot_ms())
    assert "which the group does not know there" in str(known.mismatch(other, newcomer))
    view.replicas["s", 0] = Report("standby", UNKNOWN_LAG, boot_ms())
    assert known.mismatch(other, newcomer) is None
