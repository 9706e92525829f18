"""Small files and directories that survive a power failure once a call has returned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from forebay.linux import sync_file_system

_MANY = 100


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directories(paths: Collection[Path]) -> None:
    """The same for several, of which one that is gone needs none. Raises ``OSError``.

    Many are synced by file system: that is one flush, where each directory would be another.
    """
    of_each_system: dict[int, Path] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            if len(paths) <= _MANY:
                sync_directory(path)
            else:
                of_each_system[path.stat().st_dev] = path
    for path in of_each_system.values():
        sync_file_system(path)


def create_file(path: Path) -> int:
    """A descriptor to write a new file with, in place of what was there, a link too; raises ``OSError``."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def write_durably(path: Path, text: str, modified_epoch_ms: float | None = None) -> None:
    """Replace a file atomically: readers find the old or the new contents, even after a crash; raises ``OSError``.

    The new text is drafted in ``<path>.tmp``, which two writers must not use at once. ``modified_epoch_ms`` is the
    time that the new file has, now if not given.
    """
    draft = path.with_name(path.name + ".tmp")
    with open(create_file(draft), "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        if modified_epoch_ms is not None:
            os.utime(file.fileno(), (modified_epoch_ms / 1000, modified_epoch_ms / 1000))
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a directory with all that is in it; raises ``OSError``, and leaves what was copied until then."""
    shutil.copytree(source, target, symlinks=True)
    for folder, _, names in os.walk(target, topdown=False):
        for name in names:
            _sync_file(Path(folder, name))
        sync_directory(Path(folder))


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_durably(path: Path) -> None:
    """Remove a file that need not exist; raises ``OSError``."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
