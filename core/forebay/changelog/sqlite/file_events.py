"""Which files were written to, as the kernel tells: inotify(7)."""

from __future__ import annotations

import contextlib
import os

from inotify_simple import INotify, flags

_OF_FILES = flags.MODIFY | flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_OF_THE_DIRECTORY = flags.DELETE_SELF | flags.MOVE_SELF
_DIRECTORY_GONE = _OF_THE_DIRECTORY | flags.IGNORED | flags.UNMOUNT


class FileEvents:
    """Watches the files of some directories.

    The kernel queues an event before the write that it tells of returns: a file that ``changed`` does not name
    was not written to, by whoever, before ``changed`` was called. Raises ``OSError`` where the system's bounds are
    reached (``fs.inotify`` in sysctl).
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._directories: dict[int, str] = {}

    def watch(self, directory: str) -> None:
        """Watch the files of what has this name now; where that is watched already, nothing changes."""
        mask = _OF_FILES | _OF_THE_DIRECTORY | flags.ONLYDIR
        self._directories[self._inotify.add_watch(directory, mask)] = directory

    def changed(self) -> set[str] | None:
        """The paths of files that changed since the last call, None where any may have.

        It is None too once a directory is gone or has another name: it is not watched any more then.
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
        """Watch nothing any more."""
        self._inotify.close()
