"""The two clocks: the boot-time clock for elapsed time, the wall clock for moments that other machines see.

And what both show, for people.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime


def boot_ms() -> float:
    """Milliseconds since the machine started, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000.0


def epoch_ms() -> float:
    """Milliseconds since 1970 by the wall clock."""
    return time.time() * 1000.0


_largest_offset_ms = -math.inf


def latest_epoch_ms() -> float:
    """The wall clock as it would be if it had never been set back since this process first asked.

    A moment that was noted by the clock before is then never taken for a younger one.
    """
    global _largest_offset_ms
    # In this order: a thread that waits for its turn between the two must not put the clock ahead for good.
    now_epoch_ms = epoch_ms()
    now_boot_ms = boot_ms()
    _largest_offset_ms = max(_largest_offset_ms, now_epoch_ms - now_boot_ms)
    return now_boot_ms + _largest_offset_ms


def duration(ms: float) -> str:
    """Milliseconds for people."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"


def time_text(moment_epoch_ms: int) -> str:
    """An epoch time in milliseconds as RFC 3339, or the number if no calendar has it."""
    try:
        return (
            datetime.fromtimestamp(moment_epoch_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(moment_epoch_ms)
