"""Reads of one key: admitted by role and lag, answered with both.

Progress is taken before the value, so that the lag is never understated; the position token is made from what
was being applied after it, so that the token bounds from above what was read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from forebay.codecs import from_segment
from forebay.errors import (
    BadParameter,
    LagExceedsTolerance,
    LogDiverged,
    NotActive,
    NotHostedHere,
    NotReady,
    PartitionerMismatch,
    PositionNotReached,
    PositionOfAnotherLog,
    Problem,
    UnknownKey,
    UnknownStore,
    WrongStoreKind,
)
from forebay.lag import Lag, boot_ms, lag_of, provable
from forebay.metadata import StreamsMetadataState
from forebay.position import Position, decode_position, encode_position, log_digest
from forebay.rest.answers import (
    JSON_HEAD,
    NO_STORE,
    Answer,
    Provenance,
    lag_json,
    problem_answer,
    provenance_head,
    provenance_json,
    provenance_members,
)
from forebay.rest.parameters import ReadParameters
from forebay.stored_keys import MAX_TIME_MS, MIN_TIME_MS, successor
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec, Topology
from forebay_worker.tasks.expiry import oldest_start_ms
from forebay_worker.tasks.manager import ReplicaTable
from forebay_worker.tasks.replica import Replica


class Refused(Exception):
    """A read that its replica refuses, with what the replica is."""

    def __init__(self, problem: Problem, source: Provenance) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.source = source

    def answer(self) -> Answer:
        """The problem with the replica's lag, role and position in members and headers."""
        self.problem.members = {**self.problem.members, **provenance_members(self.source)}
        return problem_answer(self.problem, self.source)


@dataclass(frozen=True)
class _Admitted:
    """A replica that may answer a read, as it was found."""

    replica: Replica
    role: str
    lag: Lag


class Reads:
    """Answers reads of the replicas that this worker holds."""

    def __init__(
        self,
        topology: Topology,
        metadata: StreamsMetadataState,
        host: str,
        replicas: Callable[[], ReplicaTable],
        lease_until_boot_ms: Callable[[], float],
        end_offset_max_age_ms: int,
    ) -> None:
        self._topology = topology
        self._metadata = metadata
        self._host = host
        self._replicas = replicas
        self._lease_until_boot_ms = lease_until_boot_ms
        self._end_offset_max_age_ms = end_offset_max_age_ms

    def key(self, store: str, segment: bytes, parameters: ReadParameters) -> Answer:
        """Answer ``GET /v1/stores/{store}/keys/{key}``; raises ``Problem`` or ``Refused``."""
        spec = self.spec(store, "key-value")
        plain = from_segment(spec.key_codec, segment)
        replica = self._replica(spec, plain)
        admitted = self._admit(replica, parameters)
        value = replica.store.get(spec.stored_keys.stored(plain))
        source = self._provenance(admitted)
        key_json = spec.key_codec.to_json(plain)
        if value is None:
            raise Refused(self._miss(admitted, store, key_json), source)
        body = b'{"store":"%b","key":%b,"value":%b,%b}' % (
            store.encode(),
            key_json,
            spec.value_codec.to_json(value),
            provenance_json(source),
        )
        return Answer(200, JSON_HEAD + NO_STORE + provenance_head(source), body)

    def windows(self, store: str, segment: bytes, parameters: ReadParameters) -> Answer:
        """Answer ``GET /v1/stores/{store}/keys/{key}/windows``; raises ``Problem`` or ``Refused``."""
        spec = self.spec(store, "window")
        plain = from_segment(spec.key_codec, segment)
        replica = self._replica(spec, plain)
        query = _query_digest(store, plain, parameters)
        cursor = None if parameters.cursor is None else _Cursor.decode(parameters.cursor, query)
        admitted = self._admit(replica, parameters)
        if cursor is not None:
            self._require_position(admitted, cursor.position)
        start, end = self._window_range(spec, plain, parameters, replica)
        if cursor is not None:
            start, end = (start, cursor.last) if parameters.reverse else (cursor.last + b"\x00", end)
        scan = replica.store.scan(start, end, reverse=parameters.reverse)
        found = list(islice(scan, parameters.limit + 1))
        source = self._provenance(admitted)
        key_json = spec.key_codec.to_json(plain)
        if not found and cursor is None:
            # An empty range says "no such window", which only a replica that could say 404 may claim.
            miss = self._miss(admitted, store, key_json)
            if not isinstance(miss, UnknownKey):
                raise Refused(miss, source)
        following = None
        if len(found) > parameters.limit:
            found.pop()
            following = _Cursor(query, source.position, found[-1][0]).encode()
        return Answer(
            200,
            JSON_HEAD + NO_STORE + provenance_head(source),
            b'{"store":"%b","key":%b,"windows":[%b],"next":%b,"complete":true,"lag":%b,"partitions":[{%b}]}'
            % (
                store.encode(),
                key_json,
                b",".join(_window_json(spec, stored, value) for stored, value in found),
                json.dumps(following).encode(),
                lag_json(source.lag),
                provenance_json(source),
            ),
        )

    def lag(self, replica: Replica) -> tuple[str, Lag]:
        """Role and lag of a replica now."""
        now = boot_ms()
        return replica.role(self._lease_until_boot_ms(), now), lag_of(replica.progress, now)

    def spec(self, store: str, kind: str | None = None) -> StoreSpec:
        """The store's specification; raises ``UnknownStore`` or ``WrongStoreKind``."""
        spec = self._topology.stores.get(store)
        if spec is None:
            raise UnknownStore(f"There is no store {store!r}; GET /v1/stores lists them.", store=store)
        if kind is not None and spec.kind != kind:
            raise WrongStoreKind(
                f"The store {store!r} is of kind {spec.kind!r}; this path reads stores of kind {kind!r}.",
                store=store,
                kind=spec.kind,
            )
        return spec

    def _replica(self, spec: StoreSpec, plain: bytes) -> Replica:
        partitioner = spec.stream_partitioner
        if partitioner is None:
            raise NotReady(f"The partitioner of the store {spec.name!r} is 'unknown'.", store=spec.name)
        partition = partitioner.partition(plain, spec.partitions)
        replica = self._replicas().get((spec.name, partition))
        if replica is None:
            raise self._not_hosted(spec, partition)
        return replica

    def _not_hosted(self, spec: StoreSpec, partition: int) -> Problem:
        held = self._metadata.map.by_topic_partition
        active, standbys = held.get(TopicPartition(spec.topic, partition), (None, ()))
        return NotHostedHere(
            f"Partition {partition} of {spec.name!r} is not held by {self._host}.",
            store=spec.name,
            partition=partition,
            active_host=None if active is None else str(active),
            standby_hosts=[str(host) for host in standbys],
        )

    def _admit(self, replica: Replica, parameters: ReadParameters) -> _Admitted:
        """Hold a replica against what the read tolerates; raises ``Refused``."""
        now = boot_ms()
        progress = replica.progress
        role = replica.role(self._lease_until_boot_ms(), now)
        lag = lag_of(progress, now)
        admitted = _Admitted(replica, role, lag)
        if replica.diverged:
            raise self._refuse(
                admitted, LogDiverged("The log was replaced; the replica is being rebuilt.", retry_after_s=1)
            )
        if parameters.require_active and role != "active":
            raise self._refuse(admitted, NotActive(f"This replica is {role}, and require_active was asked for."))
        tolerance = parameters.tolerance_for(replica.spec)
        if tolerance.bounded and not tolerance.met_by(provable(lag, progress, now, self._end_offset_max_age_ms)):
            raise self._refuse(
                admitted,
                LagExceedsTolerance(
                    "The replica cannot prove that its lag is within the tolerance.",
                    tolerance={k: v for k, v in tolerance._asdict().items() if v is not None},
                ),
            )
        if parameters.min_position is not None:
            self._require_position(admitted, parameters.min_position)
        return admitted

    def _require_position(self, admitted: _Admitted, wanted: Position) -> None:
        replica = admitted.replica
        if wanted.log != log_digest(replica.log or ""):
            raise PositionOfAnotherLog(
                f"The position is not of the log that {replica.spec.name!r} has now; read without it.",
                store=replica.spec.name,
            )
        offset = wanted.offsets.get(replica.task.partition, 0)
        if (replica.progress.consistent_position or 0) < offset:
            raise self._refuse(
                admitted,
                PositionNotReached(f"The replica has not reached offset {offset} of its partition."),
            )

    def _miss(self, admitted: _Admitted, store: str, key_json: bytes) -> Problem:
        """What a missing key means: only a replica that is consistent may say that there is none."""
        replica = admitted.replica
        key = json.loads(key_json)
        if replica.misplaced_key is not None:
            return PartitionerMismatch(
                f"The key is not here, but other keys of {store!r} are not where the partitioner "
                f"{replica.spec.partitioner!r} puts them: set it to the writer's, or to 'unknown'.",
                store=store,
                key=key,
            )
        if not replica.complete or replica.progress.consistent_position != replica.progress.position:
            return NotReady(
                "The replica is in the middle of a replay, where a missing key proves nothing.",
                retry_after_s=1,
                store=store,
                key=key,
            )
        return UnknownKey(f"The store {store!r} has no key {key!r}.", store=store, key=key)

    def _refuse(self, admitted: _Admitted, problem: Problem) -> Refused:
        return Refused(problem, self._provenance(admitted))

    def _provenance(self, admitted: _Admitted) -> Provenance:
        replica = admitted.replica
        partition = replica.task.partition
        position = Position(log_digest(replica.log or ""), {partition: replica.progress.applying_to})
        return Provenance(partition, encode_position(position), admitted.role, self._host, admitted.lag)

    def _window_range(
        self, spec: StoreSpec, plain: bytes, parameters: ReadParameters, replica: Replica
    ) -> tuple[bytes, bytes]:
        """Stored keys of the windows asked for and not expired: retention counts from stream time."""
        first = MIN_TIME_MS if parameters.from_ms is None else parameters.from_ms
        oldest = oldest_start_ms(spec, replica.stream_time_ms)
        first = first if oldest is None else max(first, oldest)
        last = MAX_TIME_MS if parameters.to_ms is None else parameters.to_ms
        start = spec.stored_keys.stored(plain, first)
        end = (
            successor(spec.stored_keys.prefix(plain))
            if last == MAX_TIME_MS
            else spec.stored_keys.stored(plain, last)
        )
        return start, max(start, end)


@dataclass(frozen=True)
class _Cursor:
    """Where a page ended: the query it belongs to, the position it was read at, the last stored key."""

    query: bytes
    at: str
    last: bytes

    @property
    def position(self) -> Position:
        """What a later page must have applied at least."""
        return decode_position(self.at)

    def encode(self) -> str:
        """The opaque cursor."""
        raw = json.dumps([self.query.hex(), self.at, self.last.hex()]).encode()
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str, query: bytes) -> _Cursor:
        """The cursor, which must be of this query; raises ``BadParameter``."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            digest, at, last = json.loads(raw)
            cursor = cls(bytes.fromhex(digest), at, bytes.fromhex(last))
        except (binascii.Error, ValueError, TypeError):
            raise BadParameter("The cursor is not one that an answer carried.", parameter="cursor") from None
        if cursor.query != query:
            raise BadParameter(
                "The cursor belongs to another query; repeat store, key, from, to and reverse as they were.",
                parameter="cursor",
            )
        return cursor


def _query_digest(store: str, plain: bytes, parameters: ReadParameters) -> bytes:
    asked = repr((store, plain, parameters.from_ms, parameters.to_ms, parameters.reverse))
    return hashlib.sha256(asked.encode()).digest()[:8]


def _window_json(spec: StoreSpec, stored: bytes, value: bytes) -> bytes:
    (start_ms,) = spec.stored_keys.parse(stored).times_ms
    end_ms = start_ms + (spec.window_size_ms or 0)
    return b'{"start_ms":%d,"end_ms":%d,"value":%b}' % (start_ms, end_ms, spec.value_codec.to_json(value))
