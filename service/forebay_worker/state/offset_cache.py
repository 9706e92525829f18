"""The offset cache: what is on this disk, held or not, reported at each rebalance (KIP-1035)."""

from __future__ import annotations

import threading

from forebay.task_ids import TaskId
from forebay_worker.state.offsets_file import Positions

CAUGHT_UP = -2
"""Stands for "at the end" among a member's offsets, Kafka Streams' ``LATEST_OFFSET``.

Only while an active's lag is proven to be acceptable; at close the real offset takes its place.
"""
INCOMPLETE = -3
"""Stands for a store that never reached an end of its log: however short that is, another's copy takes over."""


class OffsetCache:
    """Positions of closed stores on disk. Any thread may use it; in-memory stores never enter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[TaskId, dict[str, int]] = {}

    def load(self, positions: Positions) -> None:
        """Replace all entries by what was found on disk."""
        with self._lock:
            self._positions = {task: dict(stores) for task, stores in positions.items()}

    def put(self, task: TaskId, store: str, position: int) -> None:
        """Record a store's position when it was closed."""
        with self._lock:
            self._positions.setdefault(task, {})[store] = position

    def drop(self, task: TaskId) -> None:
        """Drop a task that is held, and reports for itself, or whose directory is gone."""
        with self._lock:
            self._positions.pop(task, None)

    def positions(self) -> Positions:
        """All known positions."""
        with self._lock:
            return {task: dict(stores) for task, stores in self._positions.items()}
