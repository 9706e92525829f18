"""The intended placement: balanced over the members, as close to the previous one as balance and racks allow.

It depends only on the members, absent ones included, and is its own fixpoint.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from forebay.tasks import TaskId
from forebay_worker.group.placement import AssignmentPolicy, Copies, Member, Placement
from forebay_worker.group.shares import Deal, Share, share_out


def intend(
    tasks: list[TaskId],
    members: Mapping[str, Member],
    copies: Copies,
    before: Mapping[TaskId, Placement],
    policy: AssignmentPolicy,
) -> dict[TaskId, Placement]:
    """Balanced over the members, task by task as close to ``before`` as balance and racks allow."""
    before = {task: before[task] for task in tasks if task in before}
    had: dict[TaskId, tuple[str, ...]]
    had = {task: (place.active,) for task, place in before.items() if place.active in members}
    actives = _dealt(tasks, members, Deal(1, had, {}, {}, copies))
    per_task = min(policy.num_standby_replicas, len(members) - 1)
    had = {
        task: tuple(
            name for name in dict.fromkeys(place.standbys) if name in members and name not in actives[task]
        )[:per_task]
        for task, place in before.items()
    }
    racks = {member.id: member.rack for member in members.values() if member.rack is not None}
    standbys = _dealt(tasks, members, Deal(per_task, had, actives, racks, copies))
    return {task: Placement(actives[task][0], standbys[task]) for task in tasks}


def _dealt(tasks: list[TaskId], members: Mapping[str, Member], deal: Deal) -> dict[TaskId, tuple[str, ...]]:
    """The members that get each task's replicas: first how many each member gets, then which."""
    shares = share_out(tasks, members, deal)
    return {task: names for share in shares for task, names in _fill(share, members, deal).items()}


_Room = dict[str | None, dict[str, int]]
"""How many more replicas of a sub-topology each member is to get, by rack and member, in turn."""


def _fill(share: Share, members: Mapping[str, Member], deal: Deal) -> dict[TaskId, tuple[str, ...]]:
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


def _room(share: Share, members: Mapping[str, Member], deal: Deal) -> _Room:
    """All members' room; standbys start elsewhere in each sub-topology, so that a leaver's actives go to
    several."""
    room: _Room = {}
    names = list(members) if share.base else sorted(share.extra)
    start = share.tasks[0].ordinal % len(names) if deal.taken and names else 0
    for name in names[start:] + names[:start]:
        quota = share.base + (name in share.extra)
        if quota:
            room.setdefault(deal.racks.get(name), {})[name] = quota
    return room


def _use(room: _Room, name: str, deal: Deal) -> None:
    """Take one place, and move its member and rack to the end of the turn, so that one member's tasks go to
    several."""
    rack = deal.racks.get(name)
    free = room.pop(rack)
    left = free.pop(name) - 1
    if left:
        free[name] = left
    if free:
        room[rack] = free


def _kept(tasks: list[TaskId], room: _Room, deal: Deal) -> dict[TaskId, list[str]]:
    """What members hold and may keep.

    Given up first: replicas that clash with a rack, then those that the members who are to get more lack.
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


def _nearest_copy(task: TaskId, names: list[str], room: _Room, deal: Deal) -> str | None:
    """The nearest copy on a member with room and on a rack of its own."""
    refused = deal.refused(task, names)
    racks = deal.racks_of(refused)
    for name in deal.copies[task]:
        rack = deal.racks.get(name)
        if name not in refused and rack not in racks and name in room.get(rack, ()):
            return name
    return None


def _any_with_room(task: TaskId, names: list[str], room: _Room, deal: Deal) -> str | None:
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
    task: TaskId, placed: dict[TaskId, list[str]], room: _Room, members: Mapping[str, Member], deal: Deal
) -> None:
    """Give a task one more replica although all members with room have it: others pass theirs on, in a chain."""
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
    task: TaskId, placed: dict[TaskId, list[str]], room: _Room, deal: Deal, *, moving: bool
) -> tuple[dict[TaskId, tuple[TaskId, str]], TaskId]:
    """The shortest chain to a task that can use the available room; unless ``moving``, held replicas stay."""
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


def _spread(placed: dict[TaskId, list[str]], deal: Deal) -> None:
    """Exchange replicas between tasks of a sub-topology while that leaves fewer on a shared rack."""
    clashing = [task for task, names in placed.items() if deal.clashes(task, names)]
    while clashing:
        exchange = _Exchange(placed, deal, clashing)
        # An exchange may have fixed its partner too.
        better = [task for task in clashing if deal.clashes(task, placed[task]) and exchange.mend(task)]
        clashing = [task for task in placed if deal.clashes(task, placed[task])] if better else []


class _Exchange:
    """One pass over the clashing tasks: for each, an exchange with a partner that leaves fewer clashes."""

    def __init__(self, placed: dict[TaskId, list[str]], deal: Deal, clashing: list[TaskId]) -> None:
        self._placed = placed
        self._deal = deal
        racks = {task: deal.racks_of(deal.refused(task, names)) for task, names in placed.items()}
        others = set(clashing if deal.per_task > 1 else ())
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
        deal, mine = self._deal, self._placed[task]
        of_rack = self._partners.get(rack, [])
        for _ in range(len(of_rack)):
            at = self._at[rack] = self._at[rack] % len(of_rack)
            other = of_rack[at]
            theirs = self._placed[other]
            for j in range(len(theirs)):
                if _gains(task, i, other, j, self._placed, deal):
                    mine[i], theirs[j] = theirs[j], mine[i]
                    return True
            if rack in deal.racks_of(deal.refused(other, theirs)) and not deal.clashes(other, theirs):
                # An exchange has given it one on this rack: it need not be considered again.
                of_rack[at] = of_rack[-1]
                of_rack.pop()
            else:
                self._at[rack] += 1
        return False


def _gains(task: TaskId, i: int, other: TaskId, j: int, placed: dict[TaskId, list[str]], deal: Deal) -> bool:
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
