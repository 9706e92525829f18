"""How a process finds that it was stopped, and what it then does not hold against others."""

from __future__ import annotations

_MOST_LATE_MS = 100.0
TIME_TO_READ_S = 0.02
"""How long what was received while the process was stopped may take to be read."""


def was_stopped(late_ms: float) -> bool:
    """Whether a timer that ran so much too late shows that the process did not run: nobody else was slow."""
    return late_ms > _MOST_LATE_MS
