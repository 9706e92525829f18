"""A member's standing: whether its machine takes what the group would give it."""

from __future__ import annotations

from enum import StrEnum

_CLEAR_MS = 10_000.0
"""Writes that fail are tried every second or two; after so long without a failure they succeed."""


class Standing(StrEnum):
    """What a member reports of itself to the leader."""

    FIT = "fit"
    OBSTRUCTED = "obstructed"
    """Its machine refuses its writes: it keeps its place, gets nothing new, and is active only where no other
    member is caught up."""
    WRITTEN_OFF = "written-off"
    """It has been obstructed for so long that its place is given to others, as if it had left; until they are
    caught up it keeps what it holds."""


class Obstruction:
    """Turns what stands in the way of a worker's writes, looked at now and then, into its standing.

    After ``write_off_ms`` an obstructed worker is written off.
    """

    def __init__(self, write_off_ms: float) -> None:
        self._write_off_ms = write_off_ms
        self._since_boot_ms: float | None = None
        self._seen_boot_ms = 0.0

    def standing(self, obstacle: str | None, now_boot_ms: float) -> Standing:
        """The standing, given the obstacle of this moment, if there is one."""
        if obstacle is not None:
            self._seen_boot_ms = now_boot_ms
            if self._since_boot_ms is None:
                self._since_boot_ms = now_boot_ms
        elif now_boot_ms - self._seen_boot_ms >= _CLEAR_MS:
            self._since_boot_ms = None
        if self._since_boot_ms is None:
            return Standing.FIT
        lasted_ms = now_boot_ms - self._since_boot_ms
        return Standing.OBSTRUCTED if lasted_ms < self._write_off_ms else Standing.WRITTEN_OFF
