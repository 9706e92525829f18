"""A process's use of the machine, as counted by the kernel."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Processor time so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


class Family:
    """A process and all that descend from it: their processor time, and the most memory seen at any sample."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begun_s = self._used_s()
        self.max_resident_mb = 0.0
        self.sample()

    @property
    def processor_s(self) -> float:
        """Processor time since the beginning, of those that have ended meanwhile too."""
        return self._used_s() - self._begun_s

    def sample(self) -> None:
        """Look at their memory."""
        self.max_resident_mb = max(self.max_resident_mb, sum(self._of_each(resident_mb)))

    def _used_s(self) -> float:
        return sum(self._of_each(_processor_with_ended_children_s))

    def _of_each(self, figure: Callable[[int], float]) -> Iterator[float]:
        for pid in _descendants(self._pid):
            # It may just have ended.
            with contextlib.suppress(OSError, ValueError):
                yield figure(pid)


def _descendants(pid: int) -> list[int]:
    """The process itself first."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in _descendants(child))]


def _processor_with_ended_children_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_A_SECOND


def resident_mb(pid: int) -> float:
    """Memory resident now."""
    return _status_mb(pid, "VmRSS")


def max_resident_mb(pid: int) -> float:
    """The most memory that was ever resident."""
    return _status_mb(pid, "VmHWM")


def descriptors(pid: int) -> float:
    """How many files, connections among them, are open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> float:
    """How many threads there are."""
    return _status(pid, "Threads")


def _status_mb(pid: int, field: str) -> float:
    return _status(pid, field) * 1024 / 1e6


def _status(pid: int, field: str) -> int:
    [found] = re.findall(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found)
