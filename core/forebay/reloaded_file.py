"""A file that is read again when it changes, so that it can be replaced under a running process."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from forebay.clock import boot_ms
from forebay.errors import SettingError
from forebay.file_access import cause, open_regular

log = logging.getLogger(__name__)

_CHECK_INTERVAL_MS = 1_000.0
_MAX_BYTES = 1 << 20
_OF_OTHERS = stat.S_IROTH | stat.S_IWOTH

T = TypeVar("T")

Version = tuple[int, int, int] | None
Versions = tuple[Version, ...]


class ReloadedFile(Generic[T]):
    """A file's contents, parsed; ``parse`` gets the text, and raises ``ValueError`` if it is unusable.

    The file, and those that belong to it, ``also``, are checked on access, at most once a second. Each must be a
    regular file of at most a megabyte: a pipe or a device would hang the process, or never end. ``parse`` gets the
    texts of all, in order. A file of ``secrets`` that everybody on the machine may
    read or write is warned of whenever it is read. An unusable change is logged, once, and the previous contents
    stay in effect; it is retried, since the cause may pass without another change. Raises ``SettingError`` if
    there are no previous contents.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[..., T],
        clock: Callable[[], float] = boot_ms,
        also: tuple[Path, ...] = (),
        secrets: tuple[Path, ...] = (),
    ) -> None:
        self._path = path
        self._secrets = secrets
        self._paths = (path, *also)
        self._parse = parse
        self._clock = clock
        self._check_due_ms = clock() + _CHECK_INTERVAL_MS
        self._versions = self._read_versions()
        """The versions of the contents in effect."""
        self._reported: tuple[Versions, str] | None = None
        """Which versions were last found unusable, and why."""
        self._content = self._read()

    def __call__(self) -> T:
        """The file's contents, at most a second old."""
        now_ms = self._clock()
        if now_ms >= self._check_due_ms:
            self._check_due_ms = now_ms + _CHECK_INTERVAL_MS
            self._check()
        return self._content

    def _check(self) -> None:
        versions = self._read_versions()
        if versions == self._versions:
            return
        try:
            self._content = self._read()
        except SettingError as error:
            if self._reported != (versions, str(error)):
                self._reported = versions, str(error)
                log.error("%s The previous contents stay in effect.", error)
        else:
            self._versions = versions
            log.info("%s changed and was read again", self._path)

    def _read_versions(self) -> Versions:
        return tuple(_version(path) for path in self._paths)

    def _read(self) -> T:
        texts, modes = [], {}
        path = self._path
        try:
            for path in self._paths:
                with open(open_regular(path), encoding="utf-8-sig") as file:
                    found = os.fstat(file.fileno())
                    if found.st_size > _MAX_BYTES:
                        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
                    modes[path] = stat.S_IMODE(found.st_mode)
                    texts.append(file.read())
            path = self._path
            contents = self._parse(*texts)
        except (OSError, ValueError) as error:
            raise SettingError(f"The file {path} cannot be used: {cause(error, path)}.") from None
        for path in self._secrets:
            if modes[path] & _OF_OTHERS:
                log.warning(
                    "the file %s has the mode %04o: everybody on this machine may read or change it; chmod 600 it",
                    path,
                    modes[path],
                )
        return contents


def _version(path: Path) -> Version:
    """Differs once a file was written, replaced or given other permissions; None while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_ctime_ns
