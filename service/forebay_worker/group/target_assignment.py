"""The target placement: balanced over the members, as close to the previous one as balance and racks allow.

It depends only on the members, absent ones included, and is its own fixpoint.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from forebay.task_ids import TaskId
from forebay_worker.group.augmenting_path import AugmentingPaths
from forebay_worker.group.placement import AssignmentPolicy, Copies, Member, Placement
from forebay_worker.group.quotas import Demand, Quota, plan_quotas
from forebay_worker.group.standby_exchange import StandbySpread


def target_assignment(
    tasks: list[TaskId],
    members: Mapping[str, Member],
    copies: Copies,
    before: Mapping[TaskId, Placement],
    policy: AssignmentPolicy,
) -> dict[TaskId, Placement]:
    """Balanced over the members, task by task as close to ``before`` as balance and racks allow."""
    before = {task: before[task] for task in tasks if task in before}
    previous_holders: dict[TaskId, tuple[str, ...]]
    previous_holders = {task: (place.active,) for task, place in before.items() if place.active in members}
    actives = _distribute(tasks, members, Demand(1, previous_holders, {}, {}, copies))
    per_task = min(policy.num_standby_replicas, len(members) - 1)
    previous_holders = {
        task: tuple(
            name for name in dict.fromkeys(place.standbys) if name in members and name not in actives[task]
        )[:per_task]
        for task, place in before.items()
    }
    racks = {member.id: member.rack for member in members.values() if member.rack is not None}
    standbys = _distribute(tasks, members, Demand(per_task, previous_holders, actives, racks, copies))
    return {task: Placement(actives[task][0], standbys[task]) for task in tasks}


def _distribute(
    tasks: list[TaskId], members: Mapping[str, Member], demand: Demand
) -> dict[TaskId, tuple[str, ...]]:
    """The members that get each task's replicas: first how many each member gets, then which."""
    placed = [_fill(quota, members, demand) for quota in plan_quotas(tasks, members, demand)]
    if demand.taken:
        _spread(placed, list(members), demand)
    return {task: tuple(names) for group in placed for task, names in group.items()}


def _spread(placed: list[dict[TaskId, list[str]]], members: list[str], demand: Demand) -> None:
    """Exchange standbys, over racks first, until neither racks nor members could share a loss better."""
    _part_racks(placed, demand)
    together = {task: names for group in placed for task, names in group.items()}
    has_choice = 0 < demand.per_task < len(members) - 1
    while has_choice and StandbySpread(together, members, demand).improve() and _part_racks(placed, demand):
        pass


def _part_racks(placed: list[dict[TaskId, list[str]]], demand: Demand) -> bool:
    exchanged = [_exchange(group, demand) for group in placed if demand.racks]
    return any(exchanged)


_Room = dict[str | None, dict[str, int]]
"""How many more replicas of a sub-topology each member is to get, by rack and member, in turn."""


def _fill(quota: Quota, members: Mapping[str, Member], demand: Demand) -> dict[TaskId, list[str]]:
    """Which tasks each member gets, given how many."""
    room = _room(quota, members, demand)
    placed = _kept(quota.tasks, room, demand)
    for choose in (_nearest_copy, _any_with_room):
        for task, names in placed.items():
            while len(names) < demand.per_task and (name := choose(task, names, room, demand)) is not None:
                _use(room, name, demand)
                names.append(name)
    if any(len(names) < demand.per_task for names in placed.values()):
        _squeeze_in(placed, room, members, demand)
    return placed


def _room(quota: Quota, members: Mapping[str, Member], demand: Demand) -> _Room:
    """All members' room; standbys start elsewhere in each sub-topology, so that a leaver's actives go to
    several."""
    room: _Room = {}
    names = list(members) if quota.base else sorted(quota.extra)
    start = quota.tasks[0].ordinal % len(names) if demand.taken and names else 0
    for name in names[start:] + names[:start]:
        allotted = quota.base + (name in quota.extra)
        if allotted:
            room.setdefault(demand.racks.get(name), {})[name] = allotted
    return room


def _use(room: _Room, name: str, demand: Demand) -> None:
    """Take one place, and move its member and rack to the end of the turn, so that one member's tasks go to
    several."""
    rack = demand.racks.get(name)
    free = room.pop(rack)
    left = free.pop(name) - 1
    if left:
        free[name] = left
    if free:
        room[rack] = free


def _kept(tasks: list[TaskId], room: _Room, demand: Demand) -> dict[TaskId, list[str]]:
    """What members hold and may keep.

    Given up first: replicas that clash with a rack, then those that the members who are to get more lack.
    """
    has = Counter(name for task in tasks for name in demand.held.get(task, ()))
    hungry = {name for free in room.values() for name, allotted in free.items() if allotted > has[name]}

    def reluctance(task: TaskId) -> tuple[bool, int, TaskId]:
        held = demand.held.get(task, ())
        return (demand.clashes(task, held) > 0, -len(hungry & demand.refused(task, held)), task)

    kept: dict[TaskId, list[str]] = {task: [] for task in tasks}
    for task in sorted(tasks, key=reluctance):
        for name in demand.held.get(task, ()):
            if name in room.get(demand.racks.get(name), ()):
                _use(room, name, demand)
                kept[task].append(name)
    return kept


def _nearest_copy(task: TaskId, names: list[str], room: _Room, demand: Demand) -> str | None:
    """The nearest copy on a member with room and on a rack of its own."""
    refused = demand.refused(task, names)
    racks = demand.racks_of(refused)
    for name in demand.copies[task]:
        rack = demand.racks.get(name)
        if name not in refused and rack not in racks and name in room.get(rack, ()):
            return name
    return None


def _any_with_room(task: TaskId, names: list[str], room: _Room, demand: Demand) -> str | None:
    """The member in turn, on a rack of its own if possible."""
    refused = demand.refused(task, names)
    for racks in (demand.racks_of(refused), set[str]()):
        for rack, free in room.items():
            if rack not in racks:
                for name in free:
                    if name not in refused:
                        return name
    return None


def _squeeze_in(
    placed: dict[TaskId, list[str]], room: _Room, members: Mapping[str, Member], demand: Demand
) -> None:
    """Give tasks the replicas they lack although all members with room have them: others pass theirs on."""

    def room_for(task: TaskId) -> str | None:
        return _any_with_room(task, placed[task], room, demand)

    searches = [AugmentingPaths(placed, demand, moving=moving) for moving in (False, True)]
    for task in [task for task, names in placed.items() for _ in range(demand.per_task - len(names))]:
        chain = next((chain for paths in searches if (chain := paths.shortest(task, room_for))), None)
        if chain is None:
            # Replicas on distinct members come before balance.
            use = Counter(name for names in placed.values() for name in names)
            refused = demand.refused(task, placed[task])
            chain = [(task, min(members.keys() - refused, key=lambda name: (use[name], name)))]
        else:
            _use(room, chain[0][1], demand)
        _pass_on(chain, placed, searches)


def _pass_on(
    chain: list[tuple[TaskId, str]], placed: dict[TaskId, list[str]], searches: list[AugmentingPaths]
) -> None:
    """Give each task of a chain what it gains, in place of what the next one gains from it."""
    for paths in searches:
        for task, _ in chain:
            paths.remove(task)
    for (giver, gained), (_, given) in itertools.pairwise(chain):
        placed[giver][placed[giver].index(given)] = gained
    task, gained = chain[-1]
    placed[task].append(gained)
    for paths in searches:
        for task, _ in chain:
            paths.add(task)


def _exchange(placed: dict[TaskId, list[str]], demand: Demand) -> bool:
    """Exchange replicas between tasks of a sub-topology while fewer are on a shared rack then; returns whether any
    was exchanged."""
    clashing = [task for task, names in placed.items() if demand.clashes(task, names)]
    exchanged = False
    while clashing:
        exchange = _Exchange(placed, demand, clashing)
        # An exchange may have fixed its partner too.
        better = [task for task in clashing if demand.clashes(task, placed[task]) and exchange.mend(task)]
        clashing = [task for task in placed if demand.clashes(task, placed[task])] if better else []
        exchanged = exchanged or bool(better)
    return exchanged


class _Exchange:
    """One pass over the clashing tasks: for each, an exchange with a partner that leaves fewer clashes."""

    def __init__(self, placed: dict[TaskId, list[str]], demand: Demand, clashing: list[TaskId]) -> None:
        self._placed = placed
        self._deal = demand
        racks = {task: demand.racks_of(demand.refused(task, names)) for task, names in placed.items()}
        others = set(clashing if demand.per_task > 1 else ())
        self._partners = {
            rack: [task for task in placed if rack not in racks[task] or task in others]
            for rack in set().union(*(racks[task] for task in clashing))
        }
        """The tasks that could take a replica on each rack: those with none there, or with a clash elsewhere."""
        self._at = Counter[str]()
        self._vain: set[tuple[str, frozenset[str]]] = set()
        """A replica's rack with those of its task's others, for which no exchange was found; there is none for a
        similar task either, unless the next pass finds one."""

    def mend(self, task: TaskId) -> bool:
        """Make the first exchange that improves matters; False if there is none."""
        mine = self._placed[task]
        for i, name in enumerate(mine):
            rack = self._deal.racks.get(name, "")
            rest = self._deal.racks_of(self._deal.refused(task, mine[:i] + mine[i + 1 :]))
            case = (rack, frozenset(rest))
            if rack in rest and case not in self._vain:
                if self._with_partner(task, i, rack):
                    return True
                self._vain.add(case)
        return False

    def _with_partner(self, task: TaskId, i: int, rack: str) -> bool:
        """Exchange replica ``i``: searches from where the last partner of its rack was found, and wraps around."""
        demand, mine = self._deal, self._placed[task]
        of_rack = self._partners.get(rack, [])
        for _ in range(len(of_rack)):
            at = self._at[rack] = self._at[rack] % len(of_rack)
            other = of_rack[at]
            theirs = self._placed[other]
            for j in range(len(theirs)):
                if _gains(task, i, other, j, self._placed, demand):
                    mine[i], theirs[j] = theirs[j], mine[i]
                    return True
            if rack in demand.racks_of(demand.refused(other, theirs)) and not demand.clashes(other, theirs):
                # An exchange has given it one on this rack: it need not be considered again.
                of_rack[at] = of_rack[-1]
                of_rack.pop()
            else:
                self._at[rack] += 1
        return False


def _gains(task: TaskId, i: int, other: TaskId, j: int, placed: dict[TaskId, list[str]], demand: Demand) -> bool:
    """Whether exchanging replica ``i`` of a task for ``j`` of another leaves fewer clashes."""
    mine, theirs = placed[task], placed[other]
    rest = demand.refused(task, mine[:i] + mine[i + 1 :])
    if demand.racks.get(theirs[j]) in demand.racks_of(rest) or theirs[j] in rest:
        return False
    other_rest = theirs[:j] + theirs[j + 1 :]
    if mine[i] in demand.refused(other, other_rest):
        return False
    before = demand.clashes(task, mine) + demand.clashes(other, theirs)
    after = demand.clashes(task, [*mine[:i], theirs[j], *mine[i + 1 :]])
    return after + demand.clashes(other, [*other_rest, mine[i]]) < before
