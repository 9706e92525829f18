"""Members and placements: the assignor's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from forebay.task_ids import TaskId
from forebay_worker.group.member_health import MemberHealth


@dataclass(frozen=True)
class Member:
    """A member as the assignor sees it.

    ``lags`` maps each task that it has a copy of to that copy's lag in records; ``unchecked`` are those of them
    that were not compared with their logs since they were opened, so that they may prove worthless. An absent
    member is expected back: it keeps its place in the target, and gets nothing meanwhile. ``rack`` names the unit
    that fails together with it (KIP-708).
    """

    id: str
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    absent: bool = False
    rack: str | None = None
    health: MemberHealth = MemberHealth.HEALTHY
    unchecked: frozenset[TaskId] = frozenset()


@dataclass(frozen=True)
class Placement:
    """The holders of one task; standbys are in order of preference."""

    active: str
    standbys: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Every holder."""
        return (self.active, *self.standbys)


@dataclass(frozen=True)
class AssignmentPolicy:
    """The numeric settings of an assignment; with no warm-up allowed, nothing new would ever take over."""

    num_standby_replicas: int = 1
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2


@dataclass(frozen=True)
class Assignment:
    """The outcome of a round: what to do now, and the target."""

    current: Mapping[TaskId, Placement]
    target: Mapping[TaskId, Placement]

    def of(self, tasks: Set[TaskId]) -> Assignment:
        """What it says of some tasks."""
        current = {task: place for task, place in self.current.items() if task in tasks}
        return Assignment(current, {task: place for task, place in self.target.items() if task in tasks})

    @property
    def moving(self) -> frozenset[TaskId]:
        """The tasks that are not where the target has them."""
        return frozenset(
            task
            for task, placement in self.current.items()
            if (placement.active, set(placement.standbys))
            != (self.target[task].active, set(self.target[task].standbys))
        )

    @property
    def settled(self) -> bool:
        """Whether another round would change nothing."""
        return not self.moving


NO_ASSIGNMENT = Assignment({}, {})

Copies = Mapping[TaskId, Mapping[str, int]]
"""By task, the lag of each present member's copy, nearest first."""
