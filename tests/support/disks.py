"""Disks that fail: small ones to fill, and ones that turn read-only. They need a user with the right to mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOM_BYTES = 128 << 20


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    with _mounted(path, "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs") as disk:
        yield disk


@contextlib.contextmanager
def failing_disk(path: Path) -> Iterator[Path]:
    """An ext4 that turns read-only at its first error, as a server's does."""
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(ROOM_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with _mounted(path, "-o", "loop,errors=remount-ro", str(image)) as disk:
        yield disk


def fill(disk: Path) -> Path:
    """Fill a disk with one file; returns it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def turn_read_only(disk: Path) -> None:
    """Have a failing disk meet its error."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(disk)], capture_output=True, text=True, check=True)
    Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error").write_text("meant")
    with pytest.raises(OSError, match="Read-only"):
        (disk / "probe").touch()


@contextlib.contextmanager
def _mounted(path: Path, *arguments: str) -> Iterator[Path]:
    path.mkdir()
    ran = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        pytest.skip(f"nothing can be mounted here, so no disk can be filled: {ran.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
