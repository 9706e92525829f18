"""Seconds that one round of the assignor takes: cold, and after one member joined or left for good.

First 20 tasks for each member, in 100 sub-topologies, with one standby. Then one sub-topology on a few members,
where those with room hold most tasks already.
Run with .venv/bin/python bench/assignor.py
"""

from __future__ import annotations

import time
from dataclasses import replace

from forebay.task_ids import TaskId
from forebay_worker.group.assignor import NO_ASSIGNMENT, Assignment, AssignmentPolicy, Member, assign

SUBTOPOLOGIES = 100
TASKS_PER_MEMBER = 20
RACKS = 3
ONE_SUBTOPOLOGY = [(1, 4), (2, 4), (3, 5), (4, 6)]
"""Standbys and members."""
POLICY = AssignmentPolicy()


def main() -> None:
    print("members  tasks  cold (s)  one left (s)  with racks: cold (s)  one left (s)")
    for count in (250, 500, 1_000, 2_000):
        plain = [Member(f"worker-{i:04}") for i in range(count)]
        racked = [replace(member, rack=f"rack-{i % RACKS}") for i, member in enumerate(plain)]
        seconds = [second for members in (plain, racked) for second in measure(members)]
        columns = "".join(f"{s:>{width}.2f}" for s, width in zip(seconds, (10, 14, 22, 14), strict=True))
        print(f"{count:>7} {count * TASKS_PER_MEMBER:>6}{columns}")
    print("partitions  members  standbys  cold (s)  one left (s)  one joined (s)")
    for partitions in (1_000, 4_000, 16_000):
        for standbys, count in ONE_SUBTOPOLOGY:
            columns = "".join(
                f"{s:>{width}.2f}"
                for s, width in zip(measure_one(partitions, count, standbys), (10, 14, 16), strict=True)
            )
            print(f"{partitions:>10} {count:>8} {standbys:>9}{columns}")


def measure_one(partitions: int, count: int, standbys: int) -> tuple[float, float, float]:
    tasks = [TaskId(0, i) for i in range(partitions)]
    members = [Member(f"worker-{i}") for i in range(count)]
    policy = AssignmentPolicy(num_standby_replicas=standbys)
    outcome, cold = timed(tasks, members, NO_ASSIGNMENT, policy)
    caught_up = with_copies(members, outcome)
    _, one_left = timed(tasks, caught_up[1:], outcome, policy)
    _, one_joined = timed(tasks, [*caught_up, Member("joiner")], outcome, policy)
    return cold, one_left, one_joined


def measure(members: list[Member]) -> tuple[float, float]:
    partitions = len(members) * TASKS_PER_MEMBER // SUBTOPOLOGIES
    tasks = [TaskId(ordinal, i) for ordinal in range(SUBTOPOLOGIES) for i in range(partitions)]
    outcome, cold = timed(tasks, members, NO_ASSIGNMENT)
    _, one_left = timed(tasks, with_copies(members, outcome)[1:], outcome)
    return cold, one_left


def with_copies(members: list[Member], outcome: Assignment) -> list[Member]:
    return [
        replace(member, lags=dict.fromkeys(held, 0))
        for member, held in zip(members, tasks_by_member(members, outcome), strict=True)
    ]


def tasks_by_member(members: list[Member], outcome: Assignment) -> list[list[TaskId]]:
    held: dict[str, list[TaskId]] = {member.id: [] for member in members}
    for task, placement in outcome.current.items():
        for name in placement.members:
            held[name].append(task)
    return list(held.values())


def timed(
    tasks: list[TaskId], members: list[Member], previous: Assignment, policy: AssignmentPolicy = POLICY
) -> tuple[Assignment, float]:
    started = time.perf_counter()
    outcome = assign(tasks, members, previous, policy)
    return outcome, time.perf_counter() - started


if __name__ == "__main__":
    main()
