"""The two clocks: the boot-time clock for elapsed time, the wall clock for moments that other machines see."""

from __future__ import annotations

import time


def boot_ms() -> float:
    """Milliseconds since the machine started, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000.0


def epoch_ms() -> float:
    """Milliseconds since 1970 by the wall clock."""
    return time.time() * 1000.0
