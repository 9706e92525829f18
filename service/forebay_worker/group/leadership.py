"""Who leads, and what a leader starts from: pure functions over the members' messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from forebay.streams_metadata import HostInfo
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.group.placement import NO_ASSIGNMENT, Assignment, Placement


def may_lead(mine: str, fingerprints: Iterable[str], *, led: bool) -> bool:
    """Whether a member has the most frequent topology: one misconfigured worker must not lead the rest.

    Of several that are equally frequent, the one that has led stays, else the first by name is chosen.
    """
    counts = Counter(fingerprints)
    most = max(counts.values())
    foremost = [fingerprint for fingerprint in sorted(counts) if counts[fingerprint] == most]
    return mine in foremost if led else mine == foremost[0]


def alike(topology: Topology, subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
    """Those with the leader's topology."""
    return {
        name: subscription
        for name, subscription in subscriptions.items()
        if subscription.fingerprint == topology.fingerprint
    }


def holders(assignment: Assignment) -> set[str]:
    """Every member with an intended place."""
    return {name for placement in assignment.target.values() for name in placement.members}


def assignment_to_continue(topology: Topology, previous: AssignmentInfo | None) -> Assignment:
    """The assignment to start from: the previous one; from another topology, the part about the same stores."""
    if previous is None:
        return NO_ASSIGNMENT
    if previous.fingerprint == topology.fingerprint:
        return previous.assignment
    ordinals = {
        sub.ordinal: previous.ordinals[store.name]
        for sub in topology.subtopologies
        for store in sub.stores
        if store.name in previous.ordinals
    }

    def translated(placements: Mapping[TaskId, Placement]) -> dict[TaskId, Placement]:
        there = {
            task: TaskId(ordinals[task.ordinal], task.partition)
            for task in topology.tasks
            if task.ordinal in ordinals
        }
        return {task: placements[was] for task, was in there.items() if was in placements}

    return Assignment(translated(previous.assignment.current), translated(previous.assignment.target))


def with_places_of(newest: AssignmentInfo, followed: AssignmentInfo, topology: Topology) -> AssignmentInfo:
    """What members hold by the assignment that they follow, and the places of a newer one that no present member
    follows.

    Those who did follow it are gone, and keep their places. What it would have had the present ones build is not.
    """
    target = assignment_to_continue(topology, newest).target
    current = assignment_to_continue(topology, followed).current
    held = {task: placement for task, placement in current.items() if task in target}
    return replace(
        newest,
        fingerprint=topology.fingerprint,
        assignment=Assignment(held, target),
        ordinals=dict(topology.ordinal_by_store),
    )


def superseded(by: HostInfo | str, mine: HostInfo) -> str:
    """The complaint of a worker whose process id another one has, that was started later."""
    return (
        f"The worker at {by} was started later with this one's process id: the state directory of one is a copy "
        f"of the other's. This one, at {mine}, gets no tasks. Stop one, and remove process.json from its state "
        "directory."
    )
