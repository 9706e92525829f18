"""Listening Unix sockets: who may connect, and what becomes of the file that a dead process left."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from forebay.errors import ConfigurationError, ListenAddressInUse
from forebay.listen_addresses import UnixAddress

_BACKLOG = 2048
_MODE = 0o660
_ANSWER_WITHIN_S = 1.0


def is_unix_listener(listener: socket.socket) -> bool:
    """Whether it is a Unix socket, on which TLS is not spoken."""
    return listener.family == socket.AF_UNIX


@contextlib.contextmanager
def unix_listener(address: UnixAddress, group: str | None) -> Iterator[socket.socket]:
    """A socket that listens until the end of the block, when its file is removed.

    Only its user and the group, by default that of the process, may connect (mode 0660). A file that is there is
    replaced if it is a socket on which nobody answers. Raises ``ListenAddressInUse`` if somebody does, and
    ``ConfigurationError`` if the file cannot be made.
    """
    path = address.path
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            with _locked(path.parent):
                _remove_stale(address)
                listener.bind(os.fspath(path))
                # Before it listens, nobody can connect.
                _admit(path, group)
                listener.listen(_BACKLOG)
                listener.setblocking(False)
                made = _identity(path)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on {address}: {error.strerror}. The directory {path.parent} must exist and be "
                "writable for this process's user; give another path with --listen."
            ) from None
        yield listener
    with contextlib.suppress(OSError):
        # A successor may have replaced it as soon as nobody answered.
        if _identity(path) == made:
            path.unlink()


def inherited_listener(descriptor: int) -> socket.socket:
    """A listening socket of this process's parent."""
    listener = socket.socket(fileno=descriptor)
    # Why: processes share this flag. A duplicate of a blocking one would set it, and others hang in ``accept``.
    listener.setblocking(False)
    return listener


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes of forebay from replacing a file in a directory meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(address: UnixAddress) -> None:
    """Remove the socket of a process that is gone; raises ``ListenAddressInUse``."""
    path = address.path
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(
            f"Cannot listen on {address}: {path} is there and is no socket. Remove it, or give another path with "
            "--listen."
        )
    if _is_answered(path):
        raise ListenAddressInUse(
            f"Cannot listen on {address}: another process answers there. Stop it, or give another path with "
            "--listen."
        )
    path.unlink()


def _is_answered(path: Path) -> bool:
    """Whether somebody listens there; raises ``OSError`` if this process may not know."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_WITHIN_S)
        try:
            client.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except (BlockingIOError, TimeoutError):
            # So many connect that they queue.
            return True
    return True


def _identity(path: Path) -> tuple[int, int, int]:
    """Which file it is. Numbers of files are used again, hence the time."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _admit(path: Path, group: str | None) -> None:
    if group is not None:
        _give_to(path, group)
    path.chmod(_MODE)


def _give_to(path: Path, group: str) -> None:
    try:
        os.chown(path, -1, int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid)
    except (KeyError, OSError) as error:
        path.unlink()
        reason = "there is no such group" if isinstance(error, KeyError) else error.strerror
        raise ConfigurationError(
            f"Cannot give {path} to the group {group!r}: {reason}. Name with --socket-group a group of which this "
            "process's user is a member."
        ) from None
