"""``GET /v1/status`` of both tiers, and tickets."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from forebay.process_identity import Identity
from forebay.wire.answer_schemas.members import Figure, Host, Natural
from forebay.wire.answer_schemas.replicas import ReplicaReport, ReplicaRow


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
