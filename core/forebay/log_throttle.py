"""What was logged lately, so that a failure that lasts is not logged at every retry."""

from __future__ import annotations

import time

_QUIET_FOR_S = 60.0
_MOST_KEPT = 10_000


class LogThrottle:
    """Remembers what was logged: the same is news again after a minute."""

    def __init__(self) -> None:
        self._logged_at_s: dict[str, float] = {}

    def allow(self, what: str) -> bool:
        """Whether to log it, in which case it counts as logged."""
        now = time.monotonic()
        if now - self._logged_at_s.get(what, -_QUIET_FOR_S) < _QUIET_FOR_S:
            return False
        if len(self._logged_at_s) >= _MOST_KEPT:
            self._logged_at_s.clear()
        self._logged_at_s[what] = now
        return True
