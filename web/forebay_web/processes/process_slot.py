"""The place of a process among those of its parent, and the files in which they report to each other."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from forebay_web.tickets import make_ticket_key

_SILENT_AFTER_NS = 3_000_000_000


@dataclass(frozen=True)
class ProcessSlot:
    """The number of a process, which its successors have too; the files of all are in ``directory``."""

    number: int
    processes: int
    directory: Path
    ticket_key: bytes = field(default_factory=make_ticket_key, repr=False)
    """Signs tickets unless the settings have a key: the same in all processes of one parent."""

    @property
    def is_single(self) -> bool:
        return self.processes == 1

    @property
    def others(self) -> list[int]:
        return [number for number in range(self.processes) if number != self.number]

    def report_of(self, number: int) -> Path:
        """The file in which a process says each second how it is."""
        return self.directory / f"{number}.report"

    def metrics_of(self, number: int) -> Path:
        """The file of a process's metrics, as of when a scrape last wanted them."""
        return self.directory / f"{number}.metrics"

    @property
    def wanted(self) -> Path:
        """The file whose date is that of the last scrape."""
        return self.directory / "wanted"

    def is_silent(self, number: int) -> bool:
        """Whether a process has died, hangs, or has not come up."""
        return time.monotonic_ns() - date_of(self.report_of(number)) > _SILENT_AFTER_NS


SINGLE_PROCESS = ProcessSlot(0, 1, Path())


def write_report(path: Path, content: bytes, date_ns: int) -> None:
    """Replace a file, and date it by the clock that nobody sets. On a full disk it keeps its content."""
    new = path.with_suffix(f"{path.suffix}.new")
    with contextlib.suppress(OSError):
        new.write_bytes(content)
        new.replace(path)
    set_date(path, date_ns)


def set_date(path: Path, date_ns: int) -> None:
    """Date a file, if it exists."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(date_ns, date_ns))


def date_of(path: Path) -> int:
    """The date of a file, long ago if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return -_SILENT_AFTER_NS - 1
