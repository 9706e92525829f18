"""Where the sorted runs of a batch are, beside the SQLite changelog that they go into."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote


class RunDirectories:
    """Directories of batches below ``~runs/`` of a changelog, each removed with its batch."""

    def __init__(self, changelog: Path) -> None:
        # No topic is called so.
        self._root = changelog / "~runs"
        self._swept: set[Path] = set()

    @contextlib.contextmanager
    def one(self, query_id: str, writer: str) -> Iterator[Path]:
        """A directory for one batch of a query; what a process that was killed has left of that query is removed.

        It is as open as the changelog's own directory.
        """
        parent = self._root / quote(query_id, safe="") / quote(writer, safe="")
        if parent not in self._swept:
            shutil.rmtree(parent, ignore_errors=True)
            self._swept.add(parent)
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="batch-", dir=parent))
        directory.chmod(self._root.parent.stat().st_mode & 0o777)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
