"""Leaves Python's lock to the readers while records are applied."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLICE_S = 0.0003
"""Processor time of uninterrupted work. Why: a read that arrives meanwhile waits that long. RocksDB writes hold
Python's lock for about a microsecond a record."""
_PAUSE_BY_WORK = 2.0
"""A pause, as a multiple of the work before it: writing never takes more than a third of the lock."""
_MOST_PAUSE_S = 0.02
"""However long the work took, such as the start of a rebuild."""
_LEAST_TURN_S = 0.002
"""From one poll of a log that flows to the next at least: what comes together is committed together."""


class ReaderYield:
    """One thread's work in slices, each followed by a pause in which readers run undisturbed.

    ``work_s`` is the thread's processor time: what it waits for the lock is no work.
    """

    def __init__(
        self, work_s: Callable[[], float] = time.thread_time, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._work_s = work_s
        self._sleep = sleep
        self._since_s = 0.0

    def begin(self) -> None:
        """Count the work from here on."""
        self._since_s = self._work_s()

    def after_slice(self) -> None:
        """Pause if a slice's worth of work was done since the last pause."""
        used_s = self._work_s() - self._since_s
        if used_s >= _SLICE_S:
            self._sleep(min(used_s * _PAUSE_BY_WORK, _MOST_PAUSE_S))
            self._since_s = self._work_s()

    def pause_before_poll_s(self) -> float:
        """How long to wait before the next poll, while records keep coming."""
        used_s = self._work_s() - self._since_s
        return min(max(_LEAST_TURN_S, used_s * _PAUSE_BY_WORK), _MOST_PAUSE_S)
