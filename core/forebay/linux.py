"""What processes ask of the Linux kernel that Python's standard library cannot; elsewhere they do without."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct
import sys

_PR_SET_PDEATHSIG = 1
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The system call's number: the C library has no function for it before glibc 2.41."""
_SCHED_FLAG_RESET_ON_FORK = 1
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr``: size, policy, flags, niceness, priority, runtime, deadline, period."""
_SLICE_NS = 100_000
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


def ask_for_short_slices() -> None:
    """Ask for time slices of 0.1 ms for this thread, not for those that it starts.

    When it is woken up for a request, it need not wait until another, such as a restore process, has used up a
    slice of some 3 ms. Its share of the processor stays the same. Kernels before 6.12 take no notice, and a
    thread that was given another policy keeps it. (Linux's ``Documentation/scheduler/sched-eevdf.rst``.)
    """
    call = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.SCHED_OTHER, _SCHED_FLAG_RESET_ON_FORK, niceness, 0, _SLICE_NS, 0, 0
    )
    ctypes.CDLL(None).syscall(ctypes.c_long(call), ctypes.c_long(0), attributes, ctypes.c_long(0))
