"""Spreads the standbys of each member's actives over all others, so that all share what its loss leaves behind.

A task passes one of its standbys on and gains another. Other tasks do likewise, in a chain that ends with one that
gains what the first one gave. So each member keeps as many standbys as it has. A chain stays in one sub-topology,
or moves the extras of several. A chain leaves no more replicas on a shared rack.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.task_ids import TaskId
from forebay_worker.group.quotas import Demand

_MAX_STEPS = 4_000
"""How many steps a search considers. Chains are short, and a round must not outlast the members' sessions."""


class _TaskKind(NamedTuple):
    """What distinguishes a task in a search."""

    ordinal: int
    active: str
    standbys: tuple[str, ...]


class _Step(NamedTuple):
    """A task of some kind gives one standby and gains another."""

    kind: _TaskKind
    given: str
    gained: str


@dataclass
class _ChainSearch:
    """A search for a chain, from a task that gives a standby."""

    first: _TaskKind
    given: str
    max_pairs: int
    """How many standbys of another's actives a member may have before it gains one."""
    across: bool
    """Whether each step moves an extra of its sub-topology. Else all stay in that of the first."""
    steps: dict[str, _Step] = field(default_factory=dict)
    """By member, the step that gains it."""
    considered: int = 0

    def chain_to(self, last: _Step) -> list[_Step]:
        """The steps from the first one to the last."""
        chain = [last]
        while (step := self.steps.get(chain[-1].given)) is not None:
            chain.append(step)
        return chain[::-1]


class StandbySpread:
    """The standbys ``placed`` of all tasks, whose actives ``demand`` has as taken."""

    def __init__(self, placed: Mapping[TaskId, list[str]], members: list[str], demand: Demand) -> None:
        self._placed = placed
        self._members = members
        self._demand = demand
        self._sizes = Counter(task.ordinal for task in placed)
        self._tasks: dict[_TaskKind, dict[TaskId, None]] = {}
        self._givers: defaultdict[tuple[int, str], list[_TaskKind]] = defaultdict(list)
        """By sub-topology and member, the kinds of tasks that have a standby there, in order."""
        self._pairs: Counter[tuple[str, str]] = Counter()
        """How many tasks have their active on one member and a standby on another."""
        self._standbys: Counter[tuple[int, str]] = Counter()
        """By sub-topology and member."""
        self._on_rack: Counter[tuple[int, str]] = Counter()
        """By sub-topology and rack, its replicas."""
        # Last, and so first to move: what nobody holds yet.
        for task in sorted(placed, key=lambda task: not demand.holds(task, placed[task])):
            self._add(task)

    def improve(self) -> bool:
        """Apply chains until no part of a member's standbys that is too large can be lowered; returns whether any
        was."""
        improved = False
        while self._thin_crowded():
            improved = True
        return improved

    def _thin_crowded(self) -> bool:
        shares = self._shares()
        crowded = [(-count, *pair) for pair, count in self._pairs.items() if count > shares[pair[0]]]
        thinner = [self._thin(active, name, shares[active]) for _, active, name in sorted(crowded)]
        return any(thinner)

    def _shares(self) -> dict[str, int]:
        """By member, how many of the standbys of its actives another one should have at most."""
        actives = Counter(self._demand.active(task) for task in self._placed)
        others = len(self._members) - 1
        return {name: -(-count * self._demand.per_task // others) for name, count in actives.items()}

    def _thin(self, active: str, name: str, share: int) -> bool:
        """Have a member give standbys of another's actives; returns whether it could give any."""
        before = self._pairs[active, name]
        while self._pairs[active, name] > share and self._thin_by_one(active, name):
            pass
        return self._pairs[active, name] < before

    def _thin_by_one(self, active: str, name: str) -> bool:
        """Nobody else gets as many as it had."""
        max_pairs = self._pairs[active, name] - 2
        for across in (False, True):
            for kind in self._kinds_of(active, name):
                if chain := self._chain(_ChainSearch(kind, name, max_pairs, across)):
                    for step in chain:
                        self._carry_out(step)
                    return True
        return False

    def _kinds_of(self, active: str, name: str) -> list[_TaskKind]:
        return [
            kind
            for ordinal in self._sizes
            for kind in self._givers.get((ordinal, name), ())
            if kind.active == active
        ]

    def _chain(self, search: _ChainSearch) -> list[_Step]:
        """The shortest chain; empty if there is none. What it finds depends only on how tasks are placed."""
        queue, seen = deque([(search.first, search.given)]), {search.first}
        names = self._takers(search)
        while queue and search.considered < _MAX_STEPS:
            kind, given = queue.popleft()
            for step in self._steps(kind, given, names, search):
                search.steps[step.gained] = step
                for giver in self._givers_of(step.gained, search):
                    if giver in seen:
                        continue
                    last = _Step(giver, step.gained, search.given)
                    if self._may(last, search):
                        return search.chain_to(last)
                    seen.add(giver)
                    queue.append((giver, step.gained))
        return []

    def _takers(self, search: _ChainSearch) -> list[str]:
        ordinal = search.first.ordinal
        return [name for name in self._members if search.across or self._standbys[ordinal, name]]

    def _steps(self, kind: _TaskKind, given: str, names: list[str], search: _ChainSearch) -> Iterator[_Step]:
        """The next steps of a chain, to members that it has not come to yet."""
        for name in names:
            if name not in search.steps and name != search.given:
                step = _Step(kind, given, name)
                if self._may(step, search):
                    yield step

    def _givers_of(self, name: str, search: _ChainSearch) -> Iterator[_TaskKind]:
        for ordinal in self._sizes if search.across else (search.first.ordinal,):
            yield from self._givers.get((ordinal, name), ())

    def _may(self, step: _Step, search: _ChainSearch) -> bool:
        search.considered += 1
        kind, given, gained = step
        if gained == kind.active or gained in kind.standbys or self._pairs[kind.active, gained] > search.max_pairs:
            return False
        if search.across and not self._moves_extra(step):
            return False
        return not self._clashes(kind, given, gained) or self._clashes(kind, given, given)

    def _moves_extra(self, step: _Step) -> bool:
        """Whether its sub-topology stays balanced, and no rack gets more of it than it has tasks."""
        ordinal, racks = step.kind.ordinal, self._demand.racks
        size, rack = self._sizes[ordinal], racks.get(step.gained)
        base = size * self._demand.per_task // len(self._members)
        has_room = rack is None or rack == racks.get(step.given) or self._on_rack[ordinal, rack] < size
        return has_room and self._standbys[ordinal, step.given] > base >= self._standbys[ordinal, step.gained]

    def _clashes(self, kind: _TaskKind, given: str, gained: str) -> bool:
        """Whether a standby in the place of another shares a rack with the rest of its task."""
        racks = self._demand.racks
        rack = racks.get(gained)
        if rack is None:
            return False
        return any(racks.get(name) == rack for name in (kind.active, *kind.standbys) if name != given)

    def _carry_out(self, step: _Step) -> None:
        task = next(reversed(self._tasks[step.kind]))
        self._remove(task)
        names = self._placed[task]
        names[names.index(step.given)] = step.gained
        self._add(task)

    def _add(self, task: TaskId) -> None:
        kind = self._kind(task)
        if kind not in self._tasks:
            self._tasks[kind] = {}
            for name in kind.standbys:
                insort(self._givers[kind.ordinal, name], kind)
        self._tasks[kind][task] = None
        self._count(kind, 1)

    def _remove(self, task: TaskId) -> None:
        kind = self._kind(task)
        self._count(kind, -1)
        del self._tasks[kind][task]
        if not self._tasks[kind]:
            del self._tasks[kind]
            for name in kind.standbys:
                kinds = self._givers[kind.ordinal, name]
                del kinds[bisect_left(kinds, kind)]

    def _count(self, kind: _TaskKind, change: int) -> None:
        for name in kind.standbys:
            self._pairs[kind.active, name] += change
            self._standbys[kind.ordinal, name] += change
        racks = self._demand.racks
        for name in (kind.active, *kind.standbys):
            if name in racks:
                self._on_rack[kind.ordinal, racks[name]] += change

    def _kind(self, task: TaskId) -> _TaskKind:
        return _TaskKind(task.ordinal, self._demand.active(task), tuple(sorted(self._placed[task])))
