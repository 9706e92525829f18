"""The assignor: decides which member should hold which task. A pure function, in the manner of KIP-441 and
KIP-708.

Each round computes two placements. The *target* is balanced and as close to the previous one as balance
allows; it depends only on the members, absent ones included, and is its own fixpoint. The *current* one serves
reads now: if the target's active is not caught up, a member that is stays active while the target one warms up,
and a caught-up replica is released only once enough others are caught up. Rounds repeat until the two agree.

Priorities: every task has one active > which is caught up > replicas on distinct members > balance, within one in
each sub-topology and in total, of actives and of standbys > standbys on other racks than the active and each other
> the standbys of a member's actives on all others > stickiness. Rack preference therefore moves a standby if that
spreads a task better without costing balance, and never moves an active. A member of unknown rack shares a rack
with no other. The spread over all others moves standbys only, too. After a loss no member has more than its share
and one, where racks leave that choice.

A copy that was not compared with its log yet is kept as if it were caught up, but nothing is released for it: it
may be of a log that was replaced meanwhile. An active whose lag swings about the limit stays where it is.

A member whose machine refuses its writes is not caught up for long, so it does not count as such where another is,
and gets nothing new (``MemberHealth``). If that is true of all, of none.

The work grows with replicas and with sub-topologies x members, not with tasks x members. The search for a better
spread is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay.task_ids import TaskId
from forebay_worker.group.current_assignment import Situation, next_assignment
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.placement import (
    NO_ASSIGNMENT,
    Assignment,
    AssignmentPolicy,
    Copies,
    Member,
    Placement,
)
from forebay_worker.group.target_assignment import target_assignment

__all__ = ["NO_ASSIGNMENT", "Assignment", "AssignmentPolicy", "Member", "Placement", "assign"]


def assign(
    tasks: Iterable[TaskId], members: Iterable[Member], previous: Assignment, policy: AssignmentPolicy
) -> Assignment:
    """One round over all tasks; with no present member the outcome is empty."""
    ordered = sorted(set(tasks))
    everyone = {member.id: member for member in sorted(members, key=lambda member: member.id)}
    present = [member for member in everyone.values() if not member.absent]
    if not present:
        return NO_ASSIGNMENT
    copies = _copies(ordered, present)
    expected = _expected(everyone, previous) or everyone
    target = target_assignment(ordered, expected, copies, previous.target, policy)
    situation = Situation(
        frozenset(member.id for member in present),
        frozenset(member.id for member in present if member.health is not MemberHealth.HEALTHY),
        copies,
        {member.id: member.unchecked for member in present},
        target,
        previous.current,
        policy,
    )
    return Assignment(next_assignment(ordered, situation), target)


def _expected(everyone: Mapping[str, Member], previous: Assignment) -> dict[str, Member]:
    """The members that may have a place: one that is degraded keeps it, but is given none."""
    placed = {name for placement in previous.target.values() for name in placement.members}
    return {
        name: member
        for name, member in everyone.items()
        if member.health is MemberHealth.HEALTHY or (member.health is MemberHealth.DEGRADED and name in placed)
    }


def _copies(tasks: list[TaskId], present: list[Member]) -> Copies:
    copies: dict[TaskId, dict[str, int]] = {task: {} for task in tasks}
    for member in present:
        for task, lag in member.lags.items():
            if task in copies:
                copies[task][member.id] = lag
    return {task: dict(sorted(lags.items(), key=lambda copy: (copy[1], copy[0]))) for task, lags in copies.items()}
