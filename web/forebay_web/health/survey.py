"""A survey of all partitions: the condition that its replicas put each one in, and what that is of each store.

It is repeated as often as its cost allows. Whoever knows the replicas, a router or a worker, hands them over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forebay.clock import boot_ms, epoch_ms
from forebay.lag import UNKNOWN_LAG, Lag, worst_lag
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState

if TYPE_CHECKING:
    from forebay_web.health.findings import Finding

log = logging.getLogger(__name__)

_ROLE_ORDER = {"active": 0, "restoring": 1, "standby": 2}
_ACCEPTABLE_AGE_MS = 120_000
"""Unless the store says itself which age is acceptable."""
_FOLLOWING_MS = 30_000.0
"""A replica that is further behind its log reveals nothing about who writes to it."""
_INTERVAL_MS = 1_000.0
_LARGEST_SHARE = 0.02
"""Of a core's time that surveys may take: those of many partitions are made less often."""
_SLICE = 100
"""Partitions surveyed at once, in a fraction of a millisecond: reads are answered in between."""
_MAX_NAMED = 16
"""Partitions, failures and restores that are named; the others are counted."""


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
    """The replica of the best role cannot apply records: answers grow old."""
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


def first_replica(replicas: Sequence[ReplicaState]) -> ReplicaState | None:
    """The replica of the best role, and of several that with the least time lag; None if none is live."""
    live = [replica for replica in replicas if replica.live]
    return min(live, key=_order) if live else None


def by_role(replicas: Sequence[ReplicaState]) -> list[ReplicaState]:
    """The active, restoring ones, standbys; of one role by their time lag."""
    return sorted(replicas, key=_order)


def _order(replica: ReplicaState) -> tuple[int, float, str]:
    time_lag_ms = replica.lag.time_lag_ms
    return _ROLE_ORDER[replica.role], float("inf") if time_lag_ms is None else time_lag_ms, replica.host


def condition(first: ReplicaState | None) -> Condition:
    """The condition of a partition by its first replica."""
    if first is None:
        return Condition.UNHELD
    if first.failure is not None:
        return Condition.FAILED
    if first.role != "active":
        return Condition(first.role)
    if first.lagging:
        return Condition.LAGGING
    return Condition.LAG_UNKNOWN if first.lag.time_lag_ms is None else Condition.SERVED


def acceptable_age_ms(spec: StoreSpec) -> int:
    """How old what a store has of its source may be before something is wrong with the source or its writer."""
    return _ACCEPTABLE_AGE_MS if spec.max_age_ms is None else max(_ACCEPTABLE_AGE_MS, spec.max_age_ms)


def follows(lag: Lag) -> bool:
    """Whether a replica with this lag knows what is new in its log."""
    return lag.time_lag_ms is not None and lag.time_lag_ms <= _FOLLOWING_MS


def silent_writers(
    spec: StoreSpec, beat_epoch_ms: Mapping[str, int], lag: Lag, now_epoch_ms: float
) -> dict[str, int]:
    """The writers whose newest heartbeat is older than acceptable, and when it was appended (epoch milliseconds).

    ``beat_epoch_ms`` is when it was, by writer, as a replica with this ``lag`` knows it. A sink and a tap append
    one each ten seconds at the latest, but a sink none while a batch is under way.
    """
    if not follows(lag):
        return {}
    oldest_ms = now_epoch_ms - acceptable_age_ms(spec)
    return {writer: since_ms for writer, since_ms in sorted(beat_epoch_ms.items()) if since_ms < oldest_ms}


class Surveyed(Protocol):
    """A process whose knowledge of replicas is surveyed."""

    @property
    def metadata(self) -> StreamsMetadataState:
        """Which worker holds what, as far as is known here."""

    @property
    def knows_all_replicas(self) -> bool:
        """Whether a partition without a replica here has none anywhere."""

    @property
    def expected_replicas(self) -> int | None:
        """How many replicas each partition is to have; None if that is not known here."""

    def replica_states(self, spec: StoreSpec, partition: int) -> list[ReplicaState]:
        """The replicas of a partition that are known here."""

    def live_workers(self) -> dict[str, bool]:
        """Every worker known here, and whether it answers."""

    def own_findings(self) -> list[Finding]:
        """What is wrong with the process or its connections, rather than with partitions."""


class Affected(NamedTuple):
    """A replica that something is wrong with, or that is being restored."""

    partition: int
    replica: ReplicaState


@dataclass
class StoreSurvey:
    """One store at the time of a survey: ``lag`` is the largest of the partitions' first replicas."""

    store: str
    partitions: int = 0
    """Those known here: on a worker, those that it holds."""
    conditions: Counter[Condition] = field(default_factory=Counter)
    named: dict[Condition, list[int]] = field(default_factory=dict)
    """The first partitions in each condition."""
    failures: list[Affected] = field(default_factory=list)
    restores: list[Affected] = field(default_factory=list)
    notices: dict[str, Affected] = field(default_factory=dict)
    """By kind, the first replica that has it."""
    lag: Lag = UNKNOWN_LAG
    acceptable_age_ms: float = math.inf
    """Above that the source is behind, or stopped."""
    source_age_ms: float = math.inf
    """The least age of the replicas that follow their log: what the source has put into it is no newer."""
    under_replicated: int = 0
    """Partitions with fewer replicas that answer than there are to be, but with one."""
    under_replicated_named: list[int] = field(default_factory=list)
    firsts: dict[int, tuple[str, str] | None] = field(default_factory=dict)
    """By partition: host and role of the first replica; None without any."""
    _pairs: dict[tuple[str, str] | None, tuple[str, str] | None] = field(default_factory=dict)

    def add(self, partition: int, replicas: list[ReplicaState], expected: int | None = None) -> None:
        """Count one partition, which is to have so many replicas."""
        first = first_replica(replicas)
        found = condition(first)
        self.partitions += 1
        self.conditions[found] += 1
        if len(partitions := self.named.setdefault(found, [])) < _MAX_NAMED:
            partitions.append(partition)
        for replica in replicas:
            if replica.failure is not None and len(self.failures) < _MAX_NAMED:
                self.failures.append(Affected(partition, replica))
            for kind in replica.notices:
                self.notices.setdefault(kind, Affected(partition, replica))
            if replica.restored_records is not None and len(self.restores) < _MAX_NAMED:
                self.restores.append(Affected(partition, replica))
        if expected is not None and 0 < sum(replica.live for replica in replicas) < expected:
            self.under_replicated += 1
            self.under_replicated_named += [partition] * (self.under_replicated <= _MAX_NAMED)
        lag = UNKNOWN_LAG if first is None else first.lag
        if lag.age_ms is not None and follows(lag):
            self.source_age_ms = min(self.source_age_ms, lag.age_ms)
        self.lag = lag if self.partitions == 1 else worst_lag([self.lag, lag])
        pair = None if first is None else (first.host, first.role)
        # The same object for all of a worker: there may be tens of thousands of partitions.
        self.firsts[partition] = self._pairs.setdefault(pair, pair)


@dataclass(frozen=True)
class Surveys:
    """All stores at the time of a survey, and which workers answered then."""

    at_epoch_ms: int = 0
    """0 before the first survey."""
    generation: int = 0
    stores: Mapping[str, StoreSurvey] = field(default_factory=dict)
    workers: Mapping[str, bool] = field(default_factory=dict)


class Survey:
    """Surveys a process again and again; ``on_survey`` gets each survey and the one before."""

    def __init__(self, surveyed: Surveyed, on_survey: Callable[[Surveys, Surveys], None]) -> None:
        self._surveyed = surveyed
        self._on_survey = on_survey
        self.newest = Surveys()

    async def run(self) -> None:
        while True:
            took_ms = 0.0
            steps = self.steps()
            while True:
                begun_boot_ms = boot_ms()
                try:
                    done = next(steps, None) is None
                except Exception:
                    log.exception("a survey of the replicas failed")
                    done = True
                took_ms += boot_ms() - begun_boot_ms
                if done:
                    break
                await asyncio.sleep(0)
            await asyncio.sleep(max(_INTERVAL_MS, took_ms / _LARGEST_SHARE) / 1000)

    def steps(self) -> Iterator[int]:
        """Survey all partitions, a slice at a time; ``newest`` is the result once all is done."""
        surveyed, state = self._surveyed, self._surveyed.metadata
        expected = surveyed.expected_replicas
        stores: dict[str, StoreSurvey] = {}
        for spec in list(state.stores.values()):
            survey = stores[spec.name] = StoreSurvey(spec.name, acceptable_age_ms=acceptable_age_ms(spec))
            for partition in range(spec.partitions):
                replicas = surveyed.replica_states(spec, partition)
                if replicas or surveyed.knows_all_replicas:
                    survey.add(partition, replicas, expected)
                if partition % _SLICE == _SLICE - 1:
                    yield partition
        newest = Surveys(int(epoch_ms()), state.map.generation.number, stores, surveyed.live_workers())
        before, self.newest = self.newest, newest
        self._on_survey(before, newest)
