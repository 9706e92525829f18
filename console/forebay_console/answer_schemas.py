"""The members of the console's documents: see ``forebay.wire.answer_schemas``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.wire.answer_schemas.members import Figure, Host, LagFigures, Natural, Role
from forebay.wire.answer_schemas.status import Failure, RestoreSecondsLeft
from forebay_console.timeline import TimelineEvent
from forebay_web.health.findings import Finding
from forebay_web.health.survey import Condition

Milliseconds: TypeAlias = Annotated[float, Meta(ge=0)] | None
ProblemCounts: TypeAlias = Annotated[
    Mapping[str, Natural], Meta(description="Refusals by problem; keys that do not exist are none.")
]


class LiveReplica(LagFigures, frozen=True, kw_only=True):
    """One replica, its lag as of now."""

    host: Host
    role: Role
    live: Annotated[bool, Meta(description="Whether its worker answers.")]
    lagging: Annotated[bool, Meta(description="Whether its record lag is beyond `acceptable_recovery_lag`.")]
    failure: Failure = UNSET
    restored_records: Natural | UnsetType = UNSET
    restore_seconds_left: RestoreSecondsLeft = UNSET


class PartitionCondition(Struct, frozen=True):
    """One partition: its condition and its replicas."""

    partition: Natural
    condition: Condition
    replicas: Annotated[
        list[LiveReplica], Meta(description="The active first, then restoring ones, then standbys.")
    ]


class ReplicasAnswer(Struct, frozen=True):
    """A page of a store's replicas, by partition."""

    store: str
    generation: Natural
    partitions: list[PartitionCondition]
    next: Annotated[Figure, Meta(description="`from` of the next page; null at the end.")]


class WorkerCounts(Struct, frozen=True):
    """How many workers are known, and how many of them answer."""

    known: Natural
    live: Natural


class RestoreUnderWay(Struct, frozen=True):
    """A replica that is being restored."""

    partition: Natural
    host: Host
    restored_records: Figure
    restore_seconds_left: Figure


class StoreHealth(LagFigures, frozen=True, kw_only=True):
    """One store: the conditions of its partitions, and the largest lag."""

    store: str
    partitions: Natural
    conditions: Annotated[Mapping[str, Natural], Meta(description="How many partitions are in which condition.")]
    restores: list[RestoreUnderWay]


class HealthAnswer(Struct, frozen=True):
    """What is served, within what age, by how many workers; what is wrong, and the remedy."""

    tier: Literal["router", "worker"]
    application_id: str | None
    state: str
    now_ms: Natural
    surveyed_ms: Annotated[Figure, Meta(description="When the last survey of all replicas ended.")]
    generation: Natural
    summary: Annotated[str, Meta(description="What is served, within what age, by how many workers.")]
    workers: WorkerCounts
    findings: Annotated[Sequence[Finding], Meta(description="What is wrong, the gravest first.")]
    stores: list[StoreHealth]


class TimelineAnswer(Struct, frozen=True):
    """What changed of late."""

    events: Annotated[
        list[TimelineEvent],
        Meta(description="The oldest first, since this process started; the newest 256."),
    ]


class SecondOfReads(LagFigures, frozen=True, kw_only=True):
    """One second of a store."""

    at_ms: Natural
    reads: Annotated[Figure, Meta(description="Results of reads; null where they are not counted.")]
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    problems: ProblemCounts


class LagBuckets(Struct, frozen=True):
    """A histogram of one figure of the lag."""

    bounds: Sequence[Natural]
    counts: Annotated[Sequence[Natural], Meta(description="One more than bounds: above all of them, or unknown.")]


class LagsOfAnswers(Struct, frozen=True):
    """The lag of the last answers."""

    seconds: Natural
    problems: ProblemCounts
    record_lag: LagBuckets
    time_lag_ms: LagBuckets
    age_ms: LagBuckets


class HistoryAnswer(Struct, frozen=True):
    """The last minutes of a store, by second."""

    store: str
    interval_ms: Natural
    samples: Annotated[
        list[SecondOfReads],
        Meta(
            description="One a second, the oldest first. The lag is the largest of the replicas that reads "
            "without bounds go to."
        ),
    ]
    served: Annotated[
        LagsOfAnswers | None,
        Meta(description="The lag of the answers of the last `seconds`; null where they are not counted."),
    ]
