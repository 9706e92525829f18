"""What is promised of answers and of a deployment, and the violation of each promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.chaos.history import Read

END_OFFSET_MAX_AGE_MS = 5_000
"""No bound on records is met by an older observation of the end."""
CLOCK_SLACK_MS = 5
"""Heartbeats carry the wall clock, which is slewed against the boot-time clock."""
CALM_MARGIN_MS = 500
"""A read counts as calm if it lies this far within a calm."""
CHANGE_WITHIN_MS = 2_000
"""A stream shows a change within this time while all is calm."""
LAG_WITHIN_MS = 3_000
"""A stream of a store says how far behind it is within this time while all is calm."""
LAG_FRESH_MS = 2_500
"""The lag of a stream of a store is of pages that are no older."""
UNPROVEN_MS = 10_000
"""A miss without a time lag must be true of some time since then: who never reached an end states none."""
SHORT_LOG = 6
"""Of a log with fewer records, a replica may lack all and have been at its beginning once."""
EVENT_TRANSIT_MS = 1_000
"""An event is received within this time after it was made while all is calm."""
GENEROUS: Mapping[str, int] = MappingProxyType(
    {"max_record_lag": 1_000, "max_time_lag_ms": 5_000, "max_age_ms": 5_000}
)
"""Bounds that every replica meets while all is calm."""
AGE_OF_A_COMMIT_MS = 2_000
"""How old a batch of the writer may be when it is committed."""
OF_THE_LOG = frozenset({"lock-log", "stop-broker", "kill-broker", "freeze-broker", "cut-broker", "hold-broker"})
"""Faults that, alone, leave all processes and replicas, but hold the log back.

Not ``delay-broker``: where compaction may already have reached what is read so late, no replica can prove a miss.
"""
CATCHING_UP_MS = 1_000
"""For so long after such a fault, replicas may read what compaction may already have reached: as with
``delay-broker``."""
SURVIVABLE = frozenset(
    {"kill-worker", "kill-process", "stop-worker", "kill-leader", "stop-leader", "wipe-state"}
    | {"damage-sst", "damage-manifest", "damage-offsets", "refuse-writes", "scale-out", "scale-in", "damage-group"}
    | {"cut-network", "delay-network", "hold-network", "half-open-network"}
    | {"fill-disk", "read-only-disk", "slow-disk", "cold-cache", "step-clock"}
)
"""Faults that, alone, leave every router, and a replica of each partition that is caught up."""
OF_ROUTERS = frozenset({"kill-router", "stop-router"})
"""Faults that, alone, leave the other router."""
OF_STATE = frozenset({"position-not-reached", "position-of-another-log", "partitioner-mismatch"})
"""Problems of what a request or its session asks for, or of the store's keys, which all replicas have."""
OUT_OF_CALM_MS = 3_000
DOUBT_WITHIN_MS = 2_500
"""Routers know of a doubt within this time, and so does each replica of the number of its topic's partitions."""
DOUBT_LASTS_MS = 35_000
"""A doubt ends within this time, in which replicas may be rebuilt, after what it was about has."""
ANSWERED = frozenset({200, 404})
STREAMS = frozenset({"change", "store-change"})
"""Kinds of reads that are events: their request was sent long before."""

EXPECTED = {
    200: {""},
    404: {"unknown-key"},
    409: {"position-of-another-log"},
    412: {"lag-exceeds-tolerance", "not-active", "position-not-reached"},
    421: {"not-hosted-here"},
    429: {"overloaded"},
    503: {"not-ready", "no-replica", "log-diverged", "partitioner-mismatch"},
    504: {"deadline"},
}
"""What a correct request for what exists may be answered with; 0 stands for no answer at all.

409 only once the store's log was cut, and ``partitioner-mismatch`` only once keys were misplaced in it.
"""

KINDS = {
    "wrong-value": "a value that the item never had, or of a record that was never committed, or lost",
    "beyond-position": "a value from beyond the answer's own position, or from before it was written",
    "record-lag-understated": "the answer lacks records that its record lag excludes",
    "time-lag-understated": "the answer lacks what was in the log at the time that its time lag names",
    "age-understated": "the answer lacks what the source had at the time that its age names",
    "beyond-bounds": "an answer whose lag is not proven to be within the request's bounds",
    "silent-miss": "no such key, where the key existed within the lag",
    "short-list": "a list without an item that existed within the lag",
    "expired-value": "a value older than its store's ttl_ms, or a window past its retention",
    "disordered-list": "a list out of order, or with an item twice or from outside its range",
    "position-not-reached": "an answer that lacks what its min_position names, as all do if that was lost",
    "went-back": "a session or stream that saw less than it had seen before, as a session does after its loss",
    "doubt-unstated": "a lag, a miss or a list of a store whose keys may be in other partitions",
    "not-active": "a read for actives only, answered by another",
    "undocumented-status": "a status or problem that no such request may be answered with",
    "unavailable": "no answer within generous bounds while all was calm, or while a single fault left a replica",
    "missed-change": "a stream that did not show a change, though all was calm",
    "missing-change": "a store's stream without a change that its own id or lag says was sent",
    "missing-deletion": "a store's stream that still shows what its own id or lag says was deleted",
    "missing-reset": "a store's stream that sends changes of a partition whose state its client does not have, "
    "or has as it was before its log was cut",
    "unfollowed-item": "a store's stream with an item that it was not asked for",
    "silent-stream": "a store's stream that does not say how far behind it is, though all was calm",
    "not-converged": "replicas that did not become equal to the log within the stated time",
    "held": "something that is counted for clients, and not given back once the last has left",
    "process-ended": "a process that ended by itself",
    "outlived": "a worker's process that outlived the one that started it",
    "stack-trace": "a stack trace in a log",
}
"""Every kind of violation."""


@dataclass(frozen=True)
class Violation:
    """One promise that was broken."""

    kind: str
    detail: str
    read: Read | None = None
