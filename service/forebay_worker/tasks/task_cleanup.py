"""Released state: what is on disk and not held is deleted once it was released long enough ago."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import OffsetCache

log = logging.getLogger(__name__)


class _ReleasedTask(NamedTuple):
    """A task, or a store of a task's directory that is not in the topology."""

    task: TaskId
    stray: str = ""


class TaskCleanup:
    """What is on disk and not held. The delay counts from the release, or from a later start of the worker."""

    def __init__(self, directory: StateDirectory, topology: Topology, on_disk: OffsetCache, delay_ms: int) -> None:
        self._directory = directory
        self._topology = topology
        self._on_disk = on_disk
        self._delay_ms = delay_ms
        self._since_boot_ms: dict[_ReleasedTask, float] = {}

    def add(self, task: TaskId, stray: str = "") -> None:
        """Note that a task was released now, or is found to have a stray store, if that was not known before."""
        self._since_boot_ms.setdefault(_ReleasedTask(task, stray), boot_ms())

    def discard(self, task: TaskId) -> None:
        """Note that a task is held again."""
        self._since_boot_ms.pop(_ReleasedTask(task), None)

    def delete_due(self, wanted: Collection[TaskId]) -> None:
        """Delete what was released long enough ago, except tasks requested again."""
        now = boot_ms()
        for item in self._since_boot_ms.keys() & {_ReleasedTask(task) for task in wanted}:
            # Not opened yet.
            self._since_boot_ms[item] = now
        due = [item for item, since in self._since_boot_ms.items() if since <= now - self._delay_ms]
        for item in due:
            if item.stray or item.task not in wanted:
                self._delete(item, now)

    def _delete(self, item: _ReleasedTask, now_boot_ms: float) -> None:
        task, stray = item
        if not stray:
            self._on_disk.drop(task)
        try:
            for store in [stray] if stray else [spec.name for spec in self._topology.stores_of(task)]:
                self._directory.delete_store(task, store)
                self._directory.discard_set_aside(store, task.partition)
        except OSError as error:
            self._since_boot_ms[item] = now_boot_ms
            log.error("the stores of task %s could not be deleted, and will be later: %s", task, error)
            return
        del self._since_boot_ms[item]
        self._directory.remove_if_empty(task)
        if stray:
            log.info("%s/%s, which the topology has had no place for since a while ago, was deleted", task, stray)
        else:
            log.info("the stores of task %s, released a while ago, were deleted", task)
