"""The topology under test, with its sub-topologies in either order: where a store is kept depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

_COUNTS = """
[[subtopology]]
name = "counts"
partitions = 4

[[subtopology.store]]
name = "counts"
"""
_TIMES = """
[[subtopology]]
name = "times"
partitions = 2

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000
"""
TOPOLOGY, REORDERED = (
    f'application_id = "chaos"\n{first}{second}' for first, second in ((_COUNTS, _TIMES), (_TIMES, _COUNTS))
)


class TopologyFile:
    """The file that processes read when they start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._orders: Iterator[str] = itertools.cycle((TOPOLOGY, REORDERED))
        self.change()

    def change(self) -> None:
        """Put the sub-topologies into the other order, for who starts from now on."""
        written = self.path.with_suffix(".new")
        written.write_text(next(self._orders))
        written.replace(self.path)
