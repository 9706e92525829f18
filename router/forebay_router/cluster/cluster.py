"""The router's knowledge of the workers, learnt from seeds: which are alive, what they hold, how far behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Set
from typing import Any

from forebay.clock import boot_ms
from forebay.errors import PartitionerMissing, UnknownStore
from forebay.lag import UNKNOWN_LAG
from forebay.metadata import NO_GENERATION, ClusterMap, Generation, HostInfo, StreamsMetadataState
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec, find_partitioner
from forebay_router.cluster.candidates import Holder
from forebay_router.cluster.polls import Pace, PollRefused, WorkerDocuments
from forebay_router.cluster.seeds import Seeds
from forebay_router.cluster.strangers import Strangers
from forebay_router.cluster.worker_view import Held, Report, WorkerView
from forebay_router.upstream.credentials import REFUSALS
from forebay_router.upstream.provenance import reported_in

log = logging.getLogger(__name__)

_FORGET_AFTER_MS = 300_000.0
_BEGAN_ANEW_AFTER_MS = 10_000.0
_LEAST_PAUSE_S = 0.02
_PAUSE_AFTER_SILENCE_S, _LONGEST_PAUSE_AFTER_SILENCE_S = 0.5, 5.0
"""A poll without an answer occupies one of a few slots for a second, so silent workers are polled less and
less."""
_UNHEARD_PAUSES, _UNHEARD_S = 3, 5.0
"""This many polls and seconds must pass without any answer before the router considers itself cut off."""
_REFRESH_MS = 250.0
"""How long a read waits at most for a newer map: longer would not help with a worker that hangs."""
_ALIAS_POLL_INTERVAL_S = 5.0
"""Pause between polls of an address whose worker uses another one, which is polled as often as any."""


class Cluster:
    """The router's picture of one application's workers, kept up to date by polling them."""

    def __init__(
        self,
        seeds: Seeds,
        poll_interval_ms: int,
        lag_report_max_age_ms: int,
        credentials: Callable[[], bytes],
        application_id: str | None = None,
        on_forgotten: Callable[[HostInfo], None] | None = None,
        rack: str | None = None,
    ) -> None:
        self._seeds = seeds
        self._on_forgotten = on_forgotten
        self._rack = rack
        self._documents = WorkerDocuments(credentials)
        self._pace = Pace(poll_interval_ms / 1000)
        self._following: asyncio.Task[None] | None = None
        self._lag_report_max_age_ms = lag_report_max_age_ms
        self.fingerprint = ""
        self.metadata = StreamsMetadataState({})
        self.workers: dict[HostInfo, WorkerView] = {}
        self.refused_polls: set[HostInfo] = set()
        """Addresses where a worker refused the router's token, or its absence, when last polled."""
        self._holding: dict[Held, set[HostInfo]] = {}
        """The workers that report holding a partition."""
        self._mapped: frozenset[HostInfo] = frozenset()
        self.strangers = Strangers(application_id)
        self._asked: set[HostInfo] = set()
        """Addresses that were polled, whatever the outcome."""
        self._found: set[HostInfo] = set()
        """Those at which a worker of the application was, whatever address it uses."""
        self._polls: dict[HostInfo, asyncio.Task[None]] = {}
        self._wanted: dict[HostInfo, asyncio.Event] = {}
        """By address: set if the next poll should not wait."""
        self._refreshing: set[HostInfo] = set()
        """Addresses whose next poll does not wait, until it is done."""
        self._polled = asyncio.Event()
        """Set for a moment after each poll."""
        self._fetching = asyncio.Lock()
        self._outdated_boot_ms = float("inf")
        """Since when no worker that answers has known a map as new as the newest one here."""

    async def start(self) -> None:
        """Start polling the seeds, and every worker found through them."""
        self._watch_seeds()
        self._following = asyncio.create_task(self._seeds.follow(self._watch_seeds))

    async def stop(self) -> None:
        """Stop polling."""
        tasks = [*self._polls.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._documents.close()

    @property
    def application_id(self) -> str | None:
        """The application served; None while that is unknown."""
        return self.strangers.application_id

    @property
    def ready(self) -> bool:
        """Whether the stores and their holders are known, and a worker answered recently."""
        if not self.metadata.stores or not (self.metadata.map.hosts or any(self._holding.values())):
            return False
        heard_since = boot_ms() - 1000 * max(_UNHEARD_PAUSES * self._pause_s(), _UNHEARD_S)
        return any(worker.live and worker.seen_boot_ms > heard_since for worker in self.workers.values())

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
        hosts -= self.strangers.addresses
        return [self._holder(host, active, (spec.name, partition), load(host)) for host in hosts]

    def unheld(self, spec: StoreSpec) -> int:
        """How many partitions of a store no answering worker reports holding."""
        return sum(
            not any(self.workers[host].well for host in self._holding.get((spec.name, partition), ()))
            for partition in range(spec.partitions)
        )

    def _holder(self, host: HostInfo, active: HostInfo | None, held: tuple[str, int], load: int) -> Holder:
        worker = self.workers.get(host)
        role, lag = "active" if host == active else "standby", UNKNOWN_LAG
        if worker is None:
            # Never heard from: only the map lists it.
            return Holder(host, role, live=True, load=load)
        report = worker.replicas.get(held)
        if report is not None:
            role = report.role
            lag = report.lag if boot_ms() - report.at_boot_ms <= self._lag_report_max_age_ms else UNKNOWN_LAG
        near = self._rack is not None and worker.rack == self._rack
        window = worker.slow_start.window
        return Holder(host, role, lag, worker.live, worker.suspect, load, window, worker.ceiling, near)

    def heard(self, host: HostInfo, held: Held, head: bytes) -> None:
        """Record the state of the answering replica from the header lines of a worker's answer."""
        told, worker = reported_in(head), self.workers.get(host)
        if worker is not None and told is not None and told.role:
            worker.replicas[held] = Report(told.role, told.lag, boot_ms())
            self._holding.setdefault(held, set()).add(host)

    def answered(self, host: HostInfo, *, late: bool = False) -> None:
        """A worker answered a read, perhaps ``late``, when it was no longer awaited: it does not hang."""
        worker = self.workers.get(host)
        if worker is not None:
            worker.silent_reads = 0
            if not late:
                worker.slow_start.answered()

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
            worker.slow_start.lose()
            log.warning("worker %s is down", host)

    def well(self, host: HostInfo) -> bool:
        """Whether a worker answers, as far as is known."""
        worker = self.workers.get(host)
        return worker is not None and worker.well

    def recovered(self, host: HostInfo) -> bool:
        """Whether a worker answers and may have as many reads at once as any other."""
        worker = self.workers.get(host)
        return worker is not None and worker.well and worker.slow_start.window is None

    def refresh(self, host: HostInfo) -> None:
        """Read a worker's status now: it answered as if the map here were out of date."""
        if host in self._wanted:
            self._wanted[host].set()
            self._refreshing.add(host)

    async def refreshed(self, deadline_boot_ms: float) -> None:
        """Wait, though not for long, until the pending immediate polls are done."""
        waited_for = self._refreshing.copy()
        left_ms = min(deadline_boot_ms - boot_ms(), _REFRESH_MS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000):
                while waited_for & self._refreshing:
                    await self._polled.wait()

    def rows(self) -> list[dict[str, Any]]:
        """The replicas of all workers that answer, as they last reported them."""
        well = [worker for worker in self.workers.values() if worker.well]
        return [row for worker in sorted(well, key=lambda worker: worker.host) for row in worker.rows()]

    def _watch_seeds(self) -> None:
        for address in self._seeds.addresses:
            self._watch(address)

    def _watch(self, address: HostInfo) -> None:
        if address not in self._polls:
            self._wanted[address] = asyncio.Event()
            self._polls[address] = asyncio.create_task(self._poll_forever(address))

    async def _poll_forever(self, address: HostInfo) -> None:
        wanted, silences = self._wanted[address], 0
        while True:
            refreshing = wanted.is_set()
            wanted.clear()
            host = None
            silences += 1
            try:
                host = await self._poll(address)
                silences = 0
                self.refused_polls.discard(address)
            except (PollRefused, OSError) as error:
                silences *= isinstance(error, TimeoutError)
                self._lost(address, error)
            except Exception:
                log.exception("the status of %s could not be understood", address)
            self._asked.add(address)
            if refreshing:
                self._refreshing.discard(address)
            self._polled.set()
            self._polled.clear()
            if self._forgotten(address):
                del self._polls[address], self._wanted[address]
                self._refreshing.discard(address)
                self._documents.forget(address)
                self.strangers.forget(address)
                self._found.discard(address)
                self.refused_polls.discard(address)
                return
            pause_s = max(self._pause_s(), min(_PAUSE_AFTER_SILENCE_S * silences, _LONGEST_PAUSE_AFTER_SILENCE_S))
            if host not in (None, address):
                pause_s = max(pause_s, _ALIAS_POLL_INTERVAL_S)
            # There is a pause even for a worker that answers all reads as if the map were out of date.
            await asyncio.sleep(min(_LEAST_PAUSE_S, pause_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s - _LEAST_PAUSE_S):
                    await wanted.wait()

    async def _poll(self, address: HostInfo) -> HostInfo | None:
        """Read the status at an address; returns the address that the worker there uses, None if there is no
        worker."""
        sent_boot_ms = boot_ms()
        body = await self._documents.get(address, "/v1/status")
        with self._pace.reading():
            try:
                status = json.loads(body)
                ours = self._is_ours(address, status)
                host = HostInfo.parse(status["host"]) if ours else None
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if address in self._found:
                    raise
                self.strangers.ignore(address, f"answers with a status that is not a worker's: {error!r}")
                host = None
            if host is None:
                self._drop(address)
                return None
            self._found.add(address)
            worker = self.workers.setdefault(host, WorkerView(host))
            # Without its former state and with another clock, a worker comes back with any incarnation.
            another = (
                host == address
                and status.get("process_id", "") != worker.process_id
                and sent_boot_ms > worker.seen_boot_ms
            )
            worker.seen_boot_ms = boot_ms()
            if not another and not worker.is_newer(status):
                return host
            if not worker.live:
                log.info("worker %s is up", host)
            before = worker.replicas.keys()
            worker.take(body, status, worker.seen_boot_ms)
            self._holds(worker, before)
        self._watch(host)
        await self._learn(address, worker.generation)
        return host

    def _holds(self, worker: WorkerView, before: Set[Held]) -> None:
        now = worker.replicas.keys()
        for held in before - now:
            self._holding[held].discard(worker.host)
        for held in now - before:
            self._holding.setdefault(held, set()).add(worker.host)

    async def _learn(self, address: HostInfo, generation: Generation) -> None:
        """Fetch the map of a worker that has a newer one, unless another's was just fetched."""
        async with self._fetching:
            if self._group_began_anew():
                log.warning("no worker knows %s any more: their group began anew", self.metadata.map.generation)
                self.metadata.map = ClusterMap()
            if generation > self.metadata.map.generation or not self.metadata.stores:
                await self._fetch_metadata(address)

    def _group_began_anew(self) -> bool:
        """Whether for some time every worker that answers has known only older maps than this router.

        As after all of them were restarted on a group that was restored from a backup.
        """
        known = {worker.generation for worker in self.workers.values() if worker.well} - {NO_GENERATION}
        if not known or max(known) >= self.metadata.map.generation:
            self._outdated_boot_ms = float("inf")
            return False
        self._outdated_boot_ms = min(self._outdated_boot_ms, boot_ms())
        return boot_ms() - self._outdated_boot_ms > _BEGAN_ANEW_AFTER_MS

    async def _fetch_metadata(self, address: HostInfo) -> None:
        document, metadata = await asyncio.gather(
            self._documents.get_json(address, "/v1/stores"), self._documents.get_json(address, "/v1/metadata")
        )
        newer = ClusterMap.from_document(metadata)
        if newer.generation < self.metadata.map.generation:
            return
        specs = [StoreSpec.from_document(item) for item in document["stores"]]
        self.fingerprint = document["topology"]
        self._tell_missing_partitioners(specs)
        # Of one that is as it was, the object stays, and with it what was worked out for its reads.
        same = {spec: spec for spec in self.metadata.stores.values()}
        self.metadata.stores = {spec.name: same.get(spec, spec) for spec in specs}
        self.metadata.on_change(newer)
        self._mapped = frozenset(item.host for item in newer.hosts)
        for host in self._mapped:
            self._watch(host)

    def _tell_missing_partitioners(self, specs: list[StoreSpec]) -> None:
        for spec in specs:
            if self.metadata.stores.get(spec.name) == spec:
                continue
            try:
                find_partitioner(spec.partitioner)
            except PartitionerMissing as error:
                log.error("keys of the store %r cannot be read: %s", spec.name, error)

    def _is_ours(self, address: HostInfo, status: dict[str, Any]) -> bool:
        if status.get("tier") != "worker":
            self.strangers.ignore(address, "is not a worker: name workers as --seeds")
            return False
        all_asked = self._seeds.addresses <= self._asked | {address}
        return self.strangers.admit(address, status["application_id"], all_asked=all_asked)

    def _lost(self, address: HostInfo, error: Exception) -> None:
        self._heed_refusal(address, error)
        if address not in self._found and address not in self.refused_polls:
            self.strangers.missed(address, f"does not answer like a worker: {str(error) or 'time-out'}")
        if not isinstance(error, TimeoutError):
            self.unreachable(address)
        elif address in self.workers:
            self.workers[address].suspected()

    def _heed_refusal(self, address: HostInfo, error: Exception) -> None:
        if not isinstance(error, PollRefused) or error.status not in REFUSALS:
            self.refused_polls.discard(address)
        elif address not in self.refused_polls:
            self.refused_polls.add(address)
            _tell_refusal(address, "status polls", error.status)

    def _forgotten(self, address: HostInfo) -> bool:
        """Whether to stop polling an address: it is neither a seed's nor in the map, and long silent."""
        if address in self._seeds.addresses or address in self._mapped:
            return False
        worker = self.workers.get(address)
        if worker is None:
            return True
        if boot_ms() - worker.seen_boot_ms < _FORGET_AFTER_MS:
            return False
        self._drop(address)
        return True

    def _drop(self, host: HostInfo) -> None:
        worker = self.workers.pop(host, None)
        if worker is not None:
            self._holds(WorkerView(host), worker.replicas.keys())
        if self._on_forgotten is not None:
            self._on_forgotten(host)

    def _pause_s(self) -> float:
        """From one poll of an address to the next."""
        return self._pace.pause_s(len(self._polls))


def _tell_refusal(host: HostInfo, what: str, status: int) -> None:
    log.error(
        "the worker %s refuses this router's %s with %d: --worker-token-file must contain a token that it accepts",
        host,
        what,
        status,
    )
