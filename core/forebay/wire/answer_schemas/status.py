"""Processes and their replicas: ``/v1/identity``, ``/v1/status`` and ``/v1/lags``, and tickets."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.wire.answer_schemas.members import Figure, Host, Natural, Role, read_json

IDENTITY_PATH = "/v1/identity"
"""A router reads it before it sends anything else to an address."""
MAX_IDENTITY_BYTES = 4 << 10

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


class Identity(Struct, frozen=True):
    """A process: its tier and application, the id of its state, and which start of it this is.

    A router's application is None until it has found its workers.
    """

    tier: Literal["worker", "router"]
    application_id: str | None
    process_id: str
    incarnation: int

    @classmethod
    def parse(cls, body: bytes) -> Identity:
        """The identity in a body; raises ``ValueError`` if it is none, or too long for one."""
        if len(body) > MAX_IDENTITY_BYTES:
            raise ValueError(f"{len(body)} bytes are more than an identity may take")
        return read_json(body, cls)


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


class MapGeneration(Struct, frozen=True):
    """The generation of the newest map known."""

    incarnation: int
    generation: int


class Ceiling(Struct, frozen=True):
    """The bounds that the operator sets to every read."""

    max_record_lag: Figure
    max_time_lag_ms: Figure
    max_age_ms: Figure


class WorkerProcess(Identity, frozen=True, kw_only=True):
    """A worker without what it holds."""

    application_id: str
    host: Host
    rack: str = ""
    sequence: Natural
    generation: MapGeneration
    ceiling: Ceiling = Ceiling(None, None, None)


class StatusReport(WorkerProcess, frozen=True, kw_only=True):
    """What routers take from the status of a worker of any version."""

    acceptable_recovery_lag: Natural
    num_standby_replicas: Natural
    tasks: list[ReplicaReport]


class WorkerStatus(WorkerProcess, frozen=True, kw_only=True):
    """A worker: which process it is, what it holds, how far that is."""

    tier: Literal["worker"] = "worker"
    topology: str
    state: str
    storage_fault: Annotated[
        str | None,
        Meta(description="What the machine or the group refuses, such as disk space, and the remedy."),
    ]
    acceptable_recovery_lag: Natural
    num_standby_replicas: Natural
    tasks: list[ReplicaRow]


class KnownWorker(Struct, frozen=True):
    """A worker as a router sees it."""

    host: Host
    live: bool
    suspect: bool
    recovering: bool
    in_flight: Natural
    waiting: Annotated[Natural, Meta(description="Reads that wait there for their bounds.")]


class RejectedAddress(Struct, frozen=True):
    """An address that is no worker's of this application."""

    address: Host
    reason: Annotated[str, Meta(description="Why no requests are sent there.")]


class RouterProcess(Struct, frozen=True):
    """One process of a router."""

    process_id: str | None
    state: Annotated[str, Meta(description="silent if it does not answer")]
    workers_live: Figure


class RouterStatus(Identity, frozen=True, kw_only=True):
    """A router: which process it is, and which workers it can reach."""

    tier: Literal["router"] = "router"
    sequence: Natural
    state: str
    generation: MapGeneration
    workers: list[KnownWorker]
    rejected_addresses: list[RejectedAddress]
    auth_rejected_by: list[Host]
    processes: list[RouterProcess]


class TicketAnswer(Struct, frozen=True):
    """A ticket, and until when it is accepted."""

    ticket: str
    expires_ms: Natural
