"""Membership of the worker group, whatever its backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo


class Membership(Protocol):
    """A worker's place in its group.

    ``subscription()`` returns the message to the leader; ``on_assignment(info)`` is called with every newer
    generation, in a thread of the membership's own. A member judges its role by comparing the clock with
    ``lease_until_boot_ms`` at each answer: past it, others may have taken over.
    """

    lease_until_boot_ms: float
    refusal: str | None
    """Why it cannot take part in the group, and the remedy; None while it can."""

    def start(
        self,
        subscription: Callable[[], SubscriptionInfo],
        on_assignment: Callable[[AssignmentInfo], None],
    ) -> None:
        """Join; raises ``ConfigurationError`` if this member cannot be distinguished from another."""
        ...

    def leave(self) -> None:
        """Leave at once, rather than by letting the lease run out."""
        ...

    @property
    def state(self) -> str:
        """``joining``, ``member``, or ``other-topology`` (the leader's topology is another)."""
        ...
