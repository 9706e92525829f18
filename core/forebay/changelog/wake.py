"""What a thread that follows a log is woken by."""

from __future__ import annotations

import contextlib
import os
import select
import weakref


class Wake:
    """A flag as ``threading.Event`` is one, that can be waited for beside file descriptors: eventfd(2)."""

    def __init__(self) -> None:
        self._flag = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not before the last reference is gone: a late ``set`` must not write into another's descriptor.
        weakref.finalize(self, os.close, self._flag)

    def set(self) -> None:
        """Wake who waits; whoever waits later returns at once, until it is cleared."""
        os.eventfd_write(self._flag, 1)

    def clear(self) -> None:
        """Take back every ``set`` so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._flag)

    def is_set(self) -> bool:
        """Whether it was set since it was cleared."""
        return self.wait(0)

    def wait(self, timeout_s: float, *readable: int) -> bool:
        """Return when it is set, when one of these descriptors is readable, or after the time-out: False then."""
        poll = select.poll()
        for descriptor in (self._flag, *readable):
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
