"""A router: its view of the workers, its requests in flight, and its answers."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from forebay.clock import boot_ms, epoch_ms
from forebay.errors import NotReady, Problem
from forebay.lag import Tolerance
from forebay.routing.candidates import candidates
from forebay.routing.hedging import HedgeBudget, HedgeDelay
from forebay.settings import RouterSettings
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo, StreamsMetadataState
from forebay.wire.answer_schemas.status import Identity, KnownWorker, MapGeneration, RouterProcess, RouterStatus
from forebay.wire.parameters import Prefer, ReadParameters
from forebay_router.cluster.cluster import Cluster
from forebay_router.cluster.discovery import Discovery
from forebay_router.cluster.seeds import Seeds
from forebay_router.cluster.worker_view import WorkerView
from forebay_router.upstream.opener import Opener, credentials_of, encryption_of, token_networks_of
from forebay_router.upstream.pool import ConnectionPool
from forebay_web.event_streams import EventStreams
from forebay_web.health.findings import Finding
from forebay_web.health.survey import ReplicaState
from forebay_web.limits import Held, Limits, Peer


class Router:
    """Answers reads by asking workers."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.credentials = credentials_of(settings.worker_token_file)
        seeds = Seeds(settings.seeds)
        opener = Opener(
            encryption_of(settings.worker_ca_file, seeds.name_of),
            token_networks_of(settings),
            lambda address, answer: self.discovery.admit(address, answer),
        )
        self.pool = ConnectionPool(opener)
        self.cluster = Cluster(
            settings.lag_report_max_age_ms, settings.application_id, settings.rack, settings.own_host
        )
        self.discovery = Discovery(
            self.cluster,
            seeds,
            settings.worker_poll_interval_ms,
            self.credentials,
            self.pool.forget,
            opener,
        )
        self.limits = Limits(settings)
        self.limits.held["upstream_requests"] = lambda: sum(
            connections.load + connections.waiting for connections in self.pool.values()
        )
        self.streams = EventStreams(self.limits.streams)
        self.delay = HedgeDelay()
        self.budget = HedgeBudget()
        self.counts: Counter[str] = Counter()
        """Fail-overs, hedges and refused hedges, by name."""
        self.draining = False
        self._incarnation = int(epoch_ms())
        self._sequence = itertools.count(1)
        self.choose = random.Random()

    def readiness(self) -> Problem | None:
        """Why the router is not ready."""
        if self.draining:
            return NotReady("The router is shutting down.")
        ready = self.discovery.ready
        if not ready and self.discovery.auth_rejected_by:
            return NotReady(
                "Workers refuse this router: --worker-token-file must contain a token that they accept. "
                "The router's log names them.",
                retry_after_s=1,
            )
        if self.cluster.rejected_addresses.disagreement is not None:
            return NotReady(self.cluster.rejected_addresses.disagreement, retry_after_s=1)
        if not ready:
            known = "No worker answers." if self.cluster.has_holders else "No map of the workers is known yet."
            return NotReady(known, retry_after_s=1)
        return None

    @property
    def state(self) -> str:
        """``ready`` or ``not-ready``."""
        return "ready" if self.readiness() is None else "not-ready"

    def drain(self) -> None:
        """Turn readiness off and end the streams: load balancers and clients should look elsewhere."""
        self.draining = True
        self.streams.end_all()

    @property
    def metadata(self) -> StreamsMetadataState:
        """Which worker holds what, by the newest map received from a worker."""
        return self.cluster.metadata

    def identity(self) -> Identity:
        """Which process this is."""
        return Identity("router", self.cluster.application_id, str(os.getpid()), self._incarnation)

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint; raises ``NotReady`` before any worker was reached."""
        if self.cluster.application_id is None:
            raise NotReady("The router has not reached any worker yet.", retry_after_s=1)
        return self.cluster.application_id, self.cluster.fingerprint

    def replica_rows(self, store: str | None = None) -> Iterator[dict[str, Any]]:
        """The replicas of all workers that answer, or those of a store, as they last reported them; their lag as
        of now."""
        return (row for row in self.cluster.rows() if store in (None, row["store"]))

    knows_all_replicas = True

    @property
    def expected_replicas(self) -> int | None:
        """How many replicas each partition is to have; None while that is unknown."""
        return self.cluster.expected_replicas

    def replica_states(self, spec: StoreSpec, partition: int) -> list[ReplicaState]:
        """The replicas of a partition, those of workers that do not answer too; their lag as of now."""
        return self.cluster.replica_states(spec, partition)

    def live_workers(self) -> dict[str, bool]:
        """Every worker of the application known here, and whether it answers; those of the map too."""
        known = dict.fromkeys((item.host for item in self.metadata.map.hosts), False)
        known |= {host: worker.is_healthy for host, worker in self.cluster.workers.items()}
        return {str(host): known[host] for host in sorted(known)}

    def own_findings(self) -> list[Finding]:
        """What keeps the router from being ready, and addresses that it cannot use."""
        problem = self.readiness()
        found = []
        if problem is not None:
            detail = problem.detail
            found.append(Finding("not-ready", "error", detail, "Start workers, and name them as --seeds."))
        for host in sorted(self.discovery.auth_rejected_by):
            detail = f"The worker {host} refuses this router's token."
            remedy = "--worker-token-file must contain a token that the workers accept."
            found.append(Finding("worker-refuses", "error", detail, remedy))
        for rejected in self.cluster.rejected_addresses.listed():
            detail = f"{rejected.address} {rejected.reason}"
            remedy = "Correct --seeds, or what listens there."
            found.append(Finding("address-unusable", "warning", detail, remedy))
        return found

    def status(self, processes: list[RouterProcess]) -> RouterStatus:
        """``GET /v1/status``: this process, which workers it can reach, and all processes of the router."""
        generation = self.metadata.map.generation
        return RouterStatus(
            **asdict(self.identity()),
            sequence=next(self._sequence),
            state=self.state,
            generation=MapGeneration(generation.incarnation, generation.number),
            workers=[self._known(worker) for _, worker in sorted(self.cluster.workers.items())],
            rejected_addresses=self.cluster.rejected_addresses.listed(),
            # Seeds too: nothing else is known of a worker that refuses from the beginning.
            auth_rejected_by=[str(host) for host in sorted(self.discovery.auth_rejected_by)],
            processes=processes,
        )

    def _known(self, worker: WorkerView) -> KnownWorker:
        return KnownWorker(
            host=str(worker.host),
            live=worker.live,
            suspect=worker.suspect,
            recovering=worker.slow_start.window is not None,
            in_flight=self.pool.load(worker.host),
            waiting=self.pool[worker.host].waiting,
        )

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``NotReady`` before any worker was reached, or ``UnknownStore``."""
        if not self.cluster.metadata.stores:
            raise NotReady("The router has not reached any worker yet.", retry_after_s=1)
        return self.cluster.spec(store)

    def partitions(self, spec: StoreSpec, plain: bytes) -> Sequence[int]:
        """The partitions where a key may be: its own, or all if the partitioner is unknown."""
        return range(spec.partitions) if spec.stream_partitioner is None else (spec.partition_of(plain),)

    def tolerance(self, spec: StoreSpec, parameters: ReadParameters) -> Tolerance:
        """The bounds of a read as a whole: those requested, or the store's own, and every worker's ceiling."""
        return parameters.tolerance_for(spec).held_to(self.cluster.ceiling)

    def candidates(self, spec: StoreSpec, partition: int, parameters: ReadParameters) -> list[HostInfo]:
        """The workers to ask for a partition, best first."""
        holders = self.cluster.holders(spec, partition, self.pool.load)
        # Any but the active would refuse.
        prefer: Prefer = "active" if parameters.require_active else parameters.prefer
        if parameters.require_active:
            holders = [holder._replace(lagging=False) for holder in holders]
        return list(candidates(holders, parameters.tolerance_for(spec), prefer, self.choose))

    def full(self, host: HostInfo) -> bool:
        """Whether a worker is at its limit of requests in flight."""
        return self.pool.load(host) >= self.settings.max_in_flight_per_worker

    def admitted(self, peer: Peer, parameters: ReadParameters) -> Held:
        """Count a request of a peer; raises ``Overloaded`` rather than let it queue.

        Those that may wait for their bounds are counted apart: they take long, and none must wait for them.
        """
        return (self.limits.waiting if parameters.wait_ms else self.limits.requests).held_by(peer, 1)

    def deadline(self, parameters: ReadParameters) -> float:
        """The deadline of a request that begins now, on the boot-time clock."""
        return boot_ms() + self.timeout_ms(parameters)

    def timeout_ms(self, parameters: ReadParameters) -> int:
        """How long a request may take: as it states, within bounds."""
        return parameters.allowed_ms(self.settings.request_timeout_ms)
