"""A replica's role, judged at each answer: a worker whose membership lease has ended is active for nothing."""

from __future__ import annotations

from forebay.lag import Progress
from forebay.wire.answer_schemas.members import Role


def role_of(
    progress: Progress, designated_boot_ms: float | None, lease_until_boot_ms: float, now_boot_ms: float
) -> Role:
    """``active``, ``restoring`` or ``standby``, judged now against the membership lease.

    A running active has once reached an end of the log observed since it was designated; later lag does not change
    the role.
    """
    if designated_boot_ms is None or now_boot_ms >= lease_until_boot_ms:
        return "standby"
    end_reached = progress.end_reached_boot_ms
    return "active" if end_reached is not None and end_reached >= designated_boot_ms else "restoring"
