"""Released tasks: their state on disk is deleted once they were released long enough ago."""

from __future__ import annotations

import logging
from collections.abc import Collection

from forebay.clock import boot_ms
from forebay.tasks import TaskId
from forebay.topology import Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets import OffsetCache

log = logging.getLogger(__name__)


class ReleasedTasks:
    """Tasks on disk that are not held, and since when; ``delay_ms`` counts from the release, not from a start."""

    def __init__(self, directory: StateDirectory, topology: Topology, on_disk: OffsetCache, delay_ms: int) -> None:
        self._directory = directory
        self._topology = topology
        self._on_disk = on_disk
        self._delay_ms = delay_ms
        self._since_boot_ms: dict[TaskId, float] = {}

    def add(self, task: TaskId) -> None:
        """Note that a task was released now, if it was not before."""
        self._since_boot_ms.setdefault(task, boot_ms())

    def discard(self, task: TaskId) -> None:
        """Note that a task is held again."""
        self._since_boot_ms.pop(task, None)

    def delete_due(self, wanted: Collection[TaskId]) -> None:
        """Delete the stores of tasks released long enough ago, except those requested again."""
        now = boot_ms()
        for task in self._since_boot_ms.keys() & wanted:
            # Not opened yet.
            self._since_boot_ms[task] = now
        released = self._since_boot_ms.keys() - wanted
        for task in [task for task in released if self._since_boot_ms[task] <= now - self._delay_ms]:
            self._on_disk.drop(task)
            try:
                for spec in self._topology.stores_of(task):
                    self._directory.delete_store(task, spec.name)
                    self._directory.discard_set_aside(spec.name, task.partition)
            except OSError as error:
                self._since_boot_ms[task] = now
                log.error("the stores of task %s could not be deleted, and will be later: %s", task, error)
            else:
                del self._since_boot_ms[task]
                self._directory.remove_if_empty(task)
                log.info("the stores of task %s, released a while ago, were deleted", task)
