"""Slots: numbers that Spark's shuffle takes to tasks of their own."""

from __future__ import annotations

from pyspark.sql import SparkSession


class Slots:
    """Which task writes which partitions: no more tasks than cores, since each costs some 50 ms."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._slots: tuple[int, ...] = ()

    def by_partition(self, session: SparkSession) -> tuple[int, ...]:
        """For each partition, a number that Spark's hash shuffles to the partition's task."""
        count = min(self._partitions, session.sparkContext.defaultParallelism)
        if len(set(self._slots)) != count:
            by_task = _slots(session, count)
            self._slots = tuple(by_task[partition % count] for partition in range(self._partitions))
        return self._slots


def _slots(session: SparkSession, tasks: int) -> tuple[int, ...]:
    """For each of this many tasks, a number that Spark's hash shuffles to it."""
    found: dict[int, int] = {}
    first, count = 0, 8 * tasks + 64
    while len(found) < tasks:
        rows = session.range(first, first + count).selectExpr(
            "cast(id as int) as slot", f"pmod(hash(cast(id as int)), {tasks}) as task"
        )
        for row in rows.collect():
            found.setdefault(row.task, row.slot)
        first += count
    return tuple(found[task] for task in range(tasks))
