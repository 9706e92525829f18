"""The two clocks: the boot-time clock for elapsed time, the wall clock for moments that other machines see."""

from __future__ import annotations

import math
import time


def boot_ms() -> float:
    """Milliseconds since the machine started, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000.0


def epoch_ms() -> float:
    """Milliseconds since 1970 by the wall clock."""
    return time.time() * 1000.0


_offset_at_start_ms = epoch_ms() - boot_ms()


def steady_epoch_ms() -> float:
    """The wall clock as it was at the start, and as if nobody had set it since.

    For delays that outlast the process: a clock that is put right must not end them.
    """
    return boot_ms() + _offset_at_start_ms


_largest_offset_ms = -math.inf


def latest_epoch_ms() -> float:
    """The wall clock as it would be if it had never been set back since this process first asked.

    A moment that was noted by the clock before is then never taken for a younger one.
    """
    global _largest_offset_ms
    now_boot_ms = boot_ms()
    _largest_offset_ms = max(_largest_offset_ms, epoch_ms() - now_boot_ms)
    return now_boot_ms + _largest_offset_ms
