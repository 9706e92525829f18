"""The flag that wakes a thread that follows a log."""

from __future__ import annotations

import contextlib
import os
import select
import weakref


class Wake:
    """A flag like ``threading.Event`` that can be waited for together with file descriptors: eventfd(2)."""

    def __init__(self) -> None:
        self._flag = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Only once the last reference is gone: a late ``set`` must not write into a reused descriptor.
        weakref.finalize(self, os.close, self._flag)

    def set(self) -> None:
        """Wake all waiters; later waits return at once, until it is cleared."""
        os.eventfd_write(self._flag, 1)

    def clear(self) -> None:
        """Clear the flag."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._flag)

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return self.wait(0)

    def wait(self, timeout_s: float, *readable: int) -> bool:
        """Return when it is set, when one of these descriptors is readable, or after the time-out, then with
        False."""
        poll = select.poll()
        for descriptor in (self._flag, *readable):
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
