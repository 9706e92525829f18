"""What a router knows of the workers: which are alive, what they hold, how far behind they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from forebay.clock import boot_ms
from forebay.errors import PartitionerMismatch, PartitionerMissing, UnknownStore
from forebay.lag import UNKNOWN_LAG, UNLIMITED, Tolerance
from forebay.logs import LogThrottle
from forebay.routing.candidates import Holder
from forebay.store_spec import StoreSpec, find_partitioner
from forebay.streams_metadata import NO_GENERATION, ClusterMap, Generation, HostInfo, StreamsMetadataState
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.status import Identity, StatusReport
from forebay_router.cluster.rejected_addresses import RejectedAddresses
from forebay_router.cluster.worker_view import Held, WorkerView, reported_in
from forebay_router.upstream.opener import log_auth_rejection
from forebay_web.health.survey import ReplicaState

log = logging.getLogger(__name__)

_BEGAN_ANEW_AFTER_MS = 10_000.0


def _no_load(host: HostInfo) -> int:
    return 0


class Cluster:
    """The picture of one application's workers that their statuses, maps and answers give.

    It asks nobody: ``Discovery`` does, and reads report what they meet.
    """

    def __init__(
        self,
        lag_report_max_age_ms: int,
        application_id: str | None = None,
        rack: str | None = None,
        own_host: str | None = None,
    ) -> None:
        self._lag_report_max_age_ms = lag_report_max_age_ms
        self._rack = rack
        self._own_host = own_host
        self.fingerprint = ""
        self.metadata = StreamsMetadataState({})
        self.workers: dict[HostInfo, WorkerView] = {}
        self.ceiling: Tolerance = UNLIMITED
        """The strictest of the bounds that workers set to every read."""
        self.doubted: frozenset[str] = frozenset()
        """Stores of which a replica has found keys in partitions that are not theirs: all their partitions are
        concerned, for what one has, another lacks."""
        self.rejected_addresses = RejectedAddresses(application_id)
        self._holding: dict[Held, set[HostInfo]] = {}
        """The workers that report holding a partition."""
        self._logged = LogThrottle()
        self._outdated_boot_ms = float("inf")
        """Since when no worker that answers has known a map as new as the newest one here."""

    @property
    def application_id(self) -> str | None:
        """The application served; None while that is unknown."""
        return self.rejected_addresses.application_id

    @property
    def has_holders(self) -> bool:
        """Whether the stores and any of their holders are known."""
        return bool(self.metadata.stores and (self.metadata.map.hosts or any(self._holding.values())))

    def spec(self, store: str) -> StoreSpec:
        """The store's specification; raises ``UnknownStore``."""
        spec = self.metadata.stores.get(store)
        if spec is None:
            raise UnknownStore(f"There is no store {store!r}; GET /v1/stores lists them.", store=store)
        return spec

    def holders(self, spec: StoreSpec, partition: int, load: Callable[[HostInfo], int]) -> list[Holder]:
        """All workers known to hold a partition, from the newest map or their own reports."""
        active, standbys = self.metadata.map.by_topic_partition.get(
            TopicPartition(spec.topic, partition), (None, ())
        )
        hosts = {*standbys, *([active] if active else [])}
        hosts.update(host for host in self._holding.get((spec.name, partition), ()) if self.workers[host].live)
        hosts -= self.rejected_addresses.addresses
        return [self._holder(host, active, (spec.name, partition), load(host)) for host in hosts]

    @property
    def expected_replicas(self) -> int | None:
        """How many replicas each partition is to have, as the workers are set; None if none says."""
        standbys = [worker.num_standby_replicas for worker in self.workers.values() if worker.is_healthy]
        known = [number for number in standbys if number is not None]
        return 1 + max(known) if known else None

    def unheld(self, spec: StoreSpec) -> int:
        """How many partitions of a store no answering worker reports holding."""
        return sum(
            not any(self.workers[host].is_healthy for host in self._holding.get((spec.name, partition), ()))
            for partition in range(spec.partitions)
        )

    def _holder(self, host: HostInfo, active: HostInfo | None, held: tuple[str, int], load: int) -> Holder:
        worker = self.workers.get(host)
        role, lag, lagging = "active" if host == active else "standby", UNKNOWN_LAG, False
        if worker is None:
            # Never heard from: only the map lists it.
            return Holder(host, role, live=True, load=load)
        report = worker.replicas.get(held)
        if report is not None:
            role = report.role
            if boot_ms() - report.at_boot_ms <= self._lag_report_max_age_ms:
                lag, lagging = report.lag, report.lagging
        near = self._rack is not None and worker.rack == self._rack
        window = worker.slow_start.window
        own = host.host == self._own_host
        health = worker.live, worker.suspect
        return Holder(host, role, lag, *health, load, window, worker.ceiling, near, lagging, own)

    def replica_states(self, spec: StoreSpec, partition: int) -> list[ReplicaState]:
        """The replicas of a partition in the newest map or reported by workers, with their lag as of now."""
        now, held = boot_ms(), (spec.name, partition)
        states = []
        for holder in self.holders(spec, partition, _no_load):
            worker = self.workers.get(holder.host)
            if worker is None:
                states.append(ReplicaState(str(holder.host), holder.role, live=False))
                continue
            report, restore = worker.replicas.get(held), worker.restores.get(held)
            states.append(
                ReplicaState(
                    str(holder.host),
                    holder.role,
                    holder.lag if report is None else holder.lag.aged(now - report.at_boot_ms),
                    worker.is_healthy,
                    holder.lagging,
                    worker.failures.get(held),
                    None if restore is None else restore.records,
                    None if restore is None else restore.seconds_left,
                    worker.notices.get(held, {}),
                )
            )
        return states

    def on_answer_headers(self, host: HostInfo, held: Held, head: bytes) -> None:
        """Record the state of the answering replica from the header lines of a worker's answer."""
        report, worker = reported_in(head), self.workers.get(host)
        if worker is not None and report is not None and report.role:
            worker.replicas[held] = worker.report(held, report.role, report.lag, boot_ms())
            self._holding.setdefault(held, set()).add(host)

    def on_mismatched_answer(self, host: HostInfo) -> None:
        """An answer that came from a worker names another store or key than its request."""
        if self._logged.allow(str(host)):
            log.error(
                "an answer from %s was for another key; its connection is closed, and the read repeated", host
            )

    def on_answer(self, host: HostInfo) -> None:
        """A worker answered a read."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.on_answer()

    def on_slow_read(self, host: HostInfo) -> None:
        """A worker let a read wait past the hedge delay."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.slow_reads += 1

    def on_auth_rejected(self, host: HostInfo, status: int) -> None:
        """A worker answered a read with a refusal of the router itself."""
        worker = self.workers.get(host)
        if worker is not None and not worker.auth_rejected:
            worker.auth_rejected = True
            log_auth_rejection(host, "reads", status)

    def on_unreachable(self, host: HostInfo) -> None:
        """A worker refused or broke a connection: it is down until it answers a poll."""
        worker = self.workers.get(host)
        if worker is not None and worker.live:
            worker.live = False
            worker.slow_start.lose()
            log.warning("worker %s is down", host)

    def is_healthy(self, host: HostInfo) -> bool:
        """Whether a worker answers, as far as is known."""
        worker = self.workers.get(host)
        return worker is not None and worker.is_healthy

    def mismatch(self, address: HostInfo, identity: Identity) -> str | None:
        """Why what answers at an address is not the process that should be there; None if it may be.

        The newest map is believed as long as some other worker is there that can renew it: one that has its lease,
        as a role other than standby shows.
        """
        worker = self.workers.get(address)
        named = self.metadata.map.process_ids.get(address)
        if named and identity.process_id not in named:
            if any(view.holds_lease for host, view in self.workers.items() if host != address):
                return f"is the process {identity.process_id!r}, which the group does not know there"
            return None
        if worker is not None and worker.is_later_start_of(identity):
            return f"is a copy of the process {identity.process_id!r} from before its last start"
        return None

    def rows(self) -> Iterator[dict[str, Any]]:
        """The replicas of all workers that answer, worker by worker, as they last reported them; their lag as of
        now."""
        well = [worker for worker in self.workers.values() if worker.is_healthy]
        return (row for worker in sorted(well, key=lambda worker: worker.host) for row in worker.rows())

    def take(
        self, address: HostInfo, body: bytes, host: HostInfo, status: StatusReport, polled_boot_ms: float
    ) -> bool:
        """Adopt the status that a worker, ``host``, gave at an address, raw and parsed, if it is news; whether it
        is."""
        worker = self.workers.setdefault(host, WorkerView(host))
        # Without its former state and with another clock, a worker comes back with any incarnation.
        another = (
            host == address and status.process_id != worker.process_id and polled_boot_ms > worker.seen_boot_ms
        )
        worker.seen_boot_ms = boot_ms()
        if not another and not worker.is_newer(status):
            return False
        if not worker.live:
            log.info("worker %s is up", host)
        before, ceiling, notices = worker.replicas.keys(), worker.ceiling, worker.notices
        worker.take(body, status, polled_boot_ms)
        self._holds(worker, before)
        if worker.notices != notices:
            self._find_doubted()
        if worker.ceiling != ceiling:
            self._find_ceiling()
        return True

    def on_poll_timeout(self, host: HostInfo) -> None:
        """A worker let a poll wait for too long."""
        if host in self.workers:
            self.workers[host].suspect_at_once()

    def forget(self, host: HostInfo) -> None:
        """There is no such worker any more."""
        worker = self.workers.pop(host, None)
        if worker is not None:
            # Whoever was to ask it must not.
            worker.live = False
            self._holds(WorkerView(host), worker.replicas.keys())
            self._find_ceiling()
            self._find_doubted()

    def _find_doubted(self) -> None:
        self.doubted = frozenset(
            store
            for worker in self.workers.values()
            for (store, _), notices in worker.notices.items()
            if PartitionerMismatch.name in notices
        )

    def _find_ceiling(self) -> None:
        self.ceiling = UNLIMITED
        for worker in self.workers.values():
            self.ceiling = self.ceiling.held_to(worker.ceiling)

    def adopt(self, fingerprint: str, specs: Sequence[StoreSpec], newer: ClusterMap) -> bool:
        """Adopt a worker's topology and map, unless the map is older than the known one; whether it was."""
        if newer.generation < self.metadata.map.generation:
            return False
        self.fingerprint = fingerprint
        self._log_missing_partitioners(specs)
        # Of one that is as it was, the object stays, and with it what was worked out for its reads.
        same = {spec: spec for spec in self.metadata.stores.values()}
        self.metadata.stores = {spec.name: same.get(spec, spec) for spec in specs}
        return self.metadata.on_change(newer)

    def drop_map_of_former_group(self, generation: Generation) -> None:
        """Forget the map if for some time every worker that answers has known only older ones.

        As after all of them were restarted on a group that was restored from a backup. ``generation`` is
        the one that one of them reports.
        """
        if generation >= self.metadata.map.generation:
            # As nearly always: the others need not be checked.
            self._outdated_boot_ms = float("inf")
            return
        known = {worker.generation for worker in self.workers.values() if worker.is_healthy} - {NO_GENERATION}
        if not known or max(known) >= self.metadata.map.generation:
            self._outdated_boot_ms = float("inf")
            return
        self._outdated_boot_ms = min(self._outdated_boot_ms, boot_ms())
        if boot_ms() - self._outdated_boot_ms > _BEGAN_ANEW_AFTER_MS:
            log.warning("no worker knows %s any more: their group began anew", self.metadata.map.generation)
            self.metadata.map = ClusterMap()

    def _holds(self, worker: WorkerView, before: Set[Held]) -> None:
        now = worker.replicas.keys()
        for held in before - now:
            self._holding[held].discard(worker.host)
        for held in now - before:
            self._holding.setdefault(held, set()).add(worker.host)

    def _log_missing_partitioners(self, specs: Iterable[StoreSpec]) -> None:
        for spec in specs:
            if self.metadata.stores.get(spec.name) == spec:
                continue
            try:
                find_partitioner(spec.partitioner)
            except PartitionerMissing as error:
                log.error("keys of the store %r cannot be read: %s", spec.name, error)
