"""Disks that fail: small ones to fill, and ones that turn read-only. They need a user with the right to mount."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOM_BYTES = 128 << 20
_UNUSED_WITHIN_S = 30


class CannotMount(Exception):
    """Nothing can be mounted here."""


class FailingDisk:
    """An ext4 that turns read-only at its first error, as a server's does. Raises ``CannotMount``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._image = path.with_suffix(".image")
        path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(ROOM_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        self._mount()

    @property
    def is_read_only(self) -> bool:
        """Whether it has met its error, of which not every kernel's list of mounts tells."""
        probe = self.path / "probe"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            return error.errno == errno.EROFS
        return False

    def turn_read_only(self) -> None:
        """Have it meet its error."""
        find = ["findmnt", "-no", "SOURCE", str(self.path)]
        device = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("meant")
        assert self.is_read_only

    def mend(self) -> None:
        """Make it writable again, as its administrator does once nobody uses it."""
        deadline = time.monotonic() + _UNUSED_WITHIN_S
        # The processes that a killed one had started may take a moment to end.
        while subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{self.path} is in use"
            time.sleep(0.05)
        # It ends with 1 if it has mended something.
        subprocess.run(["e2fsck", "-p", str(self._image)], capture_output=True, check=False)
        self._mount()

    def close(self) -> None:
        """Take it away."""
        _unmount(self.path)

    def _mount(self) -> None:
        _mount(self.path, "-o", "loop,errors=remount-ro", str(self._image))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    with _or_skipped():
        _mount(path, "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs")
    try:
        yield path
    finally:
        _unmount(path)


@contextlib.contextmanager
def overlay(path: Path) -> Iterator[Path]:
    """Mount an overlay over a directory, which becomes the lower layer: no directory in it can be renamed."""
    upper, work = path.with_suffix(".upper"), path.with_suffix(".work")
    upper.mkdir()
    work.mkdir()
    with _or_skipped():
        _mount(path, "-t", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", "overlay")
    try:
        yield path
    finally:
        _unmount(path)


@contextlib.contextmanager
def failing_disk(path: Path) -> Iterator[FailingDisk]:
    with _or_skipped():
        disk = FailingDisk(path)
    try:
        yield disk
    finally:
        disk.close()


def filler_of(disk: Path) -> Path:
    """The file that fills it."""
    return disk / "filler"


def fill(disk: Path) -> Path:
    """Fill a disk with one file; returns it."""
    filler = filler_of(disk)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@contextlib.contextmanager
def _or_skipped() -> Iterator[None]:
    try:
        yield
    except CannotMount as error:
        pytest.skip(f"nothing can be mounted here, so no disk can fail: {error}")


def _mount(path: Path, *arguments: str) -> None:
    ran = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise CannotMount(ran.stderr.strip())


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True)
