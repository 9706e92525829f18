"""Listening Unix sockets."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path

from forebay.errors import ConfigurationError, ListenAddressInUse
from forebay.listen_addresses import UnixAddress

_BACKLOG = 2048
_UMASK = 0o117
"""For the mode 0660."""


def is_unix_listener(listener: socket.socket) -> bool:
    """Whether it is a Unix socket, on which TLS is not spoken."""
    return listener.family == socket.AF_UNIX


def unix_listener(address: UnixAddress, group: str | None) -> socket.socket:
    """A listening socket to which its user and the group, by default that of the process, may connect.

    It takes the place of a socket on which nobody answers, and leaves its own file to the next. Raises
    ``ListenAddressInUse`` if somebody answers, and ``ConfigurationError`` if the file cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(_UMASK)
    try:
        _remove_stale(address)
        listener.bind(os.fspath(address.path))
        if group is not None:
            # Before it listens, nobody can connect.
            shutil.chown(address.path, group=int(group) if group.isdecimal() else group)
        listener.listen(_BACKLOG)
    except (OSError, LookupError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"Cannot listen on {address}: {reason}. The directory {address.path.parent} must exist and be "
            "writable for this process's user, who must be a member of the --socket-group. If the file is there, "
            "it must be a socket."
        ) from None
    finally:
        os.umask(umask)
    listener.setblocking(False)
    return listener


def inherited_listener(descriptor: int) -> socket.socket:
    """A listening socket of this process's parent."""
    listener = socket.socket(fileno=descriptor)
    # Why: processes share this flag. A duplicate of a blocking one would set it, and others hang in ``accept``.
    listener.setblocking(False)
    return listener


def _remove_stale(address: UnixAddress) -> None:
    """Remove the socket of a process that is gone; raises ``ListenAddressInUse``."""
    found = _connect(address.path)
    if found in (0, errno.EAGAIN):
        raise ListenAddressInUse(
            f"Cannot listen on {address}: another process answers there. Stop it, or give another path with "
            "--listen."
        )
    if found == errno.ECONNREFUSED and address.path.is_socket():
        address.path.unlink()


def _connect(path: Path) -> int:
    """The number of the error of a connection, 0 if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(os.fspath(path))
