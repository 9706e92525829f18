"""The intended placement: balanced over the members, as near to the one before as balance and racks allow.

It depends on the members alone, absent ones included, and is its own fixpoint.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from forebay.tasks import TaskId
from forebay_worker.group.placement import AssignmentPolicy, Copies, Member, Placement


@dataclass(frozen=True)
class _Deal:
    """Replicas to give out, ``per_task`` of each task: the actives, or the standbys.

    ``held`` says who has them already, ``taken`` whom a task must not get, ``racks`` where members are, as far
    as that matters.
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
        """How many replicas of a task share a rack with one before them."""
        known = [self.racks[name] for name in (*self.taken.get(task, ()), *placed) if name in self.racks]
        return len(known) - len(set(known))


@dataclass
class _Share:
    """How many replicas of one sub-topology each member gets: ``base``, and one more if in ``extra``.

    There are ``odd`` extras. ``keen`` members hold more than ``base``, so an extra saves a move; ``able`` ones
    can hold one more on distinct tasks; ``fitness`` says who should come first.
    ``rack_room`` is how many more replicas a rack can take without two of one task.
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
        """Whether one more replica on this member need not share a rack with another of its task."""
        return name not in self.racks or self.rack_room[self.racks[name]] > 0

    def grant(self, name: str) -> None:
        """Give a member an extra."""
        self.extra.add(name)
        if name in self.racks:
            self.rack_room[self.racks[name]] -= 1

    def shift(self, giver: str, taker: str) -> None:
        """Hand an extra on."""
        self.extra.remove(giver)
        if giver in self.racks:
            self.rack_room[self.racks[giver]] += 1
        self.grant(taker)


def intend(
    tasks: list[TaskId],
    members: Mapping[str, Member],
    copies: Copies,
    before: Mapping[TaskId, Placement],
    policy: AssignmentPolicy,
) -> dict[TaskId, Placement]:
    """Balanced over the members, task by task as near to ``before`` as balance and racks allow."""
    before = {task: before[task] for task in tasks if task in before}
    had: dict[TaskId, tuple[str, ...]]
    had = {task: (place.active,) for task, place in before.items() if place.active in members}
    actives = _dealt(tasks, members, _Deal(1, had, {}, {}, copies))
    per_task = min(policy.num_standby_replicas, len(members) - 1)
    had = {
        task: tuple(
            name for name in dict.fromkeys(place.standbys) if name in members and name not in actives[task]
        )[:per_task]
        for task, place in before.items()
    }
    racks = {member.id: member.rack for member in members.values() if member.rack is not None}
    standbys = _dealt(tasks, members, _Deal(per_task, had, actives, racks, copies))
    return {task: Placement(actives[task][0], standbys[task]) for task in tasks}


def _dealt(tasks: list[TaskId], members: Mapping[str, Member], deal: _Deal) -> dict[TaskId, tuple[str, ...]]:
    """Who gets each task's replicas: first how many each member gets, then which."""
    groups = [list(group) for _, group in itertools.groupby(tasks, key=lambda task: task.ordinal)]
    shares = [_share(group, members, deal) for group in groups]
    load = _keep_extras(shares, members)
    for share in shares:
        _give_extras(share, members, load)
    _even_out(shares, load)
    _part_racks(shares, load)
    return {task: names for share in shares for task, names in _fill(share, members, deal).items()}


def _share(group: list[TaskId], members: Mapping[str, Member], deal: _Deal) -> _Share:
    base, odd = divmod(len(group) * deal.per_task, len(members))
    has = Counter(name for task in group for name in deal.held.get(task, ()))
    taken = Counter(name for task in group for name in deal.taken.get(task, ()))
    rack_room = dict.fromkeys(deal.racks.values(), len(group))
    for name, rack in deal.racks.items():
        rack_room[rack] -= base + taken[name]
    able = {name for name in members if len(group) - taken[name] > base}
    keen = {name for name in able if has[name] > base}
    return _Share(group, deal.racks, base, odd, keen, able, _fitness(group, deal), rack_room)


def _fitness(group: list[TaskId], deal: _Deal) -> Counter[str]:
    """How many copies members have of tasks that lack a replica; -1 where they hold all of these."""
    lacking = [task for task in group if len(deal.held.get(task, ())) < deal.per_task]
    refused = [deal.refused(task, deal.held.get(task, ())) for task in lacking]
    fitness: Counter[str] = Counter()
    for task, names in zip(lacking, refused, strict=True):
        fitness.update(deal.copies[task].keys() - names)
    if refused:
        fitness.subtract(set.intersection(*refused))
    return fitness


def _keep_extras(shares: list[_Share], members: Mapping[str, Member]) -> Counter[str]:
    """Let members keep the extras they have, as far as the total allows; returns how many each has."""
    load = Counter(dict.fromkeys(members, 0))
    least, odd = divmod(sum(share.odd for share in shares), len(members))
    for share in shares:
        for name in sorted(share.keen, key=lambda name: (load[name], name)):
            if len(share.extra) == share.odd:
                break
            if load[name] < least or (load[name] == least and odd > 0):
                odd -= load[name] == least
                load[name] += 1
                share.grant(name)
    return load


def _give_extras(share: _Share, members: Mapping[str, Member], load: Counter[str]) -> None:
    """Give the extras that are left to the members with the fewest, where racks have room if possible."""

    def rank(name: str) -> tuple[int, bool, int, str]:
        return (load[name], members[name].absent, -share.fitness[name], name)

    in_turn = sorted(share.takers, key=rank) if len(share.extra) < share.odd else []
    for level in [list(level) for _, level in itertools.groupby(in_turn, key=load.__getitem__)]:
        for strict in (True, False):
            for name in level:
                free = len(share.extra) < share.odd and name not in share.extra
                if free and (share.has_rack_room(name) or not strict):
                    load[name] += 1
                    share.grant(name)


def _even_out(shares: list[_Share], load: Counter[str]) -> None:
    """Hand extras on until no member has two more than another in total."""
    least = load.total() // len(load)
    surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load, key=lambda name: (load[name], name)):
        while load[name] < least and _relieve(shares, load, name, least + 1):
            surplus = sum(max(0, extras - least - 1) for extras in load.values())
    for name in sorted(load):
        if surplus and load[name] == least and _relieve(shares, load, name, least + 2):
            surplus -= 1


def _relieve(shares: list[_Share], load: Counter[str], taker: str, high: int) -> bool:
    """Hand an extra to ``taker``, if need be by way of others, from a member with ``high`` or more."""
    chain = _chain(shares, load, taker, high, moving=False) or _chain(shares, load, taker, high, moving=True)
    for share, giver, receiver in chain:
        share.shift(giver, receiver)
        load[giver] -= 1
        load[receiver] += 1
    return bool(chain)


def _chain(
    shares: list[_Share], load: Counter[str], taker: str, high: int, *, moving: bool
) -> list[tuple[_Share, str, str]]:
    """The shortest chain of hand-overs that ends at ``taker``; unless ``moving``, of extras that nobody holds."""
    came: dict[str, tuple[_Share, str, str] | None] = {taker: None}
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


def _unwound(came: Mapping[str, tuple[_Share, str, str] | None], giver: str) -> Iterator[tuple[_Share, str, str]]:
    while (step := came[giver]) is not None:
        yield step
        giver = step[2]


def _part_racks(shares: list[_Share], load: Counter[str]) -> None:
    """Hand extras on where a rack has more of a sub-topology than it can hold without two of one task."""
    for share in shares:
        for rack in sorted(rack for rack, room in share.rack_room.items() if room < 0):
            while share.rack_room[rack] < 0 and _leave_rack(share, rack, shares, load):
                pass


def _leave_rack(share: _Share, rack: str, shares: list[_Share], load: Counter[str]) -> bool:
    """Hand one extra on to another rack so that the totals stay balanced; False if that cannot be."""
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


_Room = dict[str | None, dict[str, int]]
"""By rack and member, how many more replicas of a sub-topology it is to get; those in turn first."""


def _fill(share: _Share, members: Mapping[str, Member], deal: _Deal) -> dict[TaskId, tuple[str, ...]]:
    """Which tasks each member gets, given how many."""
    room = _room(share, members, deal)
    placed = _kept(share.tasks, room, deal)
    for choose in (_nearest_copy, _any_with_room):
        for task, names in placed.items():
            while len(names) < deal.per_task and (name := choose(task, names, room, deal)) is not None:
                _use(room, name, deal)
                names.append(name)
    for task, names in placed.items():
        while len(names) < deal.per_task:
            _squeeze_in(task, placed, room, members, deal)
    if deal.racks:
        _spread(placed, deal)
    return {task: tuple(names) for task, names in placed.items()}


def _room(share: _Share, members: Mapping[str, Member], deal: _Deal) -> _Room:
    """Everyone's room; standbys begin elsewhere in each sub-topology, so that a leaver's actives go to several."""
    room: _Room = {}
    start = share.tasks[0].ordinal % len(members) if deal.taken else 0
    names = list(members)
    for name in names[start:] + names[:start]:
        quota = share.base + (name in share.extra)
        if quota:
            room.setdefault(deal.racks.get(name), {})[name] = quota
    return room


def _use(room: _Room, name: str, deal: _Deal) -> None:
    """Take one place, and put its member and rack last in turn, so that one member's tasks go to several."""
    rack = deal.racks.get(name)
    free = room.pop(rack)
    left = free.pop(name) - 1
    if left:
        free[name] = left
    if free:
        room[rack] = free


def _kept(tasks: list[TaskId], room: _Room, deal: _Deal) -> dict[TaskId, list[str]]:
    """What members hold and may keep.

    To be given up first: what clashes with a rack, then what the members who are to get more don't have yet.
    """
    has = Counter(name for task in tasks for name in deal.held.get(task, ()))
    hungry = {name for free in room.values() for name, quota in free.items() if quota > has[name]}

    def reluctance(task: TaskId) -> tuple[bool, int, TaskId]:
        held = deal.held.get(task, ())
        return (deal.clashes(task, held) > 0, -len(hungry & deal.refused(task, held)), task)

    kept: dict[TaskId, list[str]] = {task: [] for task in tasks}
    for task in sorted(tasks, key=reluctance):
        for name in deal.held.get(task, ()):
            if name in room.get(deal.racks.get(name), ()):
                _use(room, name, deal)
                kept[task].append(name)
    return kept


def _nearest_copy(task: TaskId, names: list[str], room: _Room, deal: _Deal) -> str | None:
    """The nearest copy on a member with room and on a rack of its own."""
    refused = deal.refused(task, names)
    racks = deal.racks_of(refused)
    for name in deal.copies[task]:
        rack = deal.racks.get(name)
        if name not in refused and rack not in racks and name in room.get(rack, ()):
            return name
    return None


def _any_with_room(task: TaskId, names: list[str], room: _Room, deal: _Deal) -> str | None:
    """The member in turn, on a rack of its own if possible."""
    refused = deal.refused(task, names)
    for racks in (deal.racks_of(refused), set[str]()):
        for rack, free in room.items():
            if rack not in racks:
                for name in free:
                    if name not in refused:
                        return name
    return None


def _squeeze_in(
    task: TaskId, placed: dict[TaskId, list[str]], room: _Room, members: Mapping[str, Member], deal: _Deal
) -> None:
    """Give a task one more replica although everyone with room has it: others pass theirs on, in a chain."""
    for moving in (False, True):
        came, giver = _givers(task, placed, room, deal, moving=moving)
        name = _any_with_room(giver, placed[giver], room, deal)
        if name is not None:
            _use(room, name, deal)
            _pass_on(task, giver, name, came, placed)
            return
    # Replicas on distinct members come before balance.
    use = Counter(name for names in placed.values() for name in names)
    refused = deal.refused(task, placed[task])
    placed[task].append(min(members.keys() - refused, key=lambda name: (use[name], name)))


def _givers(
    task: TaskId, placed: dict[TaskId, list[str]], room: _Room, deal: _Deal, *, moving: bool
) -> tuple[dict[TaskId, tuple[TaskId, str]], TaskId]:
    """The shortest chain to a task that can use the room there is; unless ``moving``, what was held stays."""
    came: dict[TaskId, tuple[TaskId, str]] = {}
    queue = deque([task])
    while queue:
        taker = queue.popleft()
        if _any_with_room(taker, placed[taker], room, deal) is not None:
            return came, taker
        refused = deal.refused(taker, placed[taker])
        for other, names in placed.items():
            passed = set(names) - refused - set(() if moving else deal.held.get(other, ()))
            if passed and other not in came and other != task:
                came[other] = (taker, min(passed))
                queue.append(other)
    return came, task


def _pass_on(
    task: TaskId,
    giver: TaskId,
    gained: str,
    came: Mapping[TaskId, tuple[TaskId, str]],
    placed: dict[TaskId, list[str]],
) -> None:
    while giver != task:
        taker, given = came[giver]
        placed[giver][placed[giver].index(given)] = gained
        giver, gained = taker, given
    placed[task].append(gained)


def _spread(placed: dict[TaskId, list[str]], deal: _Deal) -> None:
    """Exchange replicas between tasks of a sub-topology as long as that leaves fewer on a shared rack."""
    clashing = [task for task, names in placed.items() if deal.clashes(task, names)]
    while clashing:
        better = [task for task in clashing if _exchanged(task, placed, deal)]
        clashing = [task for task in placed if deal.clashes(task, placed[task])] if better else []


def _exchanged(task: TaskId, placed: dict[TaskId, list[str]], deal: _Deal) -> bool:
    """Make the first exchange that is a gain; False if there is none."""
    mine = placed[task]
    for i, other in itertools.product(range(len(mine)), placed):
        theirs = placed[other]
        for j in range(len(theirs)):
            if _gains(task, i, other, j, placed, deal):
                mine[i], theirs[j] = theirs[j], mine[i]
                return True
    return False


def _gains(task: TaskId, i: int, other: TaskId, j: int, placed: dict[TaskId, list[str]], deal: _Deal) -> bool:
    """Whether exchanging replica ``i`` of a task for ``j`` of another leaves fewer clashes."""
    mine, theirs = placed[task], placed[other]
    rest = deal.refused(task, mine[:i] + mine[i + 1 :])
    if deal.racks.get(theirs[j]) in deal.racks_of(rest) or theirs[j] in rest:
        return False
    other_rest = theirs[:j] + theirs[j + 1 :]
    if mine[i] in deal.refused(other, other_rest):
        return False
    before = deal.clashes(task, mine) + deal.clashes(other, theirs)
    after = deal.clashes(task, [*mine[:i], theirs[j], *mine[i + 1 :]])
    return after + deal.clashes(other, [*other_rest, mine[i]]) < before
