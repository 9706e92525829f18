"""Seconds that one round of the assignor takes: cold, and after one member left for good.

20 tasks for each member, 100 sub-topologies, one standby. Run with .venv/bin/python bench/assignor.py
"""

from __future__ import annotations

import time
from dataclasses import replace

from forebay.task_ids import TaskId
from forebay_worker.group.assignor import NO_ASSIGNMENT, Assignment, AssignmentPolicy, Member, assign

SUBTOPOLOGIES = 100
TASKS_PER_MEMBER = 20
RACKS = 3


def main() -> None:
    print("members  tasks  cold (s)  one left (s)  with racks: cold (s)  one left (s)")
    for count in (250, 500, 1_000, 2_000):
        plain = [Member(f"worker-{i:04}") for i in range(count)]
        racked = [replace(member, rack=f"rack-{i % RACKS}") for i, member in enumerate(plain)]
        seconds = [second for members in (plain, racked) for second in measure(members)]
        columns = "".join(f"{s:>{width}.2f}" for s, width in zip(seconds, (10, 14, 22, 14), strict=True))
        print(f"{count:>7} {count * TASKS_PER_MEMBER:>6}{columns}")


def measure(members: list[Member]) -> tuple[float, float]:
    partitions = len(members) * TASKS_PER_MEMBER // SUBTOPOLOGIES
    tasks = [TaskId(ordinal, i) for ordinal in range(SUBTOPOLOGIES) for i in range(partitions)]
    outcome, cold = timed(tasks, members, NO_ASSIGNMENT)
    caught_up = [
        replace(member, lags=dict.fromkeys(held, 0))
        for member, held in zip(members, tasks_by_member(members, outcome), strict=True)
    ]
    _, one_left = timed(tasks, caught_up[1:], outcome)
    return cold, one_left


def tasks_by_member(members: list[Member], outcome: Assignment) -> list[list[TaskId]]:
    held: dict[str, list[TaskId]] = {member.id: [] for member in members}
    for task, placement in outcome.current.items():
        for name in placement.members:
            held[name].append(task)
    return list(held.values())


def timed(tasks: list[TaskId], members: list[Member], previous: Assignment) -> tuple[Assignment, float]:
    started = time.perf_counter()
    outcome = assign(tasks, members, previous, AssignmentPolicy())
    return outcome, time.perf_counter() - started


if __name__ == "__main__":
    main()
