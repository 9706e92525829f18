"""The topology under test, with its sub-topologies in either order: where a store is kept depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

TTL_MS = {"seen": 4_000}
"""By store, how long its values live by the clock."""
RETENTION_MS = {"moments": 5_000}
"""By store, how far behind the newest a window may be in its log; of the others no window is ever."""
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
_PASSING = f"""
[[subtopology]]
name = "passing"
partitions = 2

[[subtopology.store]]
name = "seen"
ttl_ms = {TTL_MS["seen"]}

[[subtopology.store]]
name = "moments"
kind = "window"
window_size_ms = 1000
retention_ms = {RETENTION_MS["moments"]}
"""
_WIDE = """
[[subtopology]]
name = "wide"
partitions = {partitions}

[[subtopology.store]]
name = "wide"
supplier = "memory"
"""
GROWN = "grown"
"""A store whose topic gets more partitions."""
_GROWN = f"""
[[subtopology]]
name = "grown"
partitions = 2

[[subtopology.store]]
name = "{GROWN}"
"""
_LARGE = """
[[subtopology]]
name = "large"
partitions = 1

[[subtopology.store]]
name = "large"
"""
WIDE_PARTITIONS = 16


class TopologyFile:
    """The file that processes read when they start; ``partitions`` are those of the widest store."""

    def __init__(self, path: Path, partitions: int = WIDE_PARTITIONS) -> None:
        self.path = path
        subtopologies = [_COUNTS, _TIMES, _PASSING, _GROWN, _LARGE, _WIDE.format(partitions=partitions)]
        self._orders: Iterator[list[str]] = itertools.cycle((subtopologies, subtopologies[::-1]))
        self.change()

    def change(self) -> None:
        """Put the sub-topologies into the other order, for who starts from now on."""
        written = self.path.with_suffix(".new")
        written.write_text("\n".join(['application_id = "chaos"', *next(self._orders)]))
        written.replace(self.path)
