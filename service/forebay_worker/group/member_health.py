"""A member's health: whether its machine takes what the group would give it.

Whether it lives at all, the broker says where the group is Kafka's, and with SQLite its lease
(``sqlite.lease_database``).
"""

from __future__ import annotations

from enum import StrEnum

_CLEAR_MS = 10_000.0
"""Writes that fail are tried every second or two; after so long without a failure they succeed."""


class MemberHealth(StrEnum):
    """What a member reports of itself to the leader."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Its machine refuses its writes: it keeps its place, gets nothing new, and is active only where no other
    member is caught up."""
    EVICTED = "evicted"
    """It has been degraded for so long that its place is given to others, as if it had left; until they are
    caught up it keeps what it holds."""


class HealthMonitor:
    """Turns what stands in the way of a worker's writes, looked at now and then, into its health.

    After ``evict_after_ms`` a degraded worker is evicted.
    """

    def __init__(self, evict_after_ms: float) -> None:
        self._evict_after_ms = evict_after_ms
        self._since_boot_ms: float | None = None
        self._seen_boot_ms = 0.0

    def health(self, storage_fault: str | None, now_boot_ms: float) -> MemberHealth:
        """The health, given the storage fault of this moment, if there is one."""
        if storage_fault is not None:
            self._seen_boot_ms = now_boot_ms
            if self._since_boot_ms is None:
                self._since_boot_ms = now_boot_ms
        elif now_boot_ms - self._seen_boot_ms >= _CLEAR_MS:
            self._since_boot_ms = None
        if self._since_boot_ms is None:
            return MemberHealth.HEALTHY
        lasted_ms = now_boot_ms - self._since_boot_ms
        return MemberHealth.DEGRADED if lasted_ms < self._evict_after_ms else MemberHealth.EVICTED
