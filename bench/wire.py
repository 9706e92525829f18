"""Bytes and milliseconds of the worker group's two messages: ``python bench/wire.py [HOSTS] [PARTITIONS]``."""

import random
import sys
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from forebay.streams_metadata import Generation, HostInfo
from forebay.task_ids import TaskId
from forebay_worker.group.assignor import Assignment, Placement
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo

ROUNDS = 5
MOVING_SHARE = 0.05


def assignment_info(hosts: int, partitions: int, moving_share: float) -> AssignmentInfo:
    """Every task with one active and one standby; some of the tasks are to move."""
    rng = random.Random(1)
    members = [f"{rng.getrandbits(128):032x}" for _ in range(hosts)]

    def placement() -> Placement:
        active, standby = rng.sample(members, 2)
        return Placement(active, (standby,))

    actual = {TaskId(0, partition): placement() for partition in range(partitions)}
    intended = {task: placement() if rng.random() < moving_share else kept for task, kept in actual.items()}
    addresses = {name: HostInfo(f"worker-{i}.forebay.svc.cluster.local", 8080) for i, name in enumerate(members)}
    generation = Generation(int(time.time() * 1000), 1_234)
    return AssignmentInfo(generation, "0123456789ab", addresses, Assignment(actual, intended))


def subscription_info(held: list[TaskId]) -> SubscriptionInfo:
    """A member with a copy of each of these tasks, none at the end."""
    rng = random.Random(2)
    host = HostInfo("worker-1.forebay.svc.cluster.local", 8080)
    offsets = {task: (rng.randrange(10**9),) for task in held}
    process_id = f"{rng.getrandbits(128):032x}"
    return SubscriptionInfo(process_id, int(time.time() * 1000), host, "0123456789ab", offsets)


def best_ms(function: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few calls."""
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        function()
        taken.append((time.perf_counter() - begun) * 1000)
    return min(taken)


def main(hosts: int = 1_000, partitions: int = 20_000) -> None:
    every = [TaskId(0, partition) for partition in range(partitions)]
    share = every[:: max(1, hosts // 2)]
    messages: list[tuple[str, AssignmentInfo | SubscriptionInfo]] = [
        ("AssignmentInfo, settled", assignment_info(hosts, partitions, 0)),
        (f"AssignmentInfo, {MOVING_SHARE:.0%} moving", assignment_info(hosts, partitions, MOVING_SHARE)),
        (f"SubscriptionInfo, {len(share):,} tasks", subscription_info(share)),
        (f"SubscriptionInfo, {len(every):,} tasks", subscription_info(every)),
    ]
    table = Table(title=f"{hosts:,} hosts x {partitions:,} partitions, best of {ROUNDS}", title_justify="left")
    table.add_column("message")
    for column in ("bytes", "encode ms", "decode ms"):
        table.add_column(column, justify="right")
    for name, message in messages:
        raw = message.encode()
        table.add_row(
            name,
            f"{len(raw):,}",
            f"{best_ms(message.encode):.1f}",
            f"{best_ms(partial(message.decode, raw)):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
