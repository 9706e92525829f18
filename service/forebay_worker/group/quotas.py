"""Quotas: how many replicas of each sub-topology every member gets; which ones is decided afterwards."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from forebay.task_ids import TaskId
from forebay_worker.group.placement import Copies, Member


@dataclass(frozen=True)
class Demand:
    """Replicas to give out, ``per_task`` of each task: the actives, or the standbys.

    ``held`` lists the members that have them already, ``taken`` those that must not get a task, ``racks`` the
    members' racks, as far as they matter.
    """

    per_task: int
    held: Mapping[TaskId, tuple[str, ...]]
    taken: Mapping[TaskId, tuple[str, ...]]
    racks: Mapping[str, str]
    copies: Copies

    def active(self, task: TaskId) -> str:
        """Where a task's active is, once these are given out."""
        return self.taken[task][0]

    def refused(self, task: TaskId, placed: Iterable[str]) -> set[str]:
        """The members that a task has already."""
        return {*self.taken.get(task, ()), *placed}

    def racks_of(self, names: Iterable[str]) -> set[str]:
        """The known racks of some members."""
        return {self.racks[name] for name in names if name in self.racks}

    def clashes(self, task: TaskId, placed: Collection[str]) -> int:
        """How many replicas of a task share a rack with an earlier one."""
        known = [self.racks[name] for name in (*self.taken.get(task, ()), *placed) if name in self.racks]
        return len(known) - len(set(known))


@dataclass
class Quota:
    """How many replicas of one sub-topology each member gets: ``base``, and one more if in ``extra``.

    There are ``remainder`` extras. ``prefers_extra`` members hold more than ``base``, so an extra saves a move;
    ``eligible`` ones can hold one more on distinct tasks; ``fitness`` ranks members. ``rack_room`` is how many
    more replicas a rack can take without two of one task.
    """

    tasks: list[TaskId]
    racks: Mapping[str, str]
    base: int
    remainder: int
    prefers_extra: set[str]
    eligible: set[str]
    fitness: Mapping[str, int]
    rack_room: dict[str, int]
    extra: set[str] = field(default_factory=set)

    @property
    def takers(self) -> set[str]:
        """The members that could get one more."""
        return self.eligible - self.extra

    def has_rack_room(self, name: str) -> bool:
        """Whether one more replica on this member can avoid sharing a rack with another of its task."""
        return name not in self.racks or self.rack_room[self.racks[name]] > 0

    def grant(self, name: str) -> None:
        """Give a member an extra."""
        self.extra.add(name)
        if name in self.racks:
            self.rack_room[self.racks[name]] -= 1

    def revoke(self, name: str) -> None:
        """Take an extra away."""
        self.extra.remove(name)
        if name in self.racks:
            self.rack_room[self.racks[name]] += 1

    def shift(self, giver: str, taker: str) -> None:
        """Pass an extra on."""
        self.revoke(giver)
        self.grant(taker)


def plan_quotas(tasks: list[TaskId], members: Mapping[str, Member], demand: Demand) -> list[Quota]:
    """Every sub-topology's shares, balanced in each and in total, as close to what is held as that allows."""
    groups = [list(group) for _, group in itertools.groupby(tasks, key=lambda task: task.ordinal)]
    quotas = [_quota(group, members, demand) for group in groups]
    load = _keep_extras(quotas, members)
    _give_up_extras(quotas, load)
    for quota in quotas:
        _give_extras(quota, members, load)
    _even_out(quotas, load)
    _part_racks(quotas, load)
    return quotas


def _quota(group: list[TaskId], members: Mapping[str, Member], demand: Demand) -> Quota:
    base, remainder = divmod(len(group) * demand.per_task, len(members))
    has = Counter(name for task in group for name in demand.held.get(task, ()))
    taken = Counter(name for task in group for name in demand.taken.get(task, ()))
    rack_room = dict.fromkeys(demand.racks.values(), len(group))
    for name, rack in demand.racks.items():
        rack_room[rack] -= base + taken[name]
    eligible = {name for name in members if len(group) - taken[name] > base}
    prefers_extra = {name for name in eligible if has[name] > base}
    return Quota(group, demand.racks, base, remainder, prefers_extra, eligible, _fitness(group, demand), rack_room)


def _fitness(group: list[TaskId], demand: Demand) -> Counter[str]:
    """How many copies members have of tasks that lack a replica; -1 if they hold all of these."""
    lacking = [task for task in group if len(demand.held.get(task, ())) < demand.per_task]
    refused = [demand.refused(task, demand.held.get(task, ())) for task in lacking]
    fitness: Counter[str] = Counter()
    for task, names in zip(lacking, refused, strict=True):
        fitness.update(demand.copies[task].keys() - names)
    if refused:
        fitness.subtract(set.intersection(*refused))
    return fitness


def _keep_extras(quotas: list[Quota], members: Mapping[str, Member]) -> Counter[str]:
    """Let members keep the extras they have; returns how many each has."""
    load = Counter(dict.fromkeys(members, 0))
    for quota in quotas:
        for name in sorted(quota.prefers_extra, key=lambda name: (load[name], name))[: quota.remainder]:
            load[name] += 1
            quota.grant(name)
    return load


def _give_up_extras(quotas: list[Quota], load: Counter[str]) -> None:
    """Take from members what exceeds their part of the total, about equally from each sub-topology.

    A joiner can get only one extra of a sub-topology, so it matters that they come from many.
    """
    least, remainder = divmod(sum(quota.remainder for quota in quotas), len(load))
    for name in sorted(load):
        limit = least + (load[name] > least and remainder > 0)
        remainder -= limit > least
        if load[name] > limit:
            held = [quota for quota in quotas if name in quota.extra]
            for quota in sorted(held, key=lambda quota: quota.remainder - len(quota.extra))[: load[name] - limit]:
                load[name] -= 1
                quota.revoke(name)


def _give_extras(quota: Quota, members: Mapping[str, Member], load: Counter[str]) -> None:
    """Give the remaining extras to the members with the fewest, where racks have room if possible."""

    def rank(name: str) -> tuple[int, bool, bool, int, str]:
        return (load[name], name not in quota.prefers_extra, members[name].absent, -quota.fitness[name], name)

    in_turn = sorted(quota.takers, key=rank) if len(quota.extra) < quota.remainder else []
    for level in [list(level) for _, level in itertools.groupby(in_turn, key=load.__getitem__)]:
        for strict in (True, False):
            for name in level:
                free = len(quota.extra) < quota.remainder and name not in quota.extra
                if free and (quota.has_rack_room(name) or not strict):
                    load[name] += 1
                    quota.grant(name)


def _even_out(quotas: list[Quota], load: Counter[str]) -> None:
    """Pass extras on until no member has two more than another in total."""
    least = load.total() // len(load)
    surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load, key=lambda name: (load[name], name)):
        while load[name] < least and _relieve(quotas, load, name, least + 1):
            surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load):
        if surplus and load[name] == least and _relieve(quotas, load, name, least + 2):
            surplus -= 1


def _relieve(quotas: list[Quota], load: Counter[str], taker: str, high: int) -> bool:
    """Pass an extra to ``taker``, if need be via others, from a member with ``high`` or more."""
    chain = _chain(quotas, load, taker, high, moving=False) or _chain(quotas, load, taker, high, moving=True)
    for quota, giver, receiver in chain:
        quota.shift(giver, receiver)
        load[giver] -= 1
        load[receiver] += 1
    return bool(chain)


def _chain(
    quotas: list[Quota], load: Counter[str], taker: str, high: int, *, moving: bool
) -> list[tuple[Quota, str, str]]:
    """The shortest chain of hand-overs that ends at ``taker``; unless ``moving``, of extras without a holder."""
    handed_over: dict[str, tuple[Quota, str, str] | None] = {taker: None}
    queue, unseen = deque([taker]), list(quotas)
    while queue:
        receiver = queue.popleft()
        for quota in [quota for quota in unseen if receiver in quota.takers]:
            unseen.remove(quota)
            givers = (
                quota.extra if moving or receiver in quota.prefers_extra else quota.extra - quota.prefers_extra
            )
            for giver in sorted(givers - handed_over.keys(), key=lambda name: (-load[name], name)):
                handed_over[giver] = (quota, giver, receiver)
                if load[giver] >= high:
                    return list(_unwound(handed_over, giver))
                queue.append(giver)
    return []


def _unwound(
    handed_over: Mapping[str, tuple[Quota, str, str] | None], giver: str
) -> Iterator[tuple[Quota, str, str]]:
    while (step := handed_over[giver]) is not None:
        yield step
        giver = step[2]


def _part_racks(quotas: list[Quota], load: Counter[str]) -> None:
    """Pass extras on if a rack has more of a sub-topology than it can hold without two of one task."""
    for quota in quotas:
        for rack in sorted(rack for rack, room in quota.rack_room.items() if room < 0):
            while quota.rack_room[rack] < 0 and _leave_rack(quota, rack, quotas, load):
                pass


def _leave_rack(quota: Quota, rack: str, quotas: list[Quota], load: Counter[str]) -> bool:
    """Pass one extra on to another rack so that the totals stay balanced; False if that is impossible."""
    givers = sorted(name for name in quota.extra if quota.racks.get(name) == rack)
    takers = sorted(name for name in quota.takers if quota.has_rack_room(name))
    by_load = {load[name]: name for name in reversed(takers)}
    for giver in givers:
        taker = by_load.get(load[giver] - 1)
        if taker is not None:
            quota.shift(giver, taker)
            load[giver], load[taker] = load[taker], load[giver]
            return True
    for other in quotas:
        if other is not quota and other.rack_room[rack] > 0:
            back = next((name for name in takers if name in other.extra), None)
            forth = next((name for name in givers if name in other.takers), None)
            if back is not None and forth is not None:
                quota.shift(forth, back)
                other.shift(back, forth)
                return True
    return False
