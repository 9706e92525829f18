"""A Kafka member's part in rebalances that go wrong, in virtual time; the broker's answers are scripted."""

from dataclasses import replace

import pytest

from forebay.streams_metadata import Generation
from forebay_worker.group.kafka.membership import KafkaMembership
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.messages import AssignmentInfo
from tests.simulation.kafka_group import SharedTopic
from tests.simulation.scheduler import Scheduler
from tests.simulation.worker import POLICY, TOPOLOGY, Ends, SimulatedWorker

SESSION_MS = 6_000


class AnyAssignment:
    """No judge: what is followed is looked at by the test."""

    def on_assignment(self, worker: SimulatedWorker, info: AssignmentInfo) -> None:
        """Nothing is wrong with it."""


@pytest.fixture
def topic() -> SharedTopic:
    return SharedTopic()


@pytest.fixture
def worker(topic) -> SimulatedWorker:
    """A member that has led one round of its own, and follows its assignment."""
    worker = SimulatedWorker("a", 1, Scheduler(), AnyAssignment(), lambda: 0.0)
    leader, times = Leader(TOPOLOGY, Ends(), POLICY), GroupTimeouts(SESSION_MS, 60_000, 0)
    member = KafkaMembership("kafka://broker:9092", leader, times, worker.scheduler.clock)
    member._topic, member._subscription, member._on_assignment = topic, worker.subscription, worker.on_assignment
    worker.membership = member
    round_of(worker)
    member._on_heartbeat(worker.scheduler.now)
    assert worker.active == set(TOPOLOGY.tasks)
    return worker


def round_of(worker: SimulatedWorker, *others: bytes, follows: bool = True) -> AssignmentInfo:
    """A round that it leads; what it gave out is returned."""
    member = worker.membership
    members = dict(enumerate([member.subscription(), *others]))
    raw = member.lead(members)[0]
    if follows:
        member.follow(raw)
    return AssignmentInfo.decode(raw)


def other(name: str, known: Generation) -> bytes:
    worker = SimulatedWorker(name, 1, Scheduler(), AnyAssignment(), lambda: 0.0)
    return replace(worker.subscription(), known_generation=known).encode()


def test_a_join_and_its_answer_extend_no_lease(worker):
    """Others may have taken over before a member that was stopped joins again."""
    until = worker.membership.lease_until_boot_ms
    worker.scheduler.run_for(1_000)
    worker.membership.subscription()
    worker.membership._on_heartbeat(worker.scheduler.now)
    assert worker.membership.lease_until_boot_ms == until
    # The answer to a heartbeat may overtake it.
    worker.membership._on_heartbeat(worker.scheduler.now - 1)
    assert worker.membership.lease_until_boot_ms == until


def test_unchanged_round_keeps_the_member_active(worker):
    worker.membership.subscription()
    worker.membership.follow(b"")
    worker.scheduler.run_for(1_000)
    worker.membership._on_heartbeat(worker.scheduler.now)
    assert worker.membership.lease_until_boot_ms == worker.scheduler.now + SESSION_MS


@pytest.mark.parametrize("missed", ["the end of a round", "rounds while it was expelled"])
def test_missed_assignment_extends_no_lease(worker, missed):
    """Rounds without an assignment, as while the leader hands over, tell it nothing of that one."""
    until = worker.membership.lease_until_boot_ms
    if missed == "the end of a round":
        worker.membership.subscription()
    else:
        worker.scheduler.run_for(SESSION_MS)
    for _ in range(2):
        worker.membership.subscription()
        worker.membership.follow(b"")
        worker.membership._on_heartbeat(worker.scheduler.now + 1)
        assert worker.membership.lease_until_boot_ms == until
    round_of(worker)
    assert worker.active == set(TOPOLOGY.tasks)


def test_leader_exceeds_the_generation_it_never_followed(worker):
    """Others may have followed it, and be gone by now."""
    unfollowed = round_of(worker, other("b", worker.generation), follows=False)
    again = round_of(worker)
    assert unfollowed.hosts.keys() == {"a", "b"}
    assert again.hosts.keys() == {"a"}
    assert again.generation > unfollowed.generation > Generation(unfollowed.generation.incarnation, 1)


def test_a_new_leader_gives_out_anew_what_others_may_not_follow(worker, topic):
    """One that was deposed may have written its assignment last, under a number that is in use."""
    followed = worker.info
    topic.write(replace(followed, generation=Generation(followed.generation.incarnation, 2)).encode())
    worker.membership.subscription()
    worker.membership.follow(b"")
    given_out = round_of(worker)
    assert given_out == replace(followed, generation=Generation(followed.generation.incarnation, 3))


def test_continuing_leader_reuses_its_assignment(worker, topic, monkeypatch):
    """It does not read the topic of assignments again."""
    monkeypatch.setattr(topic, "newest", None)
    assert round_of(worker) == worker.info


@pytest.mark.parametrize(("took_ms", "is_named"), [(SESSION_MS - 1, False), (SESSION_MS, True)])
def test_a_round_that_leaves_no_active_is_named_with_the_remedy(worker, monkeypatch, caplog, took_ms, is_named):
    def slow(*_: object) -> None:
        worker.scheduler.run_for(took_ms)

    monkeypatch.setattr(worker.membership._leader, "next_assignment", slow)
    round_of(worker)
    assert ("raise session_timeout_ms" in caplog.text) is is_named
