"""The life cycle of a replica on a worker: what brings it forward, and what may come next.

The counterpart of Kafka Streams' ``Task.State``::

               opened                       far behind
    CREATED ──────────────► FOLLOWING ─────────────────────► RESTORING
       ▲                     │  ▲  ▲                            │
       │               fails │  │  └────────────────────────────┘
       │                     ▼  │ after a pause           end of the log, or given up
       │                  SUSPENDED
       │ a new store
       │ is open          damaged, or not of this log (from any but CLOSED)
    REBUILDING ◄─────────────────────────────────────────────────

    CLOSED is entered from any phase when the replica is released, and is the end.

The role is no phase: it is judged against the lease at each answer, since a lease ends without an event.
"""

from __future__ import annotations

from enum import Enum


class ReplicaPhase(Enum):
    """What brings a replica forward now."""

    CREATED = "created"
    """Its store is open, and nothing has begun to read its log."""
    FOLLOWING = "following"
    """The applier applies its log, batch by batch."""
    RESTORING = "restoring"
    """A restore process reads its log, and the applier ingests the files that it makes."""
    SUSPENDED = "suspended"
    """Its log could not be read or applied. The applier continues after a pause."""
    REBUILDING = "rebuilding"
    """Its store is closed, because its content is not trusted, until an empty one can be opened."""
    CLOSED = "closed"
    """It was released."""


_NEXT = {
    ReplicaPhase.CREATED: {ReplicaPhase.FOLLOWING},
    ReplicaPhase.FOLLOWING: {ReplicaPhase.SUSPENDED, ReplicaPhase.RESTORING},
    ReplicaPhase.RESTORING: {ReplicaPhase.FOLLOWING},
    ReplicaPhase.SUSPENDED: {ReplicaPhase.FOLLOWING, ReplicaPhase.RESTORING},
    ReplicaPhase.REBUILDING: {ReplicaPhase.CREATED},
    ReplicaPhase.CLOSED: set(),
}


class PhaseError(RuntimeError):
    """A replica was to enter a phase that cannot follow the one that it is in."""


def check_transition(before: ReplicaPhase, after: ReplicaPhase) -> None:
    """Raise ``PhaseError`` unless one phase may follow another; each may follow itself."""
    if after is before or after in _NEXT[before]:
        return
    from_any = after in (ReplicaPhase.REBUILDING, ReplicaPhase.CLOSED)
    if before is ReplicaPhase.CLOSED or not from_any:
        raise PhaseError(f"a replica that is {before.value} cannot become {after.value}")
