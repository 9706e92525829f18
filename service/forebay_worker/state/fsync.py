"""Small files and directories that survive a power failure once a call has returned."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically: readers find the old or the new contents, even after a crash; raises ``OSError``.

    The new text is drafted in ``<path>.tmp``, which two writers must not use at once.
    """
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file that need not exist; raises ``OSError``."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
