"""Spreads the standbys of each member's actives over all others, so that all share what its loss leaves behind.

A task passes one of its standbys on and gains another. Other tasks do likewise, in a chain that ends with one that
gains what the first one gave. So each member keeps as many standbys as it has. A chain stays in one sub-topology,
or moves the extras of several. Then it may also end with one that had fewer in total. A chain leaves no more
replicas on a shared rack.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay.task_ids import TaskId
from forebay_worker.group.quotas import Demand

_SEARCH_STEPS = 4_000
"""How many steps a search considers: chains are short."""
_ROUND_STEPS = 50_000
_ROUND_STEPS_A_TASK = 40
"""How many steps all searches of a round consider, some 2 µs each: it must not outlast the members' sessions."""


class _TaskKind(NamedTuple):
    """What distinguishes a task in a search."""

    ordinal: int
    active: str
    standbys: tuple[str, ...]
    kept: tuple[str, ...]
    """Those of the standbys that their members held before."""

    @property
    def place(self) -> tuple[int, str, tuple[str, ...]]:
        """What of it counts where anything may move."""
        return self[:3]


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
    moving: bool
    """Whether members may give what they held before."""
    across: bool
    """Whether each step moves an extra of its sub-topology. Else all stay in that of the first."""
    steps: dict[str, _Step] = field(default_factory=dict)
    """By member, the step that gains it."""
    considered: int = 0

    def mark(self, kind: _TaskKind) -> tuple[object, ...]:
        """What a search meets once: where anything may move, it does not depend on what moved before."""
        return kind.place if self.moving else kind

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
        self._steps_left = _ROUND_STEPS + _ROUND_STEPS_A_TASK * len(placed)
        self._sizes = Counter(task.ordinal for task in placed)
        self._actives = Counter(demand.active(task) for task in placed)
        self._tasks: dict[_TaskKind, dict[TaskId, None]] = {}
        self._givers: defaultdict[tuple[int, str], list[_TaskKind]] = defaultdict(list)
        """By sub-topology and member, the kinds of tasks that have a standby there, in order."""
        self._pairs: Counter[tuple[str, str]] = Counter()
        """How many tasks have their active on one member and a standby on another."""
        self._standbys: Counter[tuple[int, str]] = Counter()
        """By sub-topology and member."""
        self._totals: Counter[str] = Counter()
        """By member, its standbys of all."""
        self._on_rack: Counter[tuple[int, str]] = Counter()
        """By sub-topology and rack, its replicas."""
        for task in placed:
            self._add(task)

    def improve(self) -> bool:
        """Apply chains until no part of a member's standbys that is too large can be lowered; returns whether any
        was."""
        improved = False
        while self._thin_crowded():
            improved = True
        return improved

    def _thin_crowded(self) -> bool:
        crowded = [(-count, *pair) for pair, count in self._pairs.items() if count > self._share(pair[0])]
        thinner = [self._thin(active, name) for _, active, name in sorted(crowded)]
        return any(thinner)

    def _share(self, active: str) -> int:
        """How many of the standbys of a member's actives another one should have at most."""
        return -(-self._actives[active] * self._demand.per_task // (len(self._members) - 1))

    def _thin(self, active: str, name: str) -> bool:
        """Have a member give standbys of another's actives; returns whether it could give any."""
        before = self._pairs[active, name]
        while self._pairs[active, name] > self._share(active) and self._thin_by_one(active, name):
            pass
        return self._pairs[active, name] < before

    def _thin_by_one(self, active: str, name: str) -> bool:
        """Nobody else gets as many as it had. What is not held yet moves first."""
        max_pairs = self._pairs[active, name] - 2
        if self._steps_left <= 0:
            return False
        for moving, across in itertools.product((False, True), repeat=2):
            for kind in self._kinds_of(active, name, moving=moving):
                if chain := self._chain(_ChainSearch(kind, name, max_pairs, moving, across)):
                    for step in chain:
                        self._carry_out(step)
                    return True
        return False

    def _kinds_of(self, active: str, name: str, *, moving: bool) -> list[_TaskKind]:
        return [
            kind
            for ordinal in self._sizes
            for kind in self._givers.get((ordinal, name), ())
            if kind.active == active and (moving or name not in kind.kept)
        ]

    def _chain(self, search: _ChainSearch) -> list[_Step]:
        """The shortest chain; empty if there is none. What it finds depends only on how tasks are placed."""
        queue, seen = deque([(search.first, search.given)]), {search.mark(search.first)}
        names = self._takers(search)
        while queue and search.considered < _SEARCH_STEPS and self._steps_left > 0:
            kind, given = queue.popleft()
            for step in self._steps(kind, given, names, search):
                search.steps[step.gained] = step
                if search.across and self._totals[step.gained] < self._totals[search.given]:
                    return search.chain_to(step)
                for giver in self._givers_of(step.gained, search):
                    if search.mark(giver) in seen:
                        continue
                    last = _Step(giver, step.gained, search.given)
                    if self._may(last, search):
                        return search.chain_to(last)
                    seen.add(search.mark(giver))
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
            for kind in self._givers.get((ordinal, name), ()):
                if search.moving or name not in kind.kept:
                    yield kind

    def _may(self, step: _Step, search: _ChainSearch) -> bool:
        search.considered += 1
        self._steps_left -= 1
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
            self._totals[name] += change
        racks = self._demand.racks
        for name in (kind.active, *kind.standbys):
            if name in racks:
                self._on_rack[kind.ordinal, racks[name]] += change

    def _kind(self, task: TaskId) -> _TaskKind:
        standbys = tuple(sorted(self._placed[task]))
        held = self._demand.held.get(task, ())
        kept = tuple(name for name in standbys if name in held)
        return _TaskKind(task.ordinal, self._demand.active(task), standbys, kept)
