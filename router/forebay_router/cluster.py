"""What the router knows of the workers: who is alive, who holds what, how far behind; learnt from seeds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from forebay.errors import PartitionerMissing, UnknownStore
from forebay.lag import UNKNOWN_LAG, UNLIMITED, Lag, Tolerance, boot_ms
from forebay.metadata import ClusterMap, Generation, HostInfo, StreamsMetadataState
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec, find_partitioner
from forebay_router.candidates import Holder
from forebay_router.credentials import REFUSALS, Credentials
from forebay_router.recovery import Recovery
from forebay_router.seeds import Seeds

log = logging.getLogger(__name__)

_SILENT_READS_TO_SUSPECT = 3
_STATUS_TIMEOUT_S = 1.0
_FORGET_AFTER_MS = 300_000.0
_ALIAS_POLL_INTERVAL_S = 5.0
"""Pause between looks at an address whose worker goes under another, which is polled as often as any."""


class Report(NamedTuple):
    """What one replica was last known to be."""

    role: str
    lag: Lag
    at_boot_ms: float


@dataclass
class WorkerView:
    """One worker as its status reports and its answers show it."""

    host: HostInfo
    incarnation: int = 0
    sequence: int = 0
    live: bool = False
    silent_reads: int = 0
    refused_read: bool = False
    seen_boot_ms: float = 0.0
    recovery: Recovery = field(default_factory=Recovery)
    ceiling: Tolerance = UNLIMITED
    replicas: dict[tuple[str, int], Report] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The ``tasks`` of its last status."""

    @property
    def suspect(self) -> bool:
        """Whether it has been silent on several reads: it may hang."""
        return self.silent_reads >= _SILENT_READS_TO_SUSPECT


class Cluster:
    """The router's picture of one application's workers, kept up to date by polling them."""

    def __init__(
        self,
        seeds: Seeds,
        poll_interval_ms: int,
        lag_report_max_age_ms: int,
        credentials: Callable[[], Credentials],
    ) -> None:
        self._seeds = seeds
        self._credentials = credentials
        self._following: asyncio.Task[None] | None = None
        self._poll_interval_s = poll_interval_ms / 1000
        self._lag_report_max_age_ms = lag_report_max_age_ms
        self.application_id: str | None = None
        self.fingerprint = ""
        self.metadata = StreamsMetadataState({})
        self.workers: dict[HostInfo, WorkerView] = {}
        self.refused_polls: set[HostInfo] = set()
        """Addresses where a worker refused the router's token, or that there is none, when last polled."""
        self._polls: dict[HostInfo, asyncio.Task[None]] = {}
        self._refresh = asyncio.Event()
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Begin to poll the seeds, and every worker that they lead to."""
        self._http = httpx.AsyncClient(timeout=_STATUS_TIMEOUT_S, trust_env=False)
        self._watch_seeds()
        self._following = asyncio.create_task(self._seeds.follow(self._watch_seeds))

    async def stop(self) -> None:
        """Stop polling."""
        tasks = [*self._polls.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    @property
    def ready(self) -> bool:
        """Whether there is a map and a live worker."""
        return bool(self.metadata.stores) and any(worker.live for worker in self.workers.values())

    def spec(self, store: str) -> StoreSpec:
        """The store's specification; raises ``UnknownStore``."""
        spec = self.metadata.stores.get(store)
        if spec is None:
            raise UnknownStore(f"There is no store {store!r}; GET /v1/stores lists them.", store=store)
        return spec

    def holders(self, spec: StoreSpec, partition: int, load: Callable[[HostInfo], int]) -> list[Holder]:
        """Everyone known to hold a partition, by the newest map or by their own word."""
        active, standbys = self.metadata.map.by_topic_partition.get(
            TopicPartition(spec.topic, partition), (None, ())
        )
        hosts = {*standbys, *([active] if active else [])}
        hosts.update(
            host
            for host, worker in self.workers.items()
            if worker.live and (spec.name, partition) in worker.replicas
        )
        return [self._holder(host, active, (spec.name, partition), load(host)) for host in hosts]

    def _holder(self, host: HostInfo, active: HostInfo | None, held: tuple[str, int], load: int) -> Holder:
        worker = self.workers.get(host)
        report = worker.replicas.get(held) if worker else None
        role = "active" if host == active else "standby"
        if worker is None or report is None:
            # Never heard of: the map alone speaks for it.
            return Holder(host, role, live=worker is None or worker.live, load=load)
        fresh = boot_ms() - report.at_boot_ms <= self._lag_report_max_age_ms
        lag = report.lag if fresh else UNKNOWN_LAG
        return Holder(
            host, report.role, lag, worker.live, worker.suspect, load, worker.recovery.window, worker.ceiling
        )

    def report(self, host: HostInfo, held: tuple[str, int], role: str, lag: Lag) -> None:
        """Take note of what an answer's headers said of its replica."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.replicas[held] = Report(role, lag, boot_ms())

    def answered(self, host: HostInfo, *, late: bool = False) -> None:
        """A worker answered a read, if perhaps ``late``, when nobody waited any more: it does not hang."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.silent_reads = 0
            if not late:
                worker.recovery.answered()

    def silent(self, host: HostInfo) -> None:
        """A worker let a read wait past the hedge delay."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.silent_reads += 1

    def refused(self, host: HostInfo, status: int) -> None:
        """A worker answered a read with a refusal of the router itself."""
        worker = self.workers.get(host)
        if worker is not None and not worker.refused_read:
            worker.refused_read = True
            _tell_refusal(host, "reads", status)

    def unreachable(self, host: HostInfo) -> None:
        """A worker refused or broke a connection: it is down until it answers a poll."""
        worker = self.workers.get(host)
        if worker is not None and worker.live:
            worker.live = False
            worker.recovery.lose()
            log.warning("worker %s is down", host)

    def well(self, host: HostInfo) -> bool:
        """Whether a worker answers, as far as is known."""
        worker = self.workers.get(host)
        return worker is not None and worker.live and not worker.suspect

    def recovered(self, host: HostInfo) -> bool:
        """Whether a worker answers and may have as many reads at once as any."""
        worker = self.workers.get(host)
        return worker is not None and worker.live and not worker.suspect and worker.recovery.window is None

    def refresh(self) -> None:
        """Read every worker's status now: someone answered that the map is out of date."""
        self._refresh.set()

    def rows(self) -> list[dict[str, Any]]:
        """The replicas of all workers that answer, as they last reported them."""
        live = [worker for worker in self.workers.values() if worker.live and not worker.suspect]
        return [row for worker in sorted(live, key=lambda worker: worker.host) for row in worker.rows]

    def _watch_seeds(self) -> None:
        for address in self._seeds.addresses:
            self._watch(address)

    def _watch(self, address: HostInfo) -> None:
        if address not in self._polls:
            self._polls[address] = asyncio.create_task(self._poll_forever(address))

    async def _poll_forever(self, address: HostInfo) -> None:
        while True:
            host = None
            try:
                host = await self._poll(address)
                self.refused_polls.discard(address)
            except (httpx.HTTPError, OSError) as error:
                self._lost(address, error)
            except Exception:
                log.exception("the status of %s could not be understood", address)
            if self._forgotten(address):
                del self._polls[address]
                self.refused_polls.discard(address)
                return
            pause_s = self._poll_interval_s if host in (None, address) else _ALIAS_POLL_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._refresh.wait()
            self._refresh.clear()

    async def _poll(self, address: HostInfo) -> HostInfo | None:
        """Read the status of who is at an address; says under which address that worker goes, None if none is."""
        status = await self._get(address, "/v1/status")
        if status.get("tier") != "worker" or not self._same_application(address, status["application_id"]):
            return None
        host = HostInfo.parse(status["host"])
        worker = self.workers.setdefault(host, WorkerView(host))
        order = (status["incarnation"], status["sequence"])
        if order <= (worker.incarnation, worker.sequence):
            return host
        self._take_status(worker, status)
        self._watch(host)
        generation = Generation(status["generation"]["incarnation"], status["generation"]["generation"])
        if generation > self.metadata.map.generation or not self.metadata.stores:
            await self._fetch_metadata(address)
        return host

    def _take_status(self, worker: WorkerView, status: Mapping[str, Any]) -> None:
        now = boot_ms()
        if not worker.live:
            log.info("worker %s is up", worker.host)
        worker.incarnation, worker.sequence = status["incarnation"], status["sequence"]
        worker.live, worker.silent_reads, worker.seen_boot_ms = True, 0, now
        worker.ceiling = Tolerance(**status.get("ceiling", {}))
        worker.rows = status["tasks"]
        worker.replicas = {
            (row["store"], row["partition"]): Report(
                row["role"], Lag(row["record_lag"], row["time_lag_ms"], row["age_ms"]), now
            )
            for row in worker.rows
        }

    async def _get(self, address: HostInfo, path: str) -> Any:
        """The document at a path; raises ``httpx.HTTPError``."""
        assert self._http is not None
        answer = await self._http.get(f"http://{address}{path}", headers=self._credentials().headers)
        return answer.raise_for_status().json()

    async def _fetch_metadata(self, address: HostInfo) -> None:
        document, metadata = await asyncio.gather(
            self._get(address, "/v1/stores"), self._get(address, "/v1/metadata")
        )
        newer = ClusterMap.from_document(metadata)
        if newer.generation < self.metadata.map.generation:
            return
        specs = [StoreSpec.from_document(item) for item in document["stores"]]
        self.fingerprint = document["topology"]
        self._tell_missing_partitioners(specs)
        self.metadata.stores = {spec.name: spec for spec in specs}
        self.metadata.on_change(newer)
        for item in newer.hosts:
            self._watch(item.host)

    def _tell_missing_partitioners(self, specs: list[StoreSpec]) -> None:
        for spec in specs:
            if self.metadata.stores.get(spec.name) == spec:
                continue
            try:
                find_partitioner(spec.partitioner)
            except PartitionerMissing as error:
                log.error("keys of the store %r cannot be read: %s", spec.name, error)

    def _same_application(self, address: HostInfo, application_id: str) -> bool:
        if self.application_id is None:
            self.application_id = application_id
        if self.application_id != application_id:
            log.error(
                "the worker %s is of application %r, this router serves %r; it is ignored",
                address,
                application_id,
                self.application_id,
            )
        return self.application_id == application_id

    def _lost(self, address: HostInfo, error: Exception) -> None:
        self._heed_refusal(address, error)
        if not isinstance(error, httpx.TimeoutException):
            self.unreachable(address)
            return
        worker = self.workers.get(address)
        if worker is not None:
            worker.silent_reads = max(worker.silent_reads, _SILENT_READS_TO_SUSPECT)
            worker.recovery.lose()

    def _heed_refusal(self, address: HostInfo, error: Exception) -> None:
        if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code not in REFUSALS:
            self.refused_polls.discard(address)
        elif address not in self.refused_polls:
            self.refused_polls.add(address)
            _tell_refusal(address, "status polls", error.response.status_code)

    def _forgotten(self, address: HostInfo) -> bool:
        """Whether to stop polling an address: it is neither a seed's nor in the map, and long silent."""
        if address in self._seeds.addresses or any(item.host == address for item in self.metadata.map.hosts):
            return False
        worker = self.workers.get(address)
        if worker is None:
            return True
        if worker.live or boot_ms() - worker.seen_boot_ms < _FORGET_AFTER_MS:
            return False
        del self.workers[address]
        return True


def _tell_refusal(host: HostInfo, what: str, status: int) -> None:
    log.error(
        "the worker %s refuses this router's %s with %d: --worker-token-file must hold a token that it takes",
        host,
        what,
        status,
    )
