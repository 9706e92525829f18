"""The replicas of a partition as a process knows them, and the condition that they put the partition in.

Pure functions: whoever knows the replicas, a router or a worker, hands them over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from forebay.lag import UNKNOWN_LAG, Lag


class ReplicaState(NamedTuple):
    """One replica: its worker, its role, and its lag as of now, unknown once the last report is too old.

    ``live`` tells whether its worker answers, ``lagging`` whether its record lag is beyond what the group accepts
    of an active. ``failure`` is why its records cannot be applied. While a bulk restore is under way,
    ``restored_records`` counts, and ``restore_seconds_left`` may be known. ``notices`` are what is wrong with its
    log or with where keys are, by kind.
    """

    host: str
    role: str
    lag: Lag = UNKNOWN_LAG
    live: bool = True
    lagging: bool = False
    failure: str | None = None
    restored_records: int | None = None
    restore_seconds_left: int | None = None
    notices: Mapping[str, str] = {}


class Condition(StrEnum):
    """What reads of a partition can expect, the gravest first."""

    UNHELD = "unheld"
    """No worker that answers holds it: reads fail."""
    FAILED = "failed"
    """The replica that reads go to first cannot apply records: answers grow old."""
    STANDBY = "standby"
    """Only standbys answer: reads with ``require_active`` fail."""
    RESTORING = "restoring"
    """Its active is not caught up yet: reads with ``require_active`` fail."""
    LAGGING = "lagging"
    """Its active is further behind the log than the group accepts."""
    LAG_UNKNOWN = "lag-unknown"
    """Its active cannot prove its time lag: reads with bounds fail."""
    SERVED = "served"
    """A running active answers."""


_ROLE_ORDER = {"active": 0, "restoring": 1, "standby": 2}


def first_replica(replicas: Sequence[ReplicaState]) -> ReplicaState | None:
    """The replica that reads without bounds go to first; None if none is live."""
    live = [replica for replica in replicas if replica.live]
    return min(live, key=_order) if live else None


def in_order_of_reads(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    """That which reads without bounds go to comes first."""
    return sorted(replicas, key=_order)


def _order(replica: ReplicaState) -> tuple[int, float, str]:
    time_lag_ms = replica.lag.time_lag_ms
    return _ROLE_ORDER[replica.role], float("inf") if time_lag_ms is None else time_lag_ms, replica.host


def condition(first: ReplicaState | None) -> Condition:
    """The condition of a partition by the replica that reads go to first."""
    if first is None:
        return Condition.UNHELD
    if first.failure is not None:
        return Condition.FAILED
    if first.role != "active":
        return Condition(first.role)
    if first.lagging:
        return Condition.LAGGING
    return Condition.LAG_UNKNOWN if first.lag.time_lag_ms is None else Condition.SERVED
