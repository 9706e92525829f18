"""Which files were written to, as reported by the kernel: inotify(7)."""

from __future__ import annotations

import contextlib
import os

from inotify_simple import INotify, flags

_OF_FILES = flags.MODIFY | flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_OF_THE_DIRECTORY = flags.DELETE_SELF | flags.MOVE_SELF
_DIRECTORY_GONE = _OF_THE_DIRECTORY | flags.IGNORED | flags.UNMOUNT


class FileEvents:
    """Watches the files of some directories.

    The kernel queues an event before the write it reports returns: a file that ``changed`` does not name was not
    written to, by any process, before ``changed`` was called. Raises ``OSError`` if the system's limits are
    reached (``fs.inotify`` in sysctl).
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._directories: dict[int, str] = {}

    def watch(self, directory: str) -> None:
        """Watch the files in the directory that has this name now; does nothing if that is already watched."""
        mask = _OF_FILES | _OF_THE_DIRECTORY | flags.ONLYDIR
        self._directories[self._inotify.add_watch(directory, mask)] = directory

    def changed(self) -> set[str] | None:
        """The paths of files that changed since the last call, None if any may have.

        It is None too once a directory is deleted or renamed, since it is no longer watched then.
        """
        paths: set[str] = set()
        all_may_have = False
        for descriptor, mask, _, name in self._inotify.read(timeout=0):
            directory = self._directories.get(descriptor)
            if mask & flags.Q_OVERFLOW:
                all_may_have = True
            elif mask & _DIRECTORY_GONE:
                all_may_have = True
                self._directories.pop(descriptor, None)
                if mask & flags.MOVE_SELF:
                    with contextlib.suppress(OSError):
                        self._inotify.rm_watch(descriptor)
            elif directory is not None:
                paths.add(os.path.join(directory, name))
        return None if all_may_have else paths

    def fileno(self) -> int:
        """A descriptor that is readable once something changed."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        self._inotify.close()
