"""The assignor: who should hold which task. A pure function, in the manner of KIP-441.

Two things are worked out each round. The *intended* placement is balanced and as close to the one before as
balance allows. The *actual* one serves reads now: where the intended active is not caught up, a member that
is stays active while the intended one warms up, and a caught-up replica is released only once enough others
are caught up. Rounds repeat until the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.tasks import TaskId


@dataclass(frozen=True)
class Member:
    """A member as the assignor sees it.

    ``lags`` holds, in records, how far behind its copy of a task is; a task it has no copy of is missing.
    An absent member is expected back: it keeps its intended place, and gets nothing meanwhile.
    """

    id: str
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    absent: bool = False


@dataclass(frozen=True)
class Placement:
    """Who holds one task; standbys are in order of preference."""

    active: str
    standbys: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Every holder."""
        return (self.active, *self.standbys)


@dataclass(frozen=True)
class AssignmentPolicy:
    """The numbers that an assignment follows."""

    num_standby_replicas: int = 1
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2


@dataclass(frozen=True)
class Assignment:
    """The outcome of a round: what to do now, and what it leads to."""

    actual: Mapping[TaskId, Placement]
    intended: Mapping[TaskId, Placement]

    @property
    def settled(self) -> bool:
        """Whether another round would have nothing left to do."""
        return all(
            (placement.active, set(placement.standbys))
            == (self.intended[task].active, set(self.intended[task].standbys))
            for task, placement in self.actual.items()
        )


NO_ASSIGNMENT = Assignment({}, {})


def assign(
    tasks: Iterable[TaskId], members: Iterable[Member], previous: Assignment, policy: AssignmentPolicy
) -> Assignment:
    """One round over all tasks; with no present member the outcome is empty."""
    ordered = sorted(tasks)
    everyone = {member.id: member for member in members}
    present = {name: member for name, member in everyone.items() if not member.absent}
    if not present:
        return NO_ASSIGNMENT
    intended = _intend(ordered, everyone, previous.intended, policy)
    return Assignment(_serve(ordered, present, intended, previous.actual, policy), intended)


def _intend(
    tasks: list[TaskId],
    members: Mapping[str, Member],
    before: Mapping[TaskId, Placement],
    policy: AssignmentPolicy,
) -> dict[TaskId, Placement]:
    """Balanced over the members, task by task as near to ``before`` as balance allows."""
    actives: dict[TaskId, str] = {}
    load = dict.fromkeys(sorted(members), 0)
    for group in _by_ordinal(tasks):
        held = {task: before[task].active for task in group if task in before}
        actives.update(_deal(group, members, held, load, {}))
    standbys: dict[TaskId, list[str]] = {task: [] for task in tasks}
    standby_load = dict.fromkeys(sorted(members), 0)
    for rank in range(min(policy.num_standby_replicas, len(members) - 1)):
        for group in _by_ordinal(tasks):
            held = {
                task: before[task].standbys[rank]
                for task in group
                if task in before and rank < len(before[task].standbys)
            }
            taken = {task: {actives[task], *standbys[task]} for task in group}
            for task, name in _deal(group, members, held, standby_load, taken).items():
                standbys[task].append(name)
    return {task: Placement(actives[task], tuple(standbys[task])) for task in tasks}


def _deal(
    group: list[TaskId],
    members: Mapping[str, Member],
    held: Mapping[TaskId, str],
    load: dict[str, int],
    taken: Mapping[TaskId, set[str]],
) -> dict[TaskId, str]:
    """Give each task of a sub-topology one member, none more than one task ahead of another.

    ``load`` counts what members have from other sub-topologies, and is brought up to date: those with the
    least get the odd tasks. ``taken`` names the members that a task must not get.
    """
    quota = _quotas(group, members, held, load)
    dealt: dict[TaskId, str] = {}
    room = dict(quota)
    for task in group:
        name = held.get(task)
        if name is not None and room.get(name, 0) > 0 and name not in taken.get(task, ()):
            dealt[task] = name
            room[name] -= 1
    for task in group:
        if task not in dealt:
            _place(task, dealt, room, members, taken)
    for name in dealt.values():
        load[name] += 1
    return dealt


def _quotas(
    group: list[TaskId], members: Mapping[str, Member], held: Mapping[TaskId, str], load: Mapping[str, int]
) -> dict[str, int]:
    share, odd = divmod(len(group), len(members))
    has = dict.fromkeys(members, 0)
    for name in held.values():
        if name in has:
            has[name] += 1
    in_turn = sorted(members, key=lambda name: (load[name], -has[name], name))
    return {name: share + (place < odd) for place, name in enumerate(in_turn)}


def _place(
    task: TaskId,
    dealt: dict[TaskId, str],
    room: dict[str, int],
    members: Mapping[str, Member],
    taken: Mapping[TaskId, set[str]],
) -> None:
    """Give a task to a member with room, nearest to caught up first; swap with another task if need be."""
    refused = taken.get(task, set())

    def distance(name: str) -> tuple[float, int, str]:
        return (members[name].lags.get(task, float("inf")), -room[name], name)

    fitting = [name for name, free in room.items() if free > 0 and name not in refused]
    if fitting:
        chosen = min(fitting, key=distance)
        room[chosen] -= 1
        dealt[task] = chosen
        return
    # Everyone with room already has this task: let another member take it, and give its task away.
    for other, name in sorted(dealt.items()):
        if name in refused:
            continue
        for free in sorted(n for n, left in room.items() if left > 0):
            if free not in taken.get(other, ()):
                dealt[other], dealt[task] = free, name
                room[free] -= 1
                return
    spare = min((n for n in members if n not in refused), key=distance)
    room[spare] -= 1
    dealt[task] = spare


def _serve(
    tasks: list[TaskId],
    present: Mapping[str, Member],
    intended: Mapping[TaskId, Placement],
    before: Mapping[TaskId, Placement],
    policy: AssignmentPolicy,
) -> dict[TaskId, Placement]:
    """What to do now on the way to what is intended, among the members that are there."""
    serving = dict.fromkeys(present, 0)
    warmups = policy.max_warmup_replicas
    actual: dict[TaskId, Placement] = {}
    for task in tasks:
        goal = intended[task]
        near = {
            name
            for name, member in present.items()
            if member.lags.get(task, float("inf")) <= policy.acceptable_recovery_lag
        }
        active = _active_now(task, goal, present, near, before.get(task), serving, policy)
        serving[active] += 1
        wanted = [name for name in goal.members if name in present and name != active]
        had = before[task].members if task in before else ()
        replicas = [name for name in wanted if name in had or name in near]
        # An absent holder is expected back, so it counts as one of the replicas.
        missing = policy.num_standby_replicas - len(replicas)
        missing -= sum(name not in present for name in goal.members)
        for name in wanted:
            if name in replicas:
                continue
            if missing > 0:
                missing -= 1
            elif warmups > 0:
                warmups -= 1
            else:
                continue
            replicas.append(name)
        enough = sum(name in near for name in (active, *replicas)) > policy.num_standby_replicas
        for name in had:
            if not enough and name in present and name in near and name not in (active, *replicas):
                replicas.append(name)
                enough = sum(n in near for n in (active, *replicas)) > policy.num_standby_replicas
        actual[task] = Placement(active, tuple(replicas))
    return actual


def _active_now(
    task: TaskId,
    goal: Placement,
    present: Mapping[str, Member],
    near: set[str],
    before: Placement | None,
    serving: Mapping[str, int],
    policy: AssignmentPolicy,
) -> str:
    if goal.active in near:
        return goal.active
    if near:
        if before is not None and before.active in near:
            return before.active
        return min(near, key=lambda name: (name not in goal.members, serving[name], name))
    # Nobody is caught up: the one that is nearest, else whoever is meant to have it.
    copies = {name: member.lags[task] for name, member in present.items() if task in member.lags}
    if copies:
        least = min(copies.values())
        if before is not None and copies.get(before.active, least + policy.acceptable_recovery_lag + 1) <= (
            least + policy.acceptable_recovery_lag
        ):
            return before.active
        return min(copies, key=lambda name: (copies[name], name != goal.active, name))
    if goal.active in present:
        return goal.active
    return min(present, key=lambda name: (name not in goal.members, serving[name], name))


def _by_ordinal(tasks: list[TaskId]) -> list[list[TaskId]]:
    groups: dict[int, list[TaskId]] = {}
    for task in tasks:
        groups.setdefault(task.ordinal, []).append(task)
    return list(groups.values())
