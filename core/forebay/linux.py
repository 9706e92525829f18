"""What processes need of Linux that the standard library lacks, and how they start others."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def peer_user(connection: socket.socket) -> int | None:
    """The user's number of the process that connected a Unix socket, None if the kernel does not say."""
    if sys.platform != "linux":
        return None
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(credentials)[1])


def sync_file_system(path: Path) -> None:
    """Make all durable that was written to a path's file system; raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sys.platform != "linux":
            os.sync()
        elif ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter; no module is taken from the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment in which modules are found where this process finds them, wherever that was started."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
