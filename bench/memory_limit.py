"""A limit on a process's memory, the pages of the files that it reads included, as a container has it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup/memory")
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class MemoryLimit:
    """A group of processes that together have this much; raises ``OSError`` without root or cgroup v1."""

    def __init__(self, limit_bytes: int) -> None:
        self._directory = _GROUPS / f"forebay-bench-{os.getpid()}"
        self._directory.mkdir()
        (self._directory / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def command(self, command: Sequence[str]) -> list[str]:
        """The command, begun in the group."""
        return ["sh", "-c", f'echo $$ > {self._directory}/cgroup.procs && exec "$@"', "sh", *command]

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        self._directory.rmdir()


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[MemoryLimit]:
    """A limit that is in force meanwhile."""
    limit = MemoryLimit(limit_bytes)
    try:
        yield limit
    finally:
        limit.close()


def drop_file_pages() -> None:
    """Have the system forget what files it has in memory, so that reads of them reach the disk."""
    os.sync()
    _DROP_CACHES.write_text("1")
