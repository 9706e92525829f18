"""Shares: how many replicas of each sub-topology every member gets; which ones is decided afterwards."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from forebay.tasks import TaskId
from forebay_worker.group.placement import Copies, Member


@dataclass(frozen=True)
class Deal:
    """Replicas to give out, ``per_task`` of each task: the actives, or the standbys.

    ``held`` lists the members that have them already, ``taken`` those that must not get a task, ``racks`` the
    members' racks, as far as they matter.
    """

    per_task: int
    held: Mapping[TaskId, tuple[str, ...]]
    taken: Mapping[TaskId, tuple[str, ...]]
    racks: Mapping[str, str]
    copies: Copies

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
class Share:
    """How many replicas of one sub-topology each member gets: ``base``, and one more if in ``extra``.

    There are ``odd`` extras. ``keen`` members hold more than ``base``, so an extra saves a move; ``able`` ones can
    hold one more on distinct tasks; ``fitness`` ranks members. ``rack_room`` is how many more replicas a rack can
    take without two of one task.
    """

    tasks: list[TaskId]
    racks: Mapping[str, str]
    base: int
    odd: int
    keen: set[str]
    able: set[str]
    fitness: Mapping[str, int]
    rack_room: dict[str, int]
    extra: set[str] = field(default_factory=set)

    @property
    def takers(self) -> set[str]:
        """The members that could get one more."""
        return self.able - self.extra

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


def share_out(tasks: list[TaskId], members: Mapping[str, Member], deal: Deal) -> list[Share]:
    """Every sub-topology's shares, balanced in each and in total, as close to what is held as that allows."""
    groups = [list(group) for _, group in itertools.groupby(tasks, key=lambda task: task.ordinal)]
    shares = [_share(group, members, deal) for group in groups]
    load = _keep_extras(shares, members)
    _give_up_extras(shares, load)
    for share in shares:
        _give_extras(share, members, load)
    _even_out(shares, load)
    _part_racks(shares, load)
    return shares


def _share(group: list[TaskId], members: Mapping[str, Member], deal: Deal) -> Share:
    base, odd = divmod(len(group) * deal.per_task, len(members))
    has = Counter(name for task in group for name in deal.held.get(task, ()))
    taken = Counter(name for task in group for name in deal.taken.get(task, ()))
    rack_room = dict.fromkeys(deal.racks.values(), len(group))
    for name, rack in deal.racks.items():
        rack_room[rack] -= base + taken[name]
    able = {name for name in members if len(group) - taken[name] > base}
    keen = {name for name in able if has[name] > base}
    return Share(group, deal.racks, base, odd, keen, able, _fitness(group, deal), rack_room)


def _fitness(group: list[TaskId], deal: Deal) -> Counter[str]:
    """How many copies members have of tasks that lack a replica; -1 if they hold all of these."""
    lacking = [task for task in group if len(deal.held.get(task, ())) < deal.per_task]
    refused = [deal.refused(task, deal.held.get(task, ())) for task in lacking]
    fitness: Counter[str] = Counter()
    for task, names in zip(lacking, refused, strict=True):
        fitness.update(deal.copies[task].keys() - names)
    if refused:
        fitness.subtract(set.intersection(*refused))
    return fitness


def _keep_extras(shares: list[Share], members: Mapping[str, Member]) -> Counter[str]:
    """Let members keep the extras they have; returns how many each has."""
    load = Counter(dict.fromkeys(members, 0))
    for share in shares:
        for name in sorted(share.keen, key=lambda name: (load[name], name))[: share.odd]:
            load[name] += 1
            share.grant(name)
    return load


def _give_up_extras(shares: list[Share], load: Counter[str]) -> None:
    """Take from members what exceeds their part of the total, about equally from each sub-topology.

    A joiner can get only one extra of a sub-topology, so it matters that they come from many.
    """
    least, odd = divmod(sum(share.odd for share in shares), len(load))
    for name in sorted(load):
        limit = least + (load[name] > least and odd > 0)
        odd -= limit > least
        if load[name] > limit:
            held = [share for share in shares if name in share.extra]
            for share in sorted(held, key=lambda share: share.odd - len(share.extra))[: load[name] - limit]:
                load[name] -= 1
                share.revoke(name)


def _give_extras(share: Share, members: Mapping[str, Member], load: Counter[str]) -> None:
    """Give the remaining extras to the members with the fewest, where racks have room if possible."""

    def rank(name: str) -> tuple[int, bool, bool, int, str]:
        return (load[name], name not in share.keen, members[name].absent, -share.fitness[name], name)

    in_turn = sorted(share.takers, key=rank) if len(share.extra) < share.odd else []
    for level in [list(level) for _, level in itertools.groupby(in_turn, key=load.__getitem__)]:
        for strict in (True, False):
            for name in level:
                free = len(share.extra) < share.odd and name not in share.extra
                if free and (share.has_rack_room(name) or not strict):
                    load[name] += 1
                    share.grant(name)


def _even_out(shares: list[Share], load: Counter[str]) -> None:
    """Pass extras on until no member has two more than another in total."""
    least = load.total() // len(load)
    surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load, key=lambda name: (load[name], name)):
        while load[name] < least and _relieve(shares, load, name, least + 1):
            surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load):
        if surplus and load[name] == least and _relieve(shares, load, name, least + 2):
            surplus -= 1


def _relieve(shares: list[Share], load: Counter[str], taker: str, high: int) -> bool:
    """Pass an extra to ``taker``, if need be via others, from a member with ``high`` or more."""
    chain = _chain(shares, load, taker, high, moving=False) or _chain(shares, load, taker, high, moving=True)
    for share, giver, receiver in chain:
        share.shift(giver, receiver)
        load[giver] -= 1
        load[receiver] += 1
    return bool(chain)


def _chain(
    shares: list[Share], load: Counter[str], taker: str, high: int, *, moving: bool
) -> list[tuple[Share, str, str]]:
    """The shortest chain of hand-overs that ends at ``taker``; unless ``moving``, of extras without a holder."""
    came: dict[str, tuple[Share, str, str] | None] = {taker: None}
    queue, unseen = deque([taker]), list(shares)
    while queue:
        receiver = queue.popleft()
        for share in [share for share in unseen if receiver in share.takers]:
            unseen.remove(share)
            givers = share.extra if moving or receiver in share.keen else share.extra - share.keen
            for giver in sorted(givers - came.keys(), key=lambda name: (-load[name], name)):
                came[giver] = (share, giver, receiver)
                if load[giver] >= high:
                    return list(_unwound(came, giver))
                queue.append(giver)
    return []


def _unwound(came: Mapping[str, tuple[Share, str, str] | None], giver: str) -> Iterator[tuple[Share, str, str]]:
    while (step := came[giver]) is not None:
        yield step
        giver = step[2]


def _part_racks(shares: list[Share], load: Counter[str]) -> None:
    """Pass extras on if a rack has more of a sub-topology than it can hold without two of one task."""
    for share in shares:
        for rack in sorted(rack for rack, room in share.rack_room.items() if room < 0):
            while share.rack_room[rack] < 0 and _leave_rack(share, rack, shares, load):
                pass


def _leave_rack(share: Share, rack: str, shares: list[Share], load: Counter[str]) -> bool:
    """Pass one extra on to another rack so that the totals stay balanced; False if that is impossible."""
    givers = sorted(name for name in share.extra if share.racks.get(name) == rack)
    takers = sorted(name for name in share.takers if share.has_rack_room(name))
    by_load = {load[name]: name for name in reversed(takers)}
    for giver in givers:
        taker = by_load.get(load[giver] - 1)
        if taker is not None:
            share.shift(giver, taker)
            load[giver], load[taker] = load[taker], load[giver]
            return True
    for other in shares:
        if other is not share and other.rack_room[rack] > 0:
            back = next((name for name in takers if name in other.extra), None)
            forth = next((name for name in givers if name in other.takers), None)
            if back is not None and forth is not None:
                share.shift(forth, back)
                other.shift(back, forth)
                return True
    return False
