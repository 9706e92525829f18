"""Durations for people."""

from __future__ import annotations


def duration(ms: float) -> str:
    """Milliseconds for people."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"
