"""A disk of its own for each worker's state, where one can be mounted."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from tests.support.disks import CannotMount, FailingDisk, fill, filler_of


class Disk:
    """A worker's disk, which can be full, or turn read-only and lose what was not synchronised."""

    def __init__(self, path: Path) -> None:
        self._failing = FailingDisk(path)
        self.path = path

    def fill(self) -> None:
        """Leave no room."""
        with contextlib.suppress(OSError):
            fill(self.path)

    def free(self) -> None:
        """Leave room again."""
        with contextlib.suppress(OSError):
            filler_of(self.path).unlink(missing_ok=True)

    def turn_read_only(self) -> None:
        """Have it meet an error, unless it has met one."""
        if not self._failing.is_read_only:
            self._failing.turn_read_only()

    def mend(self) -> None:
        """Have it writable, once nobody uses it."""
        if self._failing.is_read_only:
            self._failing.mend()
            self.free()

    def close(self) -> None:
        """Take it away."""
        self._failing.close()


def can_mount() -> bool:
    """Whether this user may mount disks, on this machine."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            Disk(Path(directory) / "disk").close()
        except (CannotMount, OSError):
            return False
    return True
