"""The current placement: what to do now on the way to the target, among the members that are present.

If the target's active is not caught up, a member that is stays active while the target one warms up, and a
caught-up replica is released only once enough others are caught up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.task_ids import TaskId
from forebay_worker.group.placement import AssignmentPolicy, Copies, Placement

_KEEPS_ACTIVE_TIMES = 2
"""An active is replaced by another that is caught up once it is this many times the acceptable lag behind."""


@dataclass(frozen=True)
class Situation:
    """The inputs for the next step towards the target, by task."""

    present: frozenset[str]
    degraded: frozenset[str]
    copies: Copies
    unchecked: Mapping[str, frozenset[TaskId]]
    """By present member, the tasks whose copy there was not compared with its log yet."""
    target: Mapping[TaskId, Placement]
    before: Mapping[TaskId, Placement]
    policy: AssignmentPolicy

    def caught_up(self, task: TaskId) -> list[str]:
        """The members that are caught up, nearest first; degraded ones only where there is no other."""
        return self._within(task, self.policy.acceptable_recovery_lag, checked=True)

    def presumed_caught_up(self, task: TaskId) -> list[str]:
        """Those that are caught up unless their copy turns out to be of a log that is no more."""
        return self._within(task, self.policy.acceptable_recovery_lag)

    def has_caught_up_copy(self, task: TaskId, name: str) -> bool:
        """Whether a member's copy is within the acceptable lag, even if its machine refuses writes now."""
        return self.copies[task].get(name, math.inf) <= self.policy.acceptable_recovery_lag

    def keeps_active(self, task: TaskId, name: str) -> bool:
        """Whether one that is active may remain so, with others caught up: its lag may just swing about the
        limit."""
        return name in self._within(task, _KEEPS_ACTIVE_TIMES * self.policy.acceptable_recovery_lag, checked=True)

    def _within(self, task: TaskId, limit: int, *, checked: bool = False) -> list[str]:
        names = [
            name
            for name, lag in self.copies[task].items()
            if lag <= limit and not (checked and task in self.unchecked[name])
        ]
        return [name for name in names if name not in self.degraded] or names

    def previous_holders(self, task: TaskId) -> tuple[str, ...]:
        """The present members that held the task; if that is no longer known, those that seem caught up."""
        if task not in self.before:
            return tuple(self.presumed_caught_up(task))
        return tuple(name for name in self.before[task].members if name in self.present)

    @property
    def healthy(self) -> frozenset[str]:
        """The present members that could take something; all if none could."""
        return self.present - self.degraded or self.present

    def absent(self, task: TaskId) -> int:
        """How many of the target's holders are expected back."""
        return sum(name not in self.present for name in self.target[task].members)


def next_assignment(tasks: list[TaskId], now: Situation) -> dict[TaskId, Placement]:
    """What to do now, among the members that are present."""
    actives = _actives(tasks, now)
    standbys = {task: _held_standbys(task, actives[task], now) for task in tasks}
    warm_ups = now.policy.max_warmup_replicas
    warm_ups -= sum(_warming(task, standbys[task], now) for task in tasks)
    for task in tasks:
        warm_ups -= _build(task, actives[task], standbys[task], warm_ups, now)
    return {task: _placement(task, actives[task], standbys[task], now) for task in tasks}


def _placement(task: TaskId, active: str, standbys: list[str], now: Situation) -> Placement:
    """In the target's order, so that a detour ends where it began."""
    order = [*now.target[task].members, *now.previous_holders(task)]
    return Placement(active, tuple(sorted(standbys, key=order.index)))


def _actives(tasks: list[TaskId], now: Situation) -> dict[TaskId, str]:
    """One active for each task; if there is a choice, members that serve less come first.

    In a round in which actives were lost with their member, no other active moves: fail-over first.
    """
    failing_over = any(task in now.before and now.before[task].active not in now.present for task in tasks)
    evident = {task: _evident_active(task, failing_over, now) for task in tasks}
    choices = {task: _choice(task, now) for task, name in evident.items() if name is None}
    return {task: name for task, name in evident.items() if name is not None} | _even_choice(choices, evident)


def _choice(task: TaskId, now: Situation) -> list[str]:
    """The members of which any could be active: the target's, if there is one."""
    able = now.caught_up(task) or sorted(now.healthy)
    return [name for name in able if name in now.target[task].members] or able


def _even_choice(choices: Mapping[TaskId, list[str]], evident: Mapping[TaskId, str | None]) -> dict[TaskId, str]:
    """Choose members that serve less, and choose again while a member serves two more than another that could."""
    serving = Counter(name for name in evident.values() if name is not None)
    chosen: dict[TaskId, str] = {}
    changed = True
    while changed:
        changed = False
        for task, names in choices.items():
            least = min(names, key=lambda name: (serving[name], name))
            if task not in chosen or serving[chosen[task]] > serving[least] + 1:
                serving.subtract([chosen[task]] if task in chosen else [])
                serving[least] += 1
                chosen[task] = least
                changed = True
    return chosen


def _evident_active(task: TaskId, failing_over: bool, now: Situation) -> str | None:
    """The target's active if it is caught up, else the previous one; if no member is, the nearest copy.

    The previous one counts as nearest while it is within the acceptable lag of that, so the choice does not flap.
    """
    goal = now.target[task].active
    was = now.before[task].active if task in now.before else None
    preferred = [was, goal] if failing_over else [goal, was]
    caught_up, copies = now.caught_up(task), now.copies[task]
    if caught_up:
        kept_active = {was} if was is not None and now.keeps_active(task, was) else set()
        return next((name for name in preferred if name in caught_up or name in kept_active), None)
    if copies:
        least = min(copies.values())
        if was is not None and copies.get(was, math.inf) <= least + now.policy.acceptable_recovery_lag:
            return was
        return min(copies, key=lambda name: (copies[name], name != goal, name))
    return next((name for name in (was, goal) if name in now.healthy), None)


def _held_standbys(task: TaskId, active: str, now: Situation) -> list[str]:
    """The standbys that cost nothing: the target's, and others that must not be released yet.

    A caught-up replica stays until ``num_standby_replicas`` + 1 others are caught up, and one that seems so until
    as many others do; any other replica, until there are that many.
    """
    caught_up, presumed_caught_up, previous_holders = (
        now.caught_up(task),
        now.presumed_caught_up(task),
        now.previous_holders(task),
    )
    placed = [name for name in now.target[task].members if name in now.present and name != active]
    standbys = [name for name in placed if name in previous_holders or now.has_caught_up_copy(task, name)]
    enough = now.policy.num_standby_replicas + 1
    worth = {
        name: (name in presumed_caught_up) + (name in caught_up) for name in (active, *standbys, *previous_holders)
    }
    for name in sorted(previous_holders, key=lambda name: -worth[name]):
        if name == active or name in placed:
            continue
        others = [other for other in (active, *standbys) if worth[other] >= worth[name]]
        if len(others) < enough:
            standbys.append(name)
    return standbys


def _warming(task: TaskId, standbys: list[str], now: Situation) -> int:
    """How many of a task's standbys are warm-ups: beyond ``num_standby_replicas``, and not caught up."""
    counted = _in_place(task, standbys, now)
    extra = len(counted) + now.absent(task) - now.policy.num_standby_replicas
    advancing = [name for name in counted if name not in now.degraded]
    presumed_caught_up = now.presumed_caught_up(task)
    return max(0, min(extra, sum(name not in presumed_caught_up for name in advancing)))


def _in_place(task: TaskId, standbys: list[str], now: Situation) -> list[str]:
    """The standbys that count: all but degraded ones whose place is given to others."""
    target = now.target[task].members
    return [name for name in standbys if name not in now.degraded or name in target]


def _build(task: TaskId, active: str, standbys: list[str], warm_ups: int, now: Situation) -> int:
    """Add the target's replicas that still have to be built; returns how many warm-ups that takes.

    Nothing is built while a holder of the target is expected back.
    """
    if now.absent(task):
        return 0
    taken = 0
    for name in now.target[task].members:
        if name == active or name in standbys or name in now.degraded:
            continue
        extra = len(_in_place(task, standbys, now)) >= now.policy.num_standby_replicas
        if not extra or taken < warm_ups:
            standbys.append(name)
            taken += extra
    return taken
