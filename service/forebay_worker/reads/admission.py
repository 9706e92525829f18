"""Admission: a replica is checked against what a read tolerates before it answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from forebay.clock import boot_ms, latest_epoch_ms
from forebay.errors import (
    BadParameter,
    LagExceedsTolerance,
    LogDiverged,
    NotActive,
    NotHostedHere,
    NotReady,
    PositionNotReached,
    PositionOfAnotherLog,
    Problem,
    RecordTooOld,
    UnknownPartitioner,
    UnknownStore,
)
from forebay.lag import UNKNOWN_LAG, UNLIMITED, Lag, Progress, Tolerance, lag_of, provable
from forebay.log_epochs import OffsetAndEpoch, is_cut_off
from forebay.position import Position, log_digest, partition_position
from forebay.retention import expired_to_ms
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.wire.answer_schemas.members import Role
from forebay.wire.answers import (
    EncodedReplicaInfo,
    HttpAnswer,
    ReplicaInfo,
    encode_replica_info,
    problem_answer,
    provenance_members,
)
from forebay.wire.parameters import ReadParameters
from forebay_web.explanations import Explanation, explained
from forebay_web.histogram import ServedLag
from forebay_web.limits import Limit, Peer
from forebay_worker.tasks.manager import TaskManager
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_view import Doubt, ReplicaView, found_elsewhere

_MIN_PAUSE_S = 0.005
_PAUSE_BY_WAITING_S = 0.0001
"""Interval per waiting read: a check takes a tenth of it, so that all together take a tenth of the process's
time."""


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


class Refused(Exception):
    """A read that its replica refuses, with the replica's state."""

    def __init__(self, problem: Problem, source: ReplicaInfo) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.source = source

    @property
    def may_wait(self) -> bool:
        """Whether the replica may be able to answer soon."""
        return isinstance(self.problem, LagExceedsTolerance | PositionNotReached | RecordTooOld | NotReady)

    def with_replica_info(self) -> Problem:
        """The problem with the replica's lag, role and position among its members."""
        self.problem.members = {**self.problem.members, **provenance_members(self.source)}
        return self.problem

    def answer(self) -> HttpAnswer:
        """The same as an answer with its headers."""
        return problem_answer(self.with_replica_info(), self.source)


@dataclass(slots=True, eq=False)
class Admitted:
    """A replica that may answer a read, and what was known of it before its content was read.

    It is valid for all reads of one millisecond, unless something it was made from changes.
    """

    replica: Replica
    moment_boot_ms: int
    lease_until_boot_ms: float
    designated_boot_ms: float | None
    view: ReplicaView
    role: str
    lag: Lag
    doubt: Doubt | None
    replica_info: EncodedReplicaInfo
    clock_ms: int | None
    """The time in milliseconds since 1970 by which values expire, None if none do."""
    expired_ms: int | None
    """The last timestamp of records whose values have expired, None if none ever do."""
    tolerated_by: ReadParameters | None = None
    """The last parameters that it was checked against, and met."""

    def expired_for(self, parameters: ReadParameters) -> int | None:
        """The same for a read: what its session has seen to be expired has expired."""
        ttl_ms, wanted = self.view.spec.ttl_ms, parameters.min_position
        if self.expired_ms is None or ttl_ms is None or wanted is None or wanted.clock_ms is None:
            return self.expired_ms
        return max(self.expired_ms, wanted.clock_ms - ttl_ms)


class _Membership(Protocol):
    """What is asked of the group, beside which reads stand."""

    lease_until_boot_ms: float
    """Until when the worker may be active."""


class Admission:
    """Finds the replica of a partition and decides whether it may answer."""

    def __init__(
        self,
        topology: Topology,
        metadata: StreamsMetadataState,
        host: str,
        tasks: TaskManager,
        membership: _Membership,
        ceiling: Tolerance = UNLIMITED,
    ) -> None:
        self.stores = topology.stores
        self._metadata = metadata
        self._host = host
        self._tasks = tasks
        self._membership = membership
        self._ceiling = ceiling
        self.served = ServedLag()
        """Of the answers that were given."""

    def spec(self, store: str) -> StoreSpec:
        """The store's specification; raises ``UnknownStore``."""
        spec = self.stores.get(store)
        if spec is None:
            raise UnknownStore(f"There is no store {store!r}; GET /v1/stores lists them.", store=store)
        return spec

    def partition(self, spec: StoreSpec, plain: bytes, requested: int | None = None) -> int:
        """The partition of a key, as ``agreed_partition`` has it."""
        found = None if spec.stream_partitioner is None else spec.partition_of(plain)
        return self.agreed_partition(spec, found, requested)

    def agreed_partition(self, spec: StoreSpec, found: int | None, requested: int | None) -> int:
        """The partition that the partitioner found for a key, which must be the requested one if any was.

        Raises ``BadParameter`` if it is not: a miss in a partition that is not the key's would prove nothing.
        Raises ``UnknownPartitioner`` if the partitioner is unknown and no partition was requested.
        """
        if found is None:
            if requested is None:
                raise UnknownPartitioner(
                    f"The partitioner of the store {spec.name!r} is 'unknown': name the key's partition with "
                    "partition=, or ask a router, which searches all.",
                    store=spec.name,
                )
            return requested
        if requested is not None and requested != found:
            raise BadParameter(f"The key is in partition {found}, not {requested}.", parameter="partition")
        return found

    def partitioning(self, spec: StoreSpec, requested: int | None) -> Callable[[bytes], int]:
        """The same for many keys."""
        if requested is None and spec.stream_partitioner is not None:
            return spec.partition_of
        return lambda plain: self.partition(spec, plain, requested)

    def replica(self, spec: StoreSpec, partition: int) -> Replica:
        """The replica held here; raises ``NotHostedHere``, naming the hosts that hold one."""
        replica = self._tasks.replicas.get((spec.name, partition))
        if replica is not None:
            return replica if replica.predecessor is None else replica.predecessor
        held = self._metadata.map.by_topic_partition
        active, standbys = held.get(TopicPartition(spec.topic, partition), (None, ()))
        raise NotHostedHere(
            f"Partition {partition} of {spec.name!r} is not held by {self._host}.",
            store=spec.name,
            partition=partition,
            active_host=None if active is None else str(active),
            standby_hosts=[str(host) for host in standbys],
        )

    def held(self, spec: StoreSpec, partition: int) -> Replica | None:
        """The replica held here that answers reads, None if there is none."""
        replica = self._tasks.replicas.get((spec.name, partition))
        return None if replica is None else replica.served

    def lag(self, replica: Replica) -> tuple[Role, Lag]:
        """Role and lag of a replica's answers now."""
        now, served = boot_ms(), replica.served
        view, lease = served.view, self._membership.lease_until_boot_ms
        role = role_of(view.progress, served.designated_boot_ms, lease, now)
        return role, _lag_under(self.doubt(view), view.progress, now)

    def doubt(self, view: ReplicaView) -> Doubt | None:
        """What is wrong with a replica's log or with its store's keys, as far as is known on this worker."""
        return view.doubt or self._tasks.doubts.get(view.spec.name)

    def proven_lag(self, replica: Replica) -> tuple[Role, Lag]:
        """Role of a replica now, and its lag as it may be checked against a bound."""
        progress, (role, lag) = replica.view.progress, self.lag(replica)
        return role, provable(lag, progress, boot_ms())

    def records_behind(self, replica: Replica) -> int | None:
        """How far a replica is behind its log for the group, whatever its answers prove; None if unknown."""
        progress, now = replica.view.progress, boot_ms()
        return provable(lag_of(progress, now), progress, now).record_lag

    def admit(self, replica: Replica, parameters: ReadParameters) -> Admitted:
        """Check a replica against what the read tolerates; raises ``Refused``."""
        admitted = self._find(replica)
        if parameters.doubted and admitted.doubt is None:
            admitted = self._found(replica, admitted.view, admitted.moment_boot_ms, found_elsewhere(replica.spec))
        if admitted.view.diverged:
            raise self.refusal(
                admitted,
                LogDiverged("What the replica held is not trusted; it is being rebuilt.", retry_after_s=1),
            )
        # Equal queries share their parameters, so most reads of a millisecond need no check.
        if admitted.tolerated_by is not parameters:
            self._hold(admitted, parameters)
            admitted.tolerated_by = parameters
        return admitted

    def tolerance(self, spec: StoreSpec, parameters: ReadParameters) -> Tolerance:
        """The bounds of a read: those requested, or the store's own, and this worker's ceiling."""
        tolerance = parameters.tolerance_for(spec)
        return tolerance if self._ceiling == UNLIMITED else tolerance.held_to(self._ceiling)

    def _hold(self, admitted: Admitted, parameters: ReadParameters) -> None:
        if parameters.require_active and admitted.role != "active":
            raise self.refusal(
                admitted, NotActive(f"This replica is {admitted.role}, and require_active was asked for.")
            )
        tolerance = self.tolerance(admitted.replica.spec, parameters)
        if (explanation := explained.get()) is not None:
            self._explain(explanation, admitted, parameters)
        if tolerance != UNLIMITED and not tolerance.met_by(lag := self._provable(admitted)):
            doubt = admitted.doubt
            if doubt is not None and not doubt.is_accepted:
                raise self.refusal(admitted, doubt.problem(doubt.text, store=admitted.replica.spec.name))
            raise self.refusal(
                admitted,
                LagExceedsTolerance(
                    f"The replica cannot prove {'; '.join(map(str, tolerance.unmet_by(lag)))}.",
                    tolerance={k: v for k, v in tolerance._asdict().items() if v is not None},
                ),
            )
        if parameters.min_position is not None:
            self.require_position(admitted, parameters.min_position)

    def _explain(self, explanation: Explanation, admitted: Admitted, parameters: ReadParameters) -> None:
        spec = admitted.replica.spec
        explanation.hold_to(
            request=parameters.tolerance,
            store=spec.default_tolerance,
            ceiling=self._ceiling,
            all_of_them=self.tolerance(spec, parameters),
        )
        explanation.note(
            "replica",
            partition=admitted.replica.task.partition,
            role=admitted.role,
            lag=self._provable(admitted).document(),
            restored=admitted.view.restored,
        )

    def _find(self, replica: Replica) -> Admitted:
        """A replica's present state; times are rounded up to the millisecond, so that no lag is understated."""
        lease = self._membership.lease_until_boot_ms
        moment = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 1
        view, designated = replica.view, replica.designated_boot_ms
        kept: Admitted | None = replica.admitted
        if (
            kept is not None
            and kept.moment_boot_ms == moment
            and kept.view is view
            and kept.lease_until_boot_ms == lease
            and kept.designated_boot_ms == designated
        ):
            return kept
        admitted = self._found(replica, view, moment, self.doubt(view))
        replica.admitted = admitted
        return admitted

    def _found(self, replica: Replica, view: ReplicaView, moment: int, doubt: Doubt | None) -> Admitted:
        lease, designated, now = self._membership.lease_until_boot_ms, replica.designated_boot_ms, float(moment)
        role, lag = role_of(view.progress, designated, lease, now), _lag_under(doubt, view.progress, now)
        # Rounded up like the moment.
        clock_ms = None if view.spec.ttl_ms is None else math.floor(latest_epoch_ms()) + 1
        replica_info = encode_replica_info(self._replica_info(replica.task, view, role, lag, clock_ms))
        expired_ms = None if clock_ms is None else expired_to_ms(view.spec, clock_ms)
        return Admitted(
            replica, moment, lease, designated, view, role, lag, doubt, replica_info, clock_ms, expired_ms
        )

    def _provable(self, admitted: Admitted) -> Lag:
        return provable(admitted.lag, admitted.view.progress, admitted.moment_boot_ms)

    def require_position(self, admitted: Admitted, wanted: Position) -> None:
        """Raise ``PositionOfAnotherLog``, or ``Refused`` if the replica has not reached a position."""
        view = admitted.view
        if view.log is None:
            raise self.refusal(
                admitted, NotReady("The identity of this replica's log is not known yet.", retry_after_s=1)
            )
        if wanted.log != log_digest(view.log):
            raise PositionOfAnotherLog(
                f"The position does not belong to the present log of {view.spec.name!r}; read without it.",
                store=view.spec.name,
            )
        partition = admitted.replica.task.partition
        offset = wanted.offsets.get(partition, 0)
        if self.is_of_another_history(view, wanted.point(partition)):
            raise PositionOfAnotherLog(
                f"The log of {view.spec.name!r} has lost records before the position, and has others in their "
                "place; read without it.",
                store=view.spec.name,
            )
        if (view.progress.consistent_position or 0) < offset:
            raise self.refusal(
                admitted, PositionNotReached(f"The replica has not reached offset {offset} of its partition.")
            )

    @staticmethod
    def is_of_another_history(view: ReplicaView, point: OffsetAndEpoch | None) -> bool:
        """Whether a point is in a part of the log that was lost, as far as the replica knows its history."""
        return point is not None and (view.log_has_lost == "newest" or is_cut_off(view.epochs, view.proof, point))

    def replica_info(self, admitted: Admitted) -> EncodedReplicaInfo:
        """An answer's provenance; taken after its content, so that the position is an upper bound for it.

        Raises ``Refused`` if the replica was rebuilt meanwhile: how far the content was, cannot be known any more.
        """
        view = admitted.replica.view
        if view is admitted.view:
            return admitted.replica_info
        if view.diverged or view.store is not admitted.view.store:
            raise self.refusal(
                admitted, NotReady("The replica's store was replaced while it was read.", retry_after_s=1)
            )
        task, clock_ms = admitted.replica.task, admitted.clock_ms
        return encode_replica_info(self._replica_info(task, view, admitted.role, admitted.lag, clock_ms))

    def _replica_info(
        self, task: TaskId, view: ReplicaView, role: str, lag: Lag, clock_ms: int | None
    ) -> ReplicaInfo:
        epoch = None if view.point is None else view.point.epoch
        token = partition_position(view.log or "", task.partition, view.progress.applying_to, epoch, clock_ms)
        return ReplicaInfo(task.partition, token, role, self._host, lag)

    def refusal(self, admitted: Admitted, problem: Problem) -> Refused:
        """What to raise where an admitted replica cannot answer after all."""
        return Refused(problem, admitted.replica_info.source)


def _lag_under(doubt: Doubt | None, progress: Progress, now_boot_ms: float) -> Lag:
    """The lag that can be proven: none while it is not known where keys are, or what the log is."""
    return lag_of(progress, now_boot_ms) if doubt is None or doubt.is_accepted else UNKNOWN_LAG


@contextmanager
def bounded_wait(limit: Limit, peer: Peer) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yields a coroutine function that sleeps until a read's next check; the read counts as waiting from its first
    call.

    That raises ``Overloaded`` if as many reads as the limit wait already.
    """
    with limit.held_by(peer) as held:

        async def pause() -> None:
            held.take(1 - held.amount)
            await asyncio.sleep(max(_MIN_PAUSE_S, limit.used * _PAUSE_BY_WAITING_S))

        yield pause
