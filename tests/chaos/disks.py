"""A disk of its own for each worker's state, where one can be mounted."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from tests.support.disks import CannotMount, FailingDisk, fill, filler_of

SLOW_BYTES_PER_SECOND = 128 << 10
_LIMITS = ("read_bps_device", "write_bps_device")


class Disk:
    """A worker's disk, which can be full or slow, or turn read-only and lose what was not synchronised."""

    def __init__(self, path: Path) -> None:
        self._failing = FailingDisk(path)
        self.path = path
        self._slow_device: int | None = None

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

    def slow_down(self) -> None:
        """Have it pass few bytes a second, for as long as it is mounted."""
        self.speed_up()
        self._slow_device = os.stat(self.path).st_dev
        _limit(self._slow_device, SLOW_BYTES_PER_SECOND)

    def speed_up(self) -> None:
        """Have it as fast as it was."""
        if self._slow_device is not None:
            _limit(self._slow_device, 0)
            self._slow_device = None

    def mend(self) -> None:
        """Have it writable, once nobody uses it."""
        if self._failing.is_read_only:
            self._failing.mend()
            self.free()

    def close(self) -> None:
        """Take it away."""
        self.speed_up()
        self._failing.close()


def found_below(directory: Path, pattern: str) -> list[Path]:
    """What matches a pattern below a directory, in order."""
    while True:
        # A worker may remove a store meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return sorted(directory.glob(pattern))


def cool(directory: Path) -> None:
    """Have the machine keep nothing in memory of the files below a directory."""
    for path in found_below(directory, "**/*.sst"):
        # RocksDB may remove it meanwhile.
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def can_slow_down() -> bool:
    """Whether the kernel limits disks for this process and its children, as control groups of version 1 do."""
    return all(os.access(_limits_file(name), os.W_OK) for name in _LIMITS)


def _limit(device: int, bytes_per_second: int) -> None:
    """Limit a device, not at all if 0."""
    for name in _LIMITS:
        _limits_file(name).write_text(f"{os.major(device)}:{os.minor(device)} {bytes_per_second}")


def _limits_file(name: str) -> Path:
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, controllers, path in groups if controllers == "blkio"), "/")
    return Path(f"/sys/fs/cgroup/blkio{own}", f"blkio.throttle.{name}")


def can_mount() -> bool:
    """Whether this user may mount disks, on this machine."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            Disk(Path(directory) / "disk").close()
        except (CannotMount, OSError):
            return False
    return True
