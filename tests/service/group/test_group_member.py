"""A member's decisions over any sequence of events: its lease, whom it expects back, and what it gives out."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.streams_metadata import NO_GENERATION, Generation, HostInfo
from forebay.task_ids import TaskId
from forebay.topology_file import parse_topology
from forebay_worker.group.group_member import GroupMember, Inbox
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import AssignmentInfo, Location, SubscriptionInfo
from forebay_worker.group.placement import Assignment, Placement

SESSION_MS, REBUILD_MS, INITIAL_MS = 6_000, 60_000, 3_000
TIMES = GroupTimeouts(SESSION_MS, REBUILD_MS, INITIAL_MS)
TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": [{"name": "a"}]}]}
)
TASK = TaskId(0, 0)
NAMES = "abc"


def subscription(
    name: str, *, fingerprint: str = TOPOLOGY.fingerprint, rack: str | None = None
) -> SubscriptionInfo:
    return SubscriptionInfo(name, 1, HostInfo(name, 1), fingerprint, rack=rack)


def assignment(
    number: int, *, present: str = NAMES, fingerprint: str = TOPOLOGY.fingerprint, moving: bool = False
) -> AssignmentInfo:
    """All names have a place, whoever is present."""
    target = Placement(NAMES[0], tuple(NAMES[1:]))
    current = Placement(present[0], tuple(present[1:])) if moving else target
    hosts = {name: HostInfo(name, 1) for name in present}
    return AssignmentInfo(
        Generation(1, number), fingerprint, hosts, Assignment({TASK: current}, {TASK: target}), {"a": 0}
    )


def inbox(present: str, previous: AssignmentInfo | None, gone_since: Mapping[str, float] | None = None) -> Inbox:
    newest = Generation(1, 0) if previous is None else previous.generation
    return Inbox({name: subscription(name) for name in present}, previous, newest, gone_since=gone_since or {})


@pytest.fixture
def member() -> GroupMember:
    return GroupMember(TOPOLOGY, TIMES)


def fail(info: AssignmentInfo) -> None:
    raise OSError("no space left")


def ignore(info: AssignmentInfo) -> None:
    """It is adopted."""


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("heartbeat"), st.integers(1, 100_000)),
        st.tuples(st.sampled_from(["follow", "fail", "other"]), st.integers(1, 5)),
        st.tuples(st.just("end"), st.just(0)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_lease_covers_only_a_followed_assignment(events):
    """Neither the late answer to an early heartbeat, nor an assignment that is older than what it knows."""
    member = GroupMember(TOPOLOGY, TIMES)
    newest_sent, followed = 0, None
    for event, number in events:
        lease = member.lease_until_boot_ms
        match event:
            case "heartbeat":
                stale = number <= newest_sent
                newest_sent = max(newest_sent, number)
                member.on_heartbeat(number)
                assert not stale or member.lease_until_boot_ms == lease
            case "end":
                followed = None
                member.end_lease()
            case "fail" if Generation(1, number) > member.known:
                followed = None
                with pytest.raises(OSError, match="no space"):
                    member.follow(assignment(number), fail)
            case _:
                fingerprint = "other" if event == "other" else TOPOLOGY.fingerprint
                followed = number if Generation(1, number) >= member.known else None
                member.follow(assignment(number, fingerprint=fingerprint), ignore)
        assert member.lease_until_boot_ms == (0 if followed is None else newest_sent + SESSION_MS)


@given(st.lists(st.tuples(st.sampled_from(["ab", "a", "ac", "abc"]), st.integers(1, 50_000)), max_size=12))
def test_missing_member_keeps_its_place_for_the_delay(rounds):
    """Counted from the first round that misses it; one that was back is counted anew."""
    member, now = GroupMember(TOPOLOGY, TIMES), 1_000.0
    missing_since: dict[str, float] = {}
    for present, elapsed_ms in rounds:
        now += elapsed_ms
        missing_since = {name: missing_since.get(name, now) for name in NAMES if name not in present}
        led = member.lead(inbox(present, assignment(1)), now)
        assert led.absent.keys() == {name for name, since in missing_since.items() if now < since + REBUILD_MS}
        due = [since + REBUILD_MS for name, since in missing_since.items() if name in led.absent]
        assert member.next_round_boot_ms == min(due, default=float("inf"))


@given(st.lists(st.tuples(st.sampled_from(["ab", "ac", "abc"]), st.integers(1, 50_000), st.booleans())))
@example([("ab", 1, True), ("abc", 30_000, False), ("ab", 29_000, True), ("ab", 5_000, True)])
def test_whoever_leads_no_place_is_lost_before_the_delay(rounds):
    """A later leader may keep a place for longer. One that leads again forgets what it knew."""
    leaders = {name: GroupMember(TOPOLOGY, TIMES) for name in "xy"}
    now, number, present_before = 1_000.0, 1, NAMES
    last_seen = dict.fromkeys(NAMES, now)
    for present, elapsed_ms, first in rounds:
        now += elapsed_ms
        leader = leaders["x" if first else "y"]
        previous = assignment(number, present=present_before)
        fingerprints = [TOPOLOGY.fingerprint]
        for each in leaders.values():
            each.subscription(subscription("any"))
        leader.elect(fingerprints, led=True)
        led = leader.lead(inbox(present, previous), now)
        for name in NAMES:
            if name in present:
                last_seen[name] = now
            assert name in present or name in led.absent or now - last_seen[name] >= REBUILD_MS
        new = assignment(led.generation.number, present=present) if present != present_before else None
        info = leader.conclude(led, new, now)
        for each in leaders.values():
            each.follow(info, ignore)
        number, present_before = info.generation.number, present


def test_a_leader_that_led_before_counts_absences_anew(member):
    """A member that was back under another leader, and is gone again, was away for a moment only."""
    member.elect([TOPOLOGY.fingerprint], led=True)
    member.lead(inbox("ab", assignment(1)), 0)
    member.follow(assignment(2, present="ab"), ignore)
    # Meanwhile another leader had "c" among its members: this one did not even follow it.
    led = member.lead(inbox("ab", assignment(3)), REBUILD_MS)
    assert led.absent.keys() == {"c"}
    # What it gave out itself was followed by nobody: another leader's took its number.
    member.conclude(led, assignment(4, present="ab"), REBUILD_MS)
    member.subscription(subscription("any"))
    member.follow(assignment(4), ignore)
    assert member.lead(inbox("ab", assignment(4)), 2 * REBUILD_MS).absent.keys() == {"c"}


def test_where_the_backend_keeps_leases_they_count(member):
    """Also those of members with copies but without a place, and of holders that it has forgotten already."""
    gone_since = {"b": 1_000.0, "c": float("-inf"), "d": 1_000.0, "e": 1_000.0}
    arrived = inbox("abde", assignment(1), gone_since)
    copies = replace(subscription("d"), offsets={TASK: (1,)})
    arrived = replace(arrived, subscriptions={**arrived.subscriptions, "d": copies})
    assert member.lead(arrived, REBUILD_MS).absent.keys() == {"b", "d"}
    assert member.lead(arrived, REBUILD_MS + 1_000).absent == {}


@pytest.mark.parametrize(
    ("last", "absent"),
    [
        ({}, {"c", "d"}),
        ({"returns": False}, set()),
        ({"health": MemberHealth.EVICTED}, set()),
        ({"health": MemberHealth.DEGRADED}, {"c"}),
    ],
    ids=["returns", "does not return", "evicted", "degraded"],
)
def test_last_message_decides_whether_a_member_may_return(member, last, absent):
    """It has copies. "c" has a place, "d" has none."""
    messages = {name: replace(subscription(name), offsets={TASK: (1,)}, **last) for name in "cd"}
    messages |= {name: subscription(name) for name in "ab"}
    gone_since = dict.fromkeys("cd", 0.0)
    led = member.lead(Inbox(messages, assignment(1), Generation(1, 1), gone_since=gone_since), 1_000)
    assert led.absent.keys() == absent


def test_holder_of_another_topology_counts_as_absent(member):
    """Its place is kept for as long as it is there."""
    members = inbox("ab", assignment(1)).subscriptions
    other = {**members, "c": subscription("c", fingerprint="other", rack="left")}
    for now in (0, 10 * REBUILD_MS):
        led = member.lead(Inbox(other, assignment(1), Generation(1, 1)), now)
        assert led.absent == {"c": Location("left", "c")}
        assert led.present.keys() == {"a", "b"}


def test_previous_assignment_says_where_a_gone_member_was(member):
    """A new leader on Kafka never saw its message."""
    previous = replace(assignment(1, present="ab"), locations={"c": Location("left", "m1")})
    assert member.lead(inbox("ab", previous), 1).absent == {"c": Location("left", "m1")}


def test_a_group_without_an_assignment_waits_for_its_members(member):
    assert member.lead(inbox("a", None), 1_000) is None
    assert member.next_round_boot_ms == 1_000 + INITIAL_MS
    assert member.lead(inbox("a", None), 1_000 + INITIAL_MS).present.keys() == {"a"}
    recreated = Inbox({"a": subscription("a")}, None, Generation(2, 0))
    assert member.lead(recreated, 2_000 + INITIAL_MS) is None


def test_a_founder_waits_for_holders_until_they_are_there(member):
    member.found(1_000)
    assert member.lead(inbox("a", assignment(1)), 1_000) is None
    assert member.lead(inbox("abc", assignment(1)), 2_000) is not None
    # Once formed, a member that is gone is replaced at once.
    assert member.lead(inbox("ab", assignment(1)), 2_500).absent.keys() == {"c"}


def test_one_that_joins_a_group_does_not_wait_for_its_holders(member):
    assert member.lead(inbox("a", assignment(1)), 1_000) is not None


@pytest.mark.parametrize("moving", [False, True])
def test_an_assignment_that_changes_nothing_is_given_out_again(member, moving):
    previous = assignment(4, present="abc"[::-1], moving=moving)
    led = member.lead(inbox("abc", previous), 0)
    assert member.conclude(led, None, 0) is previous
    assert member.next_round_boot_ms == (TIMES.probing_rebalance_interval_ms if moving else float("inf"))


def test_unfollowable_assignment_gets_a_new_generation(member):
    """Who follows a newer one, or another of its generation, would not take it."""
    led = member.lead(replace(inbox("abc", assignment(4)), newest=Generation(1, 7), is_followed=False), 0)
    info = member.conclude(led, None, 0)
    assert info == replace(assignment(4), generation=Generation(1, 8))


def test_only_the_most_frequent_topology_leads(member):
    assert not member.elect(["other", "other", TOPOLOGY.fingerprint], led=True)
    assert member.elect(["other", TOPOLOGY.fingerprint, TOPOLOGY.fingerprint], led=False)
    assert member.leads
    begun = member.subscription(subscription("a"))
    assert (begun.known_generation, member.leads, member.led_before) == (NO_GENERATION, False, True)
