"""Waits for batches to end: their files appear in ``commits``."""

from __future__ import annotations

import contextlib
import os

from forebay.file_events import FileEvents
from forebay_changelog import Wake
from forebay_tap.spark_checkpoint.files import CheckpointFiles, LocalFiles

_LOCAL_S = 1.0


class CommitWatch:
    """Returns from ``wait`` soon after a batch has ended: at once where files are local, else at the next poll.

    Local files are polled as well, but rarely: a directory may be one that the kernel reports nothing of.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._events: FileEvents | None = None
        if isinstance(files, LocalFiles):
            with contextlib.suppress(OSError):
                self._events = FileEvents()
                self._events.watch(os.path.join(files.url, "commits"))

    def wait(self, interval_s: float, stopping: Wake) -> None:
        """Return when a batch may have ended, or ``stopping`` is set."""
        if self._events is None:
            stopping.wait(interval_s)
        else:
            stopping.wait(_LOCAL_S, self._events.fileno())
            self._events.changed()

    def close(self) -> None:
        """Stop watching."""
        if self._events is not None:
            self._events.close()
