"""What a leader starts from: the assignment that was, by another topology or another leader maybe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_worker.group.messages import AssignmentInfo
from forebay_worker.group.placement import NO_ASSIGNMENT, Assignment, Placement


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
