"""Replicas as workers report them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.wire.answer_schemas.members import Figure, Host, Natural, Role

Failure: TypeAlias = Annotated[
    str | UnsetType, Meta(description="Why records cannot be applied, or the log cannot be read.")
]
Notices: TypeAlias = Annotated[
    dict[str, str] | UnsetType,
    Meta(description="What is wrong with the log or with where keys are, and the remedy, by kind."),
]
RestoreSecondsLeft: TypeAlias = Annotated[
    Figure | UnsetType, Meta(description="At the pace so far; null until that is known.")
]


class ReplicaReport(Struct, frozen=True):
    """What routers take from a replica's row, of workers of any version."""

    store: str
    partition: Natural
    role: Role
    record_lag: Figure
    time_lag_ms: Figure
    age_ms: Figure
    failure: Failure = UNSET
    notices: Notices = UNSET
    restored_records: Natural | UnsetType = UNSET
    restore_seconds_left: RestoreSecondsLeft = UNSET


class ReplicaRow(ReplicaReport, frozen=True, kw_only=True):
    """One replica: its worker, its role, and how far it is."""

    task: str
    host: Host
    offset: Annotated[Natural, Meta(description="The next offset to apply.")]
    end_offset: Annotated[
        Figure, Meta(description="The end of what can be read; on Kafka the last stable offset.")
    ]
    high_watermark: Annotated[
        Figure, Meta(description="The end of all that is written, in open transactions too.")
    ]
    open_transaction_records: Annotated[
        Figure,
        Meta(description="Offsets from the end to the high watermark, which open transactions hold back."),
    ]
    restored: Annotated[bool, Meta(description="Whether an end of the log was ever reached.")]
    restored_records_per_second: Natural | UnsetType = UNSET


class LagsAnswer(Struct, frozen=True):
    """The replicas known here."""

    lags: list[ReplicaRow]
