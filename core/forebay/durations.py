"""Durations and times for people."""

from __future__ import annotations

from datetime import UTC, datetime


def duration(ms: float) -> str:
    """Milliseconds for people."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"


def time_text(epoch_ms: int) -> str:
    """An epoch time in milliseconds as RFC 3339, or the number if no calendar has it."""
    try:
        return (
            datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(epoch_ms)
