"""Released state: what is on disk and not held is deleted once it was released long enough ago."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from forebay.clock import steady_epoch_ms
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import OffsetCache

log = logging.getLogger(__name__)

_FILE = "released.json"


class _ReleasedTask(NamedTuple):
    """A task, or a store of a task's directory that is not in the topology."""

    task: TaskId
    stray: str = ""


class TaskCleanup:
    """What is on disk and not held, and since when. The delay counts from the release, whatever starts follow.

    Moments are of the wall clock, which goes on while the machine is off, whatever sets it meanwhile. One in the
    future counts as now.
    """

    def __init__(self, directory: StateDirectory, topology: Topology, on_disk: OffsetCache, delay_ms: int) -> None:
        self._directory = directory
        self._topology = topology
        self._on_disk = on_disk
        self._delay_ms = delay_ms
        self._since_epoch_ms: dict[_ReleasedTask, float] = {}
        self._saved: dict[_ReleasedTask, float] = {}

    def load(self, tasks: Collection[TaskId], strays: Iterable[tuple[TaskId, str]]) -> None:
        """Read the moments that an earlier start recorded of these, which are on disk; strays have no other."""
        recorded, now = self._directory.document(_FILE).get("released"), steady_epoch_ms()
        for row in recorded if isinstance(recorded, list) else ():
            try:
                ordinal, partition, stray, since, *stores = row
                released = _ReleasedTask(TaskId(int(ordinal), int(partition)), str(stray))
                # With another topology, other stores may have been moved there.
                if not stores or stores == [self._stores(released)]:
                    self._since_epoch_ms[released] = min(now, float(since))
            except (TypeError, ValueError):
                log.warning("%r in %s is ignored: it is no release", row, _FILE)
        left = {_ReleasedTask(*stray) for stray in strays}
        there = left | {_ReleasedTask(task) for task in tasks}
        self._since_epoch_ms = {item: since for item, since in self._since_epoch_ms.items() if item in there}
        for stray in left:
            self._since_epoch_ms.setdefault(stray, now)
        self.save()

    def add(self, task: TaskId) -> None:
        """Note that a task was released now, if it was not before."""
        self._since_epoch_ms.setdefault(_ReleasedTask(task), steady_epoch_ms())

    def discard(self, task: TaskId) -> None:
        """Note that a task is held again."""
        self._since_epoch_ms.pop(_ReleasedTask(task), None)

    def save(self) -> None:
        """Record the moments for the next start, if any changed."""
        if self._since_epoch_ms == self._saved:
            return
        rows = [
            [*item.task, item.stray, since, self._stores(item)]
            for item, since in sorted(self._since_epoch_ms.items())
        ]
        try:
            self._directory.write_document(_FILE, {"released": rows})
        except OSError as error:
            # The disk may be full, and the worker serves what is on it; the next start counts anew.
            log.warning("since when tasks are released could not be recorded: %s", error)
        self._saved = dict(self._since_epoch_ms)

    def delete_due(self, wanted: Collection[TaskId]) -> None:
        """Delete what was released long enough ago, except tasks requested again."""
        now = steady_epoch_ms()
        for item in self._since_epoch_ms.keys() & {_ReleasedTask(task) for task in wanted}:
            # Not opened yet.
            self._since_epoch_ms[item] = now
        due = [item for item, since in self._since_epoch_ms.items() if since <= now - self._delay_ms]
        for item in due:
            if item.stray or item.task not in wanted:
                self._delete(item, now)
        if due:
            self.save()

    def _stores(self, item: _ReleasedTask) -> list[str]:
        """The stores of a task, or the one that the topology has no place for."""
        return [item.stray] if item.stray else [spec.name for spec in self._topology.stores_of(item.task)]

    def _delete(self, item: _ReleasedTask, now_epoch_ms: float) -> None:
        task, stray = item
        if not stray:
            self._on_disk.drop(task)
        try:
            for store in self._stores(item):
                self._directory.delete_store(task, store)
                self._directory.discard_set_aside(store, task.partition)
        except OSError as error:
            self._since_epoch_ms[item] = now_epoch_ms
            log.error("the stores of task %s could not be deleted, and will be later: %s", task, error)
            return
        del self._since_epoch_ms[item]
        self._directory.remove_if_empty(task)
        if stray:
            log.info("%s/%s, which the topology has had no place for since a while ago, was deleted", task, stray)
        else:
            log.info("the stores of task %s, released a while ago, were deleted", task)
