"""Room for a replica where every member with room has its task already: others pass theirs on, in a chain.

The chains are augmenting paths of a bipartite matching. Tasks with the same holders, of which the same may be
passed on, are of one kind. A search visits each kind and each member once, and ends at the first task that can use
the room. Few members make few kinds, and many members need few searches: the work grows with the tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from forebay.task_ids import TaskId
from forebay_worker.group.quotas import Demand

_RoomFor = Callable[[TaskId], str | None]
"""A member with room that does not hold a task yet; None if there is none."""


class _Kind(NamedTuple):
    """What distinguishes a task in a search."""

    refused: frozenset[str]
    passable: tuple[str, ...]


_Steps = dict[_Kind, tuple[_Kind, str]]
"""By kind of task, to which kind it passes a replica on, and that replica's member."""


class AugmentingPaths:
    """The replicas ``placed`` of a sub-topology's tasks, by who could pass which of them on.

    Unless ``moving``, what members held before stays where it is.
    """

    def __init__(self, placed: dict[TaskId, list[str]], demand: Demand, *, moving: bool) -> None:
        self._placed = placed
        self._demand = demand
        self._moving = moving
        self._tasks: dict[_Kind, dict[TaskId, None]] = {}
        self._givers: dict[str, dict[_Kind, None]] = {}
        """By member, the kinds of tasks that can pass its replica on."""
        for task in placed:
            self.add(task)

    def add(self, task: TaskId) -> None:
        """Index a task, as it is placed now."""
        kind = self._kind(task)
        if kind not in self._tasks:
            self._tasks[kind] = {}
            for name in kind.passable:
                self._givers.setdefault(name, {})[kind] = None
        self._tasks[kind][task] = None

    def remove(self, task: TaskId) -> None:
        """The inverse of ``add``, before its replicas change."""
        kind = self._kind(task)
        del self._tasks[kind][task]
        if not self._tasks[kind]:
            del self._tasks[kind]
            for name in kind.passable:
                del self._givers[name][kind]

    def shortest(self, task: TaskId, room_for: _RoomFor) -> list[tuple[TaskId, str]]:
        """The shortest chain: each task with the member that it gains. Empty if there is none.

        The first gains the room, the last is ``task``. All but the last pass on what the next one gains.
        """
        start = self._kind(task)
        steps: _Steps = {}
        unvisited = dict.fromkeys(self._givers)
        queue = deque([start])
        while queue:
            taker = queue.popleft()
            for name in [name for name in unvisited if name not in taker.refused]:
                del unvisited[name]
                for giver in self._givers[name]:
                    if giver not in steps and giver != start:
                        steps[giver] = (taker, name)
                        gained = room_for(self._representative(giver))
                        if gained is not None:
                            return self._chain(giver, gained, steps, task)
                        queue.append(giver)
        return []

    def _chain(self, giver: _Kind, gained: str, steps: _Steps, task: TaskId) -> list[tuple[TaskId, str]]:
        chain = []
        while giver in steps:
            chain.append((self._representative(giver), gained))
            giver, gained = steps[giver]
        return [*chain, (task, gained)]

    def _representative(self, kind: _Kind) -> TaskId:
        return next(reversed(self._tasks[kind]))

    def _kind(self, task: TaskId) -> _Kind:
        names = self._placed[task]
        kept = () if self._moving else self._demand.held.get(task, ())
        return _Kind(
            frozenset(self._demand.refused(task, names)), tuple(sorted(name for name in names if name not in kept))
        )
