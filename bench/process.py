"""A process's use of the machine, as counted by the kernel."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    """Processor time so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def resident_mb(pid: int) -> float:
    """Memory resident now."""
    return _status_mb(pid, "VmRSS")


def most_resident_mb(pid: int) -> float:
    """The most memory that was ever resident."""
    return _status_mb(pid, "VmHWM")


def _status_mb(pid: int, field: str) -> float:
    [kib] = re.findall(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) * 1024 / 1e6
