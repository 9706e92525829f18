"""Why this user may not use a file or a directory, and as whom to run."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from forebay.errors import AccessDenied


@contextlib.contextmanager
def naming_denials() -> Iterator[None]:
    """Raise ``AccessDenied``, with the owner, instead of a ``PermissionError`` of a file."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        path = os.fsdecode(error.filename)
        raise AccessDenied(f"{path} cannot be used: {cause(error, path)}.") from error


def cause(error: Exception, path: str | Path) -> str:
    """Why a path cannot be used, without the path and the full stop; of a denial also the remedy."""
    denied = denial(path) if isinstance(error, PermissionError) else None
    return denied or (isinstance(error, OSError) and error.strerror) or str(error)


def open_regular(path: Path) -> int:
    """A descriptor to read a file with; raises ``OSError``, or ``ValueError`` if it is not a regular file.

    Why: to open or read a pipe would wait for somebody who writes it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ValueError("it is not a regular file")


def read_regular(path: Path) -> bytes:
    """The contents of such a file; raises as it does."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def denial(path: str | Path) -> str | None:
    """What keeps this user from reading and writing a path, and the remedy, without the full stop; None if
    permissions do not."""
    path = Path(path).absolute()
    for directory in reversed(path.parents):
        if not directory.exists():
            break
        if not os.access(directory, os.X_OK):
            return _denied(directory, str(directory), "enter")
    if not path.exists():
        there = next(parent for parent in path.parents if parent.exists())
        return None if os.access(there, os.W_OK) else _denied(there, str(there), "write")
    rights = (("enter", os.X_OK), ("read", os.R_OK), ("write", os.W_OK))[0 if path.is_dir() else 1 :]
    missing = next((verb for verb, right in rights if not os.access(path, right)), None)
    return None if missing is None else _denied(path, "it", missing)


def _denied(path: Path, name: str, verb: str) -> str:
    status = path.stat()
    if status.st_uid == os.geteuid():
        mode = f"{status.st_mode & 0o7777:04o}"
        return f"{name} has the mode {mode}, by which its owner may not {verb} it. Change it with chmod"
    owner, user = _user_name(status.st_uid), _user_name(os.geteuid())
    return f"{name} belongs to {owner}, and {user} may not {verb} it. Run as {owner}, the user that owns it"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
