import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import FrameType

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forebay.streams_metadata import Generation, HostInfo
from forebay.task_ids import TaskId
from forebay_worker.group.assignor import (
    NO_ASSIGNMENT,
    Assignment,
    AssignmentPolicy,
    Member,
    Placement,
    assign,
)
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import AssignmentInfo

properties = settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
ACCEPTABLE_LAG = 100
SETTLING_ROUNDS = 3
"""Rounds beyond one for each batch of warm-ups: fail-over, the first warm-ups, the last release."""


@dataclass(frozen=True)
class Group:
    """A worker group between two rounds."""

    tasks: tuple[TaskId, ...]
    members: Mapping[str, Member]
    policy: AssignmentPolicy
    assignment: Assignment = NO_ASSIGNMENT

    @property
    def names(self) -> list[str]:
        return sorted(self.members)

    @property
    def present(self) -> list[str]:
        return sorted(name for name, member in self.members.items() if not member.absent)

    @property
    def standbys(self) -> int:
        return min(self.policy.num_standby_replicas, len(self.members) - 1)

    def compared_and_caught_up(self, task: TaskId) -> set[str]:
        return {name for name in self.presumed_caught_up(task) if task not in self.members[name].unchecked}

    def presumed_caught_up(self, task: TaskId) -> set[str]:
        return {name for name in self.present if self.members[name].lags.get(task, 1 << 60) <= ACCEPTABLE_LAG}

    def holders(self, task: TaskId) -> set[str]:
        return {name for name in self.present if task in self.members[name].lags}

    def assigned(self) -> "Group":
        """One round; nothing is copied yet."""
        return replace(self, assignment=assign(self.tasks, self.members.values(), self.assignment, self.policy))

    def all_caught_up(self) -> "Group":
        """Every present member holds what it is assigned, caught up, and nothing else."""
        held: dict[str, dict[TaskId, int]] = {name: {} for name in self.members}
        for task, placement in self.assignment.current.items():
            for name in placement.members:
                held[name][task] = 0
        return replace(
            self,
            members={
                name: member if member.absent else replace(member, lags=held[name], unchecked=frozenset())
                for name, member in self.members.items()
            },
        )

    def without(self, name: str) -> "Group":
        return replace(self, members={other: m for other, m in self.members.items() if other != name})

    def having(self, *members: Member) -> "Group":
        return replace(self, members={**self.members, **{member.id: member for member in members}})

    def settled(self) -> "Group":
        return list(self.rounds())[-1].all_caught_up()

    def rounds(self) -> "Iterator[Group]":
        """The rounds until nothing changes any more, each as it was decided, before anyone caught up."""
        group = self
        for _ in range(self.bound()):
            before, group = group, group.assigned()
            yield group
            if group.assignment == before.assignment and group.all_caught_up() == before:
                return
            group = group.all_caught_up()
        raise AssertionError(f"not settled after {self.bound()} rounds")

    def bound(self) -> int:
        """One round for each ``max_warmup_replicas`` moves, and a few; the last one only confirms."""
        target = self.assigned().assignment.target
        moves = sum(len(set(goal.members) - self.compared_and_caught_up(task)) for task, goal in target.items())
        return -(-moves // self.policy.max_warmup_replicas) + SETTLING_ROUNDS + 1


def names_of(count: int) -> list[str]:
    return [f"worker-{i}" for i in range(count)]


tasks = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda sizes: tuple(TaskId(ordinal, i) for ordinal, size in enumerate(sizes) for i in range(size))
)
policies = st.builds(
    AssignmentPolicy,
    num_standby_replicas=st.integers(0, 3),
    acceptable_recovery_lag=st.just(ACCEPTABLE_LAG),
    max_warmup_replicas=st.integers(1, 4),
)
racks = st.sampled_from([None, "a", "b", "c"])
lags = st.sampled_from([0, ACCEPTABLE_LAG, ACCEPTABLE_LAG + 1, 10 * ACCEPTABLE_LAG, 1_000 * ACCEPTABLE_LAG])


@st.composite
def settled_groups(
    draw: st.DrawFn, least: int = 1, most: int = 7, racks: st.SearchStrategy[str | None] = racks
) -> Group:
    """Groups that came to rest, some after a member joined and one left."""
    names = names_of(draw(st.integers(least, most)))
    members = {name: Member(name, rack=draw(racks)) for name in names}
    group = Group(draw(tasks), members, draw(policies)).settled()
    if draw(st.booleans()):
        group = group.having(Member("another", rack=draw(racks))).settled()
        group = group.without(draw(st.sampled_from(group.names))).settled()
    return group


@st.composite
def any_groups(draw: st.DrawFn, absent: bool = True) -> Group:
    """Groups in any state: any assignment, of members that may be gone, and any copies."""
    ids = names_of(draw(st.integers(1, 6)))
    held = draw(tasks)
    members = {
        name: Member(
            name,
            draw(st.dictionaries(st.sampled_from(held), lags)),
            absent and name != ids[0] and draw(st.booleans()),
            draw(racks),
            unchecked=draw(st.frozensets(st.sampled_from(held), max_size=3)),
        )
        for name in ids
    }
    placements = st.lists(st.sampled_from([*ids, "gone", "long-gone"]), min_size=1, unique=True).map(
        lambda names: Placement(names[0], tuple(names[1:]))
    )
    known = draw(st.lists(st.sampled_from(held), unique=True))
    previous = Assignment(*({task: draw(placements) for task in known} for _ in range(2)))
    return Group(held, members, draw(policies), previous)


def loads(
    placements: Mapping[TaskId, Placement], names: list[str], pick: Callable[[Placement], Iterable[str]]
) -> list[Counter[str]]:
    """How much each member has: of each sub-topology, and last in total."""
    ordinals = sorted({task.ordinal for task in placements})
    counts = {ordinal: Counter(dict.fromkeys(names, 0)) for ordinal in [*ordinals, -1]}
    for task, placement in placements.items():
        counts[task.ordinal].update(pick(placement))
        counts[-1].update(pick(placement))
    return list(counts.values())


def actives(placement: Placement) -> tuple[str, ...]:
    return (placement.active,)


def standbys(placement: Placement) -> tuple[str, ...]:
    return placement.standbys


def warm_ups(group: Group, task: TaskId) -> int:
    placement = group.assignment.current[task]
    extra = len(placement.standbys) - group.policy.num_standby_replicas
    return max(0, min(extra, len(set(placement.standbys) - group.presumed_caught_up(task))))


def clashes(group: Group, names: Iterable[str]) -> int:
    known = [group.members[name].rack for name in names if group.members[name].rack is not None]
    return len(known) - len(set(known))


# Every task is served ------------------------------------------------------------------------------------------


@properties
@given(any_groups())
def test_every_task_is_active_once_on_distinct_members(group: Group) -> None:
    for state in (group.assigned(), group.assigned().all_caught_up().assigned()):
        assert state.assignment.current.keys() == state.assignment.target.keys() == set(group.tasks)
        for task in group.tasks:
            current, target = state.assignment.current[task], state.assignment.target[task]
            assert set(current.members) <= set(group.present)
            assert set(target.members) <= set(group.names)
            assert len(set(current.members)) == len(current.members)
            assert len(set(target.members)) == len(target.members) == group.standbys + 1


def test_without_a_present_member_nothing_is_assigned() -> None:
    group = Group((TaskId(0, 0),), {"worker-0": Member("worker-0", absent=True)}, AssignmentPolicy())
    assert group.assigned().assignment == NO_ASSIGNMENT


@properties
@given(any_groups())
def test_caught_up_member_or_nearest_copy_is_active(group: Group) -> None:
    for task, placement in group.assigned().assignment.current.items():
        lags = {name: group.members[name].lags[task] for name in group.holders(task)}
        was = group.assignment.current.get(task)
        if group.compared_and_caught_up(task):
            if placement.active not in group.compared_and_caught_up(task):
                # One that is active does not move for a lag that may just swing about the limit.
                assert was is not None
                assert was.active == placement.active
                assert task not in group.members[was.active].unchecked
                assert lags[was.active] <= 2 * ACCEPTABLE_LAG
        elif lags:
            assert lags[placement.active] <= min(lags.values()) + ACCEPTABLE_LAG


@properties
@given(any_groups(), st.randoms(use_true_random=False))
def test_input_order_does_not_matter(group: Group, random: Random) -> None:
    expected = group.assigned().assignment
    shuffled_tasks, members = list(group.tasks), list(group.members.values())
    for items in (shuffled_tasks, members):
        random.shuffle(items)
    previous = Assignment(
        dict(reversed(group.assignment.current.items())), dict(reversed(group.assignment.target.items()))
    )
    members = [replace(member, lags=dict(reversed(member.lags.items()))) for member in members]
    outcome = assign(shuffled_tasks, members, previous, group.policy)
    assert outcome == expected
    assert list(outcome.current) == list(expected.current)


@properties
@given(any_groups())
def test_the_wire_message_carries_an_assignment_unchanged(group: Group) -> None:
    group = group.assigned()
    hosts = {name: HostInfo(name, 8080) for name in group.present}
    info = AssignmentInfo(Generation(1, 2), "fingerprint", hosts, group.assignment)
    assert AssignmentInfo.decode(info.encode()) == info


# Balance and movement -----------------------------------------------------------------------------------------


@properties
@given(any_groups(absent=False))
def test_actives_and_standbys_are_balanced_once_settled(group: Group) -> None:
    group = group.settled()
    assert group.assignment.settled
    for pick in (actives, standbys):
        *each, total = loads(group.assignment.current, group.names, pick)
        assert all(is_even(load, group.names) for load in each)
        assert is_even(total, group.names) or (pick is standbys and not can_be_even(group))


def can_be_even(group: Group) -> bool:
    """Whether the standbys' total can be even, given the actives: a task's active can't be its standby too."""
    options = []
    for ordinal in sorted({task.ordinal for task in group.tasks}):
        own = Counter(group.assignment.current[task].active for task in group.tasks if task.ordinal == ordinal)
        base, remainder = divmod(own.total() * group.standbys, len(group.names))
        eligible = [name for name in group.names if own.total() - own[name] > base]
        options.append(list(itertools.combinations(eligible, remainder)))
    return any(is_even(Counter(itertools.chain(*choice)), group.names) for choice in itertools.product(*options))


@properties
@given(any_groups(absent=False))
def test_any_state_settles_in_bounded_rounds(group: Group) -> None:
    """The bound is a round for each batch of warm-ups, and a few."""
    assert len(list(group.rounds())) <= group.bound()


@properties
@given(settled_groups())
def test_a_settled_assignment_is_a_fixpoint(group: Group) -> None:
    assert group.assigned().assignment == group.assignment


@properties
@given(any_groups())
def test_what_is_intended_is_a_fixpoint_from_any_state(group: Group) -> None:
    once = group.assigned()
    assert once.assigned().assignment.target == once.assignment.target
    assert once.all_caught_up().assigned().assignment.target == once.assignment.target


@properties
@given(settled_groups(least=2), st.data(), st.booleans())
def test_a_leaver_moves_only_its_own_actives_in_the_first_round(
    group: Group, data: st.DataObject, absent: bool
) -> None:
    leaver = data.draw(st.sampled_from(group.names))
    left = group.having(Member(leaver, absent=True)) if absent else group.without(leaver)
    for task, placement in left.assigned().assignment.current.items():
        was = group.assignment.current[task]
        assert placement.active == was.active or was.active == leaver
        assert placement.active in was.members or not was.standbys


@properties
@given(settled_groups(least=3, most=6, racks=st.none()), st.data())
def test_dropping_a_member_moves_only_what_balance_requires(group: Group, data: st.DataObject) -> None:
    leaver = data.draw(st.sampled_from(group.names))
    left = group.without(leaver)
    before, after = group.assignment.target, left.assigned().assignment.target
    held = {task: (placement.active,) for task, placement in before.items() if placement.active != leaver}
    assert sum(after[task].active != active for task, (active,) in held.items()) == min_moves(left, held, 1)

    held = {
        task: tuple(name for name in placement.standbys if name not in (leaver, after[task].active))
        for task, placement in before.items()
    }
    moves = sum(name not in after[task].standbys for task, names in held.items() for name in names)
    # A member that holds a task already can't have it twice, so a lost replica may push another one on.
    lost = sum(leaver in placement.members for placement in before.values())
    assert moves <= min_moves(left, held, left.standbys) + lost


def min_moves(group: Group, held: Mapping[TaskId, tuple[str, ...]], per_task: int) -> int:
    """How many replicas must move for balance, if any member could take any task: by trying everything."""
    options = []
    for ordinal in sorted({task.ordinal for task in group.tasks}):
        own = [task for task in group.tasks if task.ordinal == ordinal]
        has = Counter(name for task in own for name in held.get(task, ()))
        base, remainder = divmod(len(own) * per_task, len(group.names))
        options.append(
            [
                (extra, sum(max(0, has[name] - base - (name in extra)) for name in group.names))
                for extra in itertools.combinations(group.names, remainder)
            ]
        )
    return min(
        sum(moves for _, moves in choice)
        for choice in itertools.product(*options)
        if is_even(Counter(name for extra, _ in choice for name in extra), group.names)
    )


def is_even(load: Counter[str], names: list[str]) -> bool:
    counts = [load[name] for name in names]
    return max(counts) - min(counts) <= 1


@properties
@given(settled_groups(least=2), st.data())
def test_a_joiner_takes_over_only_what_it_is_to_have(group: Group, data: st.DataObject) -> None:
    joined = group.having(Member("joiner", rack=data.draw(racks))).settled()
    for ordinal_load in loads(joined.assignment.current, joined.names, actives):
        assert max(ordinal_load.values()) - min(ordinal_load.values()) <= 1
    moved = [
        task
        for task, placement in joined.assignment.current.items()
        if placement.active != group.assignment.current[task].active
    ]
    to_joiner = [task for task in moved if joined.assignment.current[task].active == "joiner"]
    assert len(moved) <= len(to_joiner) + len({task.ordinal for task in group.tasks})


# What a loss leaves behind ------------------------------------------------------------------------------------

many_small = st.lists(st.integers(1, 3), min_size=1, max_size=40)
few_large = st.lists(st.integers(1, 60), min_size=1, max_size=3)


@st.composite
def busy_groups(draw: st.DrawFn, racks: Callable[[int], str | None] = lambda i: None) -> Group:
    """Settled groups with many tasks, some after a member joined and one left."""
    sizes = draw(st.one_of(many_small, few_large))
    held = tuple(TaskId(ordinal, i) for ordinal, size in enumerate(sizes) for i in range(size))
    policy = AssignmentPolicy(draw(st.integers(1, 3)), ACCEPTABLE_LAG, 50)
    members = {f"worker-{i}": Member(f"worker-{i}", rack=racks(i)) for i in range(draw(st.integers(3, 8)))}
    group = Group(held, members, policy).settled()
    if draw(st.booleans()) and racks(0) is None:
        group = group.having(Member("another")).settled()
        group = group.without(draw(st.sampled_from(group.names))).settled()
    return group


def lost(group: Group, name: str) -> Group:
    """A member is away, and the others have decided."""
    return group.having(replace(group.members[name], lags={}, absent=True)).assigned()


def beyond_share(group: Group, sharers: int) -> int:
    """How many actives more than its share of them the member has that has most."""
    most = max(Counter(placement.active for placement in group.assignment.current.values()).values())
    return most - math.ceil(len(group.tasks) / sharers)


@properties
@given(busy_groups())
def test_after_a_loss_no_member_has_more_than_its_share_and_one(group: Group) -> None:
    for name in group.names:
        assert beyond_share(lost(group, name), len(group.names) - 1) <= 1


@properties
@given(busy_groups(), st.data())
def test_after_a_loss_while_another_is_away_no_member_has_more_than_its_share_and_two(
    group: Group, data: st.DataObject
) -> None:
    away, next_lost = data.draw(st.permutations(group.names))[:2]
    short = lost(lost(group, away).all_caught_up(), next_lost)
    assert beyond_share(short, len(group.names) - 2) <= 2


@properties
@given(busy_groups(), st.data())
def test_after_a_loss_while_a_joiner_warms_up_each_warm_up_counts_for_one_more(
    group: Group, data: st.DataObject
) -> None:
    """The joiner is to take over later, so the others share."""
    name = data.draw(st.sampled_from(group.names))
    policy = replace(group.policy, max_warmup_replicas=2)
    for warming in itertools.islice(replace(group, policy=policy).having(Member("joiner")).rounds(), 6):
        assert beyond_share(lost(warming, name), len(group.names) - 1) <= 1 + policy.max_warmup_replicas


def test_a_failover_leaves_room_for_tasks_without_a_choice() -> None:
    """The last two tasks have one other copy each, so the first two go elsewhere."""
    held = tuple(TaskId(0, i) for i in range(4))
    places = {task: Placement("a", ("b", "c") if task.partition < 2 else ("b",)) for task in held}
    members = {name: Member(name) for name in "abc"}
    group = Group(held, members, AssignmentPolicy(2, ACCEPTABLE_LAG), Assignment(places, places)).all_caught_up()
    current = lost(group, "a").assignment.current
    assert Counter(placement.active for placement in current.values()) == {"b": 2, "c": 2}


@properties
@given(busy_groups(racks=lambda i: f"rack-{i % 2}"))
def test_the_other_racks_share_a_loss(group: Group) -> None:
    if group.standbys > 1 or len(group.names) % 2:
        return
    pairs = Counter((goal.active, *goal.standbys) for goal in group.assignment.target.values())
    has = Counter(goal.active for goal in group.assignment.target.values())
    for (active, _), count in pairs.items():
        assert count <= math.ceil(has[active] / (len(group.names) // 2)) + 1


@properties
@given(busy_groups())
def test_a_busy_group_is_a_fixpoint(group: Group) -> None:
    assert group.assigned().assignment == group.assignment


def in_closed_pairs(count: int) -> Group:
    """Six members of which each two are all that hold their tasks, as earlier versions placed them."""
    held = tuple(TaskId(0, i) for i in range(count))
    places = {task: Placement(f"worker-{i % 6}", (f"worker-{i % 6 ^ 1}",)) for i, task in enumerate(held)}
    members = {name: Member(name) for name in names_of(6)}
    policy = AssignmentPolicy(1, ACCEPTABLE_LAG, 2)
    return Group(held, members, policy, Assignment(places, places)).all_caught_up()


def test_closed_pairs_are_opened_by_warm_ups() -> None:
    """The actives stay, and a standby is released once the one in its place is caught up."""
    paired = in_closed_pairs(30)
    for group in paired.rounds():
        assert sum(warm_ups(group, task) for task in group.tasks) <= group.policy.max_warmup_replicas
        for task, was in paired.assignment.current.items():
            assert group.assignment.current[task].active == was.active
            assert len(group.compared_and_caught_up(task)) > 1
    pairs = Counter((goal.active, *goal.standbys) for goal in group.assignment.current.values())
    assert set(pairs.values()) == {1}
    assert len(pairs) == 6 * 5


# Away and back -------------------------------------------------------------------------------------------------


@properties
@given(settled_groups(least=2), st.data(), lags)
def test_a_bounce_ends_where_it_began_and_builds_nothing(group: Group, data: st.DataObject, lag: int) -> None:
    bouncer = group.members[data.draw(st.sampled_from(group.names))]
    away = group.having(replace(bouncer, lags={}, absent=True))
    for _ in range(3):
        decided = away.assigned()
        for task, placement in decided.assignment.current.items():
            assert set(placement.members) <= away.holders(task) or not away.holders(task)
        away = decided.all_caught_up()
    back = away.having(replace(bouncer, lags=dict.fromkeys(bouncer.lags, lag))).settled()
    assert back.assignment == group.assignment
    assert back.members == group.members


@properties
@given(settled_groups(least=3), st.data())
def test_a_rolling_restart_ends_where_it_began(group: Group, data: st.DataObject) -> None:
    rolling = group
    for name in data.draw(st.permutations(group.names)):
        member = rolling.members[name]
        away = rolling.having(replace(member, lags={}, absent=True)).assigned().all_caught_up()
        rolling = away.having(member).assigned().all_caught_up()
    assert rolling.settled() == group


@properties
@given(any_groups())
def test_nothing_is_built_where_a_holder_is_expected_back(group: Group) -> None:
    decided = group.assigned()
    for task, goal in decided.assignment.target.items():
        if set(goal.members) <= set(group.present):
            continue
        held = set(group.assignment.current[task].members) if task in group.assignment.current else set()
        built = set(decided.assignment.current[task].members) - group.holders(task) - held
        assert not built or not group.holders(task)


# Warm-ups and release -----------------------------------------------------------------------------------------


@properties
@given(settled_groups(), st.integers(1, 3), racks)
def test_a_joiner_gets_no_active_before_it_is_caught_up(group: Group, count: int, rack: str | None) -> None:
    joiners = [f"joiner-{i}" for i in range(count)]
    group = group.having(*(Member(name, rack=rack) for name in joiners))
    for decided in group.rounds():
        for task, placement in decided.assignment.current.items():
            assert placement.active in decided.compared_and_caught_up(task)
    assert is_even(Counter(p.active for p in decided.assignment.current.values()), decided.names)


@properties
@given(any_groups(), st.integers(1, 4))
def test_no_warm_up_begins_beyond_max_warmup_replicas(group: Group, rounds: int) -> None:
    """From any state: more may be under way already, and these are not sent away."""
    for _ in range(rounds):
        decided = group.assigned()
        warming = {task: warm_ups(decided, task) for task in group.tasks}
        if sum(warming.values()) > group.policy.max_warmup_replicas:
            for task in (task for task, count in warming.items() if count):
                held = group.assignment.current[task].members if task in group.assignment.current else ()
                assert set(decided.assignment.current[task].standbys) <= {*held, *decided.presumed_caught_up(task)}
        group = decided.all_caught_up()


@properties
@given(settled_groups(), st.integers(1, 3), st.data())
def test_changing_group_stays_within_max_warmup_replicas(group: Group, joiners: int, data: st.DataObject) -> None:
    group = group.having(*(Member(f"joiner-{i}") for i in range(joiners)))
    if len(group.names) > joiners + 1 and data.draw(st.booleans()):
        group = group.without(data.draw(st.sampled_from(group.names)))
    for decided in group.rounds():
        assert sum(warm_ups(decided, task) for task in group.tasks) <= group.policy.max_warmup_replicas


@properties
@given(settled_groups(), st.integers(1, 3), st.lists(st.booleans(), min_size=30, max_size=30))
def test_unfinished_warm_ups_count_until_caught_up(group: Group, joiners: int, ready: list[bool]) -> None:
    group = group.having(*(Member(f"joiner-{i}") for i in range(joiners)))
    for is_ready in ready:
        group = group.assigned()
        assert sum(warm_ups(group, task) for task in group.tasks) <= group.policy.max_warmup_replicas
        if is_ready:
            group = group.all_caught_up()


def two_caught_up_of_five() -> Group:
    """The intended holder has nothing yet, and two others that are caught up are still wanted."""
    task = TaskId(0, 0)
    lags = {"worker-1": {task: 0}, "worker-2": {task: 0}}
    members = {name: Member(name, lags.get(name, {})) for name in names_of(5)}
    current = Placement("worker-0", ("worker-1", "worker-2"))
    placed = Assignment({task: current}, {task: Placement("worker-0", ())})
    return Group((task,), members, AssignmentPolicy(1, ACCEPTABLE_LAG, 1), placed)


@properties
@given(any_groups())
@example(two_caught_up_of_five())
def test_caught_up_replica_stays_until_others_are_caught_up(group: Group) -> None:
    for _ in range(3):
        decided = group.assigned()
        for task, was in group.assignment.current.items():
            holders = set(decided.assignment.current[task].members)
            if (set(was.members) & group.compared_and_caught_up(task)) - holders:
                assert len(holders & group.compared_and_caught_up(task)) >= group.policy.num_standby_replicas + 1
            if (set(was.members) & group.presumed_caught_up(task)) - holders:
                assert len(holders & group.presumed_caught_up(task)) >= group.policy.num_standby_replicas + 1
        group = decided.all_caught_up()


@properties
@given(settled_groups(least=2), st.data())
def test_unchecked_copies_release_nothing(group: Group, data: st.DataObject) -> None:
    """No warm-up is spent on a copy that may be worthless."""
    returner = group.members[data.draw(st.sampled_from(group.names))]
    without = group.without(returner.id).settled()
    unchecked = replace(returner, unchecked=frozenset(returner.lags))
    back = without.having(unchecked).assigned()
    for task, was in without.assignment.current.items():
        now, target = back.assignment.current[task], back.assignment.target[task]
        assert now.active == was.active
        assert set(was.members) <= set(now.members)
        # As many as it could have: it need not build them.
        assert returner.id in now.members or returner.id not in target.members or task not in returner.lags
    # They are of a log that is no more: the copies are rebuilt, and nothing that was served depends on them.
    rebuilt = back.having(replace(returner, lags=dict.fromkeys(returner.lags, 1 << 62))).assigned()
    for task, was in without.assignment.current.items():
        assert rebuilt.assignment.current[task].active == was.active
        assert set(was.members) <= set(rebuilt.assignment.current[task].members)


def test_active_stays_while_its_lag_is_near_the_limit() -> None:
    """An active that is more than twice the acceptable lag behind gives way."""
    task = TaskId(0, 0)
    placed = Assignment({task: Placement("a", ("b",))}, {task: Placement("a", ("b",))})
    policy = AssignmentPolicy(1, ACCEPTABLE_LAG, 2)
    for lag, active in [
        (ACCEPTABLE_LAG, "a"),
        (ACCEPTABLE_LAG + 1, "a"),
        (2 * ACCEPTABLE_LAG, "a"),
        (2 * ACCEPTABLE_LAG + 1, "b"),
    ]:
        members = [Member("a", {task: lag}), Member("b", {task: 0})]
        assert assign([task], members, placed, policy).current[task].active == active
    # It is not made active while its lag is beyond the limit.
    placed = Assignment({task: Placement("b", ("a",))}, {task: Placement("a", ("b",))})
    members = [Member("a", {task: ACCEPTABLE_LAG + 1}), Member("b", {task: 0})]
    assert assign([task], members, placed, policy).current[task].active == "b"


@properties
@given(any_groups(absent=False), st.data())
def test_the_nearest_copy_does_not_flap_while_lags_wobble(group: Group, data: st.DataObject) -> None:
    """Nobody is caught up; lags rise and fall by up to the acceptable lag."""
    base = {
        name: {task: 5 * ACCEPTABLE_LAG + lag % (9 * ACCEPTABLE_LAG) for task, lag in member.lags.items()}
        for name, member in group.members.items()
    }
    chosen: dict[TaskId, list[str]] = {task: [] for task in group.tasks}
    for _ in range(4):
        wobbling = {
            name: replace(
                member,
                lags={
                    task: lag + data.draw(st.integers(0, ACCEPTABLE_LAG // 2)) for task, lag in base[name].items()
                },
            )
            for name, member in group.members.items()
        }
        group = replace(group, members=wobbling).assigned()
        for task, placement in group.assignment.current.items():
            chosen[task].append(placement.active)
    # One that was not the nearest to begin with may be given up once.
    assert all(len(list(itertools.groupby(names))) <= 2 for names in chosen.values())
    assert all(len(set(names)) == len(list(itertools.groupby(names))) for names in chosen.values())


@pytest.mark.parametrize(
    ("standbys", "members", "change"),
    [(1, 4, "leaves"), (2, 3, "joins"), (3, 4, "joins"), (4, 6, "leaves"), (1, 6, "paired")],
)
def test_a_round_grows_linearly_with_one_subtopology(standbys: int, members: int, change: str) -> None:
    """Where few members have room, most tasks hold a replica there already: others pass theirs on."""

    def lines_of_a_round(partitions: int) -> int:
        tasks = tuple(TaskId(0, partition) for partition in range(partitions))
        group = Group(tasks, {name: Member(name) for name in names_of(members)}, AssignmentPolicy(standbys))
        group = group.assigned().all_caught_up()
        if change == "paired":
            return lines_run(in_closed_pairs(partitions).assigned)
        changed = group.without("worker-1") if change == "leaves" else group.having(Member("joiner"))
        return lines_run(changed.assigned)

    assert lines_of_a_round(400) < 5 * lines_of_a_round(100)


def lines_run(action: Callable[[], object]) -> int:
    """How many lines of Python an action runs, those of comprehensions included."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


# Racks ---------------------------------------------------------------------------------------------------------


@properties
@given(st.sampled_from([2, 3, 4, 6, 12]), st.integers(2, 4), st.integers(1, 3), st.booleans(), st.data())
def test_no_two_replicas_share_a_rack_where_all_divides_evenly(
    count: int, rack_count: int, standbys: int, later: bool, data: st.DataObject
) -> None:
    rack_count = max(size for size in range(1, rack_count + 1) if count % size == 0)
    names = data.draw(st.permutations(names_of(count)))
    racked = [Member(name, rack=f"rack-{i % rack_count}") for i, name in enumerate(names)]
    plain = {name: Member(name) for name in names}
    policy = AssignmentPolicy(min(standbys, rack_count - 1), ACCEPTABLE_LAG, 4)
    tasks = tuple(TaskId(ordinal, i) for ordinal in range(2) for i in range(12))
    group = Group(tasks, plain, policy)
    # Racks may become known after the group has settled without them.
    group = (group.settled() if later else group).having(*racked).settled()
    for placement in group.assignment.current.values():
        assert clashes(group, placement.members) == 0


@properties
@given(any_groups(absent=False))
def test_no_exchange_of_standbys_spreads_racks_better(group: Group) -> None:
    """The exchange is one within a subtopology."""
    target = group.assigned().assignment.target
    for (one, its), (other, theirs) in itertools.combinations(target.items(), 2):
        if one.ordinal != other.ordinal:
            continue
        clashing = clashes(group, its.members) + clashes(group, theirs.members)
        for mine, yours in itertools.product(its.standbys, theirs.standbys):
            if mine in theirs.members or yours in its.members:
                continue
            after = [{*its.members, yours} - {mine}, {*theirs.members, mine} - {yours}]
            assert sum(clashes(group, names) for names in after) >= clashing


@properties
@given(st.integers(2, 4), st.integers(1, 8), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.randoms())
def test_equal_machines_separate_standbys_from_actives(
    machines: int, processes: int, partitions: list[int], random: Random
) -> None:
    """All machines have as many processes."""
    names = random.sample(range(1_000), machines * processes)
    members = [Member(f"m{name}", rack=f"host-{i % machines}") for i, name in enumerate(names)]
    tasks = [TaskId(ordinal, partition) for ordinal, count in enumerate(partitions) for partition in range(count)]
    rack = {member.id: member.rack for member in members}
    for placement in assign(tasks, members, NO_ASSIGNMENT, AssignmentPolicy()).target.values():
        assert len({rack[name] for name in placement.members}) == 2


@properties
@given(settled_groups(racks=st.none()), st.sampled_from(["a", "b"]))
def test_one_rack_for_all_is_as_none(group: Group, rack: str) -> None:
    racked = {name: replace(member, rack=rack) for name, member in group.members.items()}
    assert replace(group, members=racked).assigned().assignment == group.assignment


def test_standby_moves_to_a_rack_that_appears() -> None:
    members = {name: Member(name, rack="a") for name in names_of(2)}
    tasks = tuple(TaskId(0, i) for i in range(4))
    group = Group(tasks, members, AssignmentPolicy(1, ACCEPTABLE_LAG, 2)).settled()
    group = group.having(*(Member(f"other-{i}", rack="b") for i in range(2))).settled()
    assert all(clashes(group, placement.members) == 0 for placement in group.assignment.current.values())


def test_unknown_previous_holders_keep_caught_up_copies() -> None:
    tasks = [TaskId(0, partition) for partition in range(12)]
    all_caught_up = dict.fromkeys(tasks, 0)
    members = [Member("a", all_caught_up), Member("b", all_caught_up), Member("c")]
    first = assign(tasks, members, NO_ASSIGNMENT, AssignmentPolicy(num_standby_replicas=1))
    assert any("c" in placement.members for placement in first.target.values())
    assert all({"a", "b"} <= set(placement.members) for placement in first.current.values())


# Members whose machines refuse their writes ------------------------------------------------------------------


@properties
@given(any_groups(), st.data())
def test_degraded_member_is_active_only_as_a_last_resort(group: Group, data: st.DataObject) -> None:
    """It gets no new task, and is active only where no healthy member is caught up."""
    group = group.having(
        *(replace(member, health=data.draw(st.sampled_from(MemberHealth))) for member in group.members.values())
    )
    fit = {name for name in group.present if group.members[name].health is MemberHealth.HEALTHY}
    decided = group.assigned().assignment.current
    for task, placement in decided.items():
        before = set(group.assignment.current[task].members) if task in group.assignment.current else set()
        assert set(placement.members) <= fit | before | group.holders(task) or not fit
        assert placement.active in fit or not fit & group.compared_and_caught_up(task)


@properties
@given(settled_groups(), st.sampled_from([MemberHealth.DEGRADED, MemberHealth.EVICTED]))
def test_joiner_with_a_full_disk_changes_nothing(group: Group, health: MemberHealth) -> None:
    """Another joiner warms up beside it."""
    full = group.having(Member("full", health=health)).assigned()
    assert full.assignment == group.assigned().assignment
    assert (
        full.having(Member("joiner")).settled().assignment == group.having(Member("joiner")).settled().assignment
    )


@properties
@given(settled_groups(), st.integers(1, 3), st.data())
def test_warm_ups_on_a_disk_that_filled_up_take_no_others_place(
    group: Group, joiners: int, data: st.DataObject
) -> None:
    group = group.having(Member("full")).assigned()
    begun = {task for task, placement in group.assignment.current.items() if "full" in placement.members}
    group = group.having(*(Member(f"joiner-{i}") for i in range(joiners)))
    stuck = Member("full", health=MemberHealth.DEGRADED)
    for _ in range(group.bound()):
        group = group.having(stuck).assigned().all_caught_up()
    assert {task for task, placement in group.assignment.current.items() if "full" in placement.members} <= begun
    given = {name for placement in group.assignment.current.values() for name in placement.members}
    placed = {name for placement in group.assignment.target.values() for name in placement.members}
    assert placed - {"full"} <= given


@properties
@given(settled_groups(least=2), st.data())
def test_a_degraded_member_keeps_its_place_until_it_is_evicted(group: Group, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(group.names))
    has = {task for task, placement in group.assignment.current.items() if name in placement.members}
    stuck = group.having(replace(group.members[name], health=MemberHealth.DEGRADED)).assigned()
    assert stuck.assignment.target == group.assignment.target
    for task, placement in stuck.assignment.current.items():
        assert set(placement.members) == set(group.assignment.current[task].members)
        assert placement.active != name or not group.compared_and_caught_up(task) - {name}
    off = stuck.having(replace(group.members[name], health=MemberHealth.EVICTED))
    for decided in off.rounds():
        for task in has:
            others = decided.compared_and_caught_up(task) - {name}
            released = name not in decided.assignment.current[task].members
            assert not released or len(others) > group.policy.num_standby_replicas
    if len(group.names) > group.policy.num_standby_replicas + 1:
        assert not any(name in placement.members for placement in decided.assignment.current.values())
        assert decided.assignment.settled


@properties
@given(any_groups())
def test_if_all_are_degraded_each_keeps_what_it_has(group: Group) -> None:
    """No copy is given up because everybody's disk is full."""
    stuck = group.having(*(replace(m, health=MemberHealth.EVICTED) for m in group.members.values()))
    decided, as_if_healthy = stuck.assigned().assignment, group.assigned().assignment
    assert decided.target == as_if_healthy.target
    for task, placement in decided.current.items():
        assert placement.active == as_if_healthy.current[task].active


@properties
@given(settled_groups(), st.data())
def test_a_degraded_member_that_returns_keeps_its_copies(group: Group, data: st.DataObject) -> None:
    """A full disk may keep it from renewing its lease too; its copies may be needed as soon as it is back."""
    name = data.draw(st.sampled_from(group.present))
    held = {task for task, placement in group.assignment.current.items() if name in placement.members}
    copies = group.members[name].lags
    away = replace(group, members={**group.members, name: replace(group.members[name], absent=True)}).assigned()
    back = replace(group.members[name], lags=copies, health=MemberHealth.DEGRADED)
    returned = replace(away, members={**away.members, name: back}).assigned()
    current = returned.assignment.current
    assert {task for task, placement in current.items() if name in placement.members} >= held


def test_a_failover_moves_no_other_active() -> None:
    """Whatever else was about to move waits for the next round."""
    one, two = TaskId(0, 0), TaskId(0, 1)
    members = {name: Member(name, {one: 0, two: 0}) for name in ("a", "b", "c")}
    moving = Assignment(
        {one: Placement("a", ("b",)), two: Placement("c", ("a",))},
        {one: Placement("b", ("a",)), two: Placement("c", ("a",))},
    )
    group = Group((one, two), members, AssignmentPolicy(1, ACCEPTABLE_LAG), moving)
    assert group.assigned().assignment.current[one].active == "b"
    lost = replace(group, members={**members, "c": replace(members["c"], absent=True)}).assigned()
    assert lost.assignment.current[two].active != "c"
    assert lost.assignment.current[one].active == "a"
    assert lost.assigned().assignment.current[one].active == "b"
