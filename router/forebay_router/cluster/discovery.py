"""Finds the workers, from seeds on, and keeps the picture of them up to date by polling, at a bounded cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from forebay.clock import boot_ms
from forebay.errors import NotReady
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import Generation, HostInfo
from forebay.timeouts import running_timeout
from forebay.wire.answer_schemas.members import read_json
from forebay.wire.answer_schemas.status import IDENTITY_PATH, Identity, StatusReport
from forebay.wire.answer_schemas.stores import cluster_map_of
from forebay.wire.answers import HttpAnswer
from forebay_router.cluster.cluster import Cluster
from forebay_router.cluster.seeds import Seeds
from forebay_router.upstream.connection import UpstreamClosed
from forebay_router.upstream.opener import REFUSALS, NotAdmitted, Opener, log_auth_rejection
from forebay_router.upstream.pool import ConnectionPool

log = logging.getLogger(__name__)
_FORGET_AFTER_MS = 300_000.0
_MIN_PAUSE_S = 0.02
_PAUSE_AFTER_SILENCE_S, _LONGEST_PAUSE_AFTER_SILENCE_S = 0.5, 5.0
"""A poll without an answer occupies one of a few slots for a second, so silent workers are polled less and
less."""
_UNHEARD_PAUSES, _UNHEARD_S = 3, 5.0
"""This many polls and seconds must pass without any answer before the router considers itself cut off."""
_REFRESH_MS = 250.0
"""How long a read waits at most for a newer map: longer would not help with a worker that hangs."""
_ALIAS_POLL_INTERVAL_S = 5.0
"""Pause between polls of an address whose worker uses another one, which is polled as often as any."""
_TIMEOUT_S = 1.0
_MAX_AT_ONCE = 32
_SHARE = 0.03
"""Share of a core for all polls together: two workers with 100 replicas each are polled at the configured
interval."""
_EXCHANGE_S = 0.0002
"""Time for sending a poll and receiving its answer, without parsing the document."""
_WEIGHT = 0.1


def read_status(body: bytes) -> tuple[HostInfo, StatusReport]:
    """A worker's address and its status; raises ``ValueError``, naming what is wrong, unless it is whole.

    One bad row would otherwise fail every read that it concerns, even where an honest replica exists.
    """
    status = read_json(body, StatusReport)
    return HostInfo.parse(status.host), status


class PollRefused(Exception):
    """A worker answered a poll with a status other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status = status


class PollSchedule:
    """How long to wait from one poll of an address to the next, so that all together stay within their share."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._reading_s = 0.0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Measure the cost of processing one answer."""
        begun_s = time.thread_time()
        try:
            yield
        finally:
            self.spent(time.thread_time() - begun_s)

    def spent(self, reading_s: float) -> None:
        """Record the cost of one answer; the mean over all workers follows slowly."""
        self._reading_s += (reading_s - self._reading_s) * _WEIGHT

    def pause_s(self, addresses: int) -> float:
        """The wait with this many addresses to poll, at least the configured interval."""
        return max(self._interval_s, (self._reading_s + _EXCHANGE_S) * addresses / _SHARE)


class Discovery:
    """Polls the seeds and every worker found through them, each in a task of its own.

    ``on_forgotten`` is called with the address of each worker that is given up.
    """

    def __init__(
        self,
        cluster: Cluster,
        seeds: Seeds,
        poll_interval_ms: int,
        credentials: Callable[[], bytes],
        on_forgotten: Callable[[HostInfo], None] | None = None,
        opener: Opener | None = None,
    ) -> None:
        self._cluster = cluster
        self._seeds = seeds
        self._on_forgotten = on_forgotten
        self._credentials = credentials
        self._pool = ConnectionPool(opener)
        """Connections that no read shares."""
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._schedule = PollSchedule(poll_interval_ms / 1000)
        self._following: asyncio.Task[None] | None = None
        self.auth_rejected_by: set[HostInfo] = set()
        """Addresses where a worker refused the router's token, or its absence, when last polled."""
        self._mapped: frozenset[HostInfo] = frozenset()
        """The workers that the newest map names."""
        self._polled_addresses: set[HostInfo] = set()
        """Addresses that were polled, whatever the outcome."""
        self._worker_addresses: set[HostInfo] = set()
        """Those at which a worker of the application was, whatever address it uses."""
        self._polls: dict[HostInfo, asyncio.Task[None]] = {}
        self._poll_now: dict[HostInfo, asyncio.Event] = {}
        """By address: set if the next poll should not wait."""
        self._refreshing: set[HostInfo] = set()
        """Addresses whose next poll does not wait, until it is done."""
        self._polled = asyncio.Event()
        """Set for a moment after each poll."""
        self._fetching = asyncio.Lock()

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
        self._pool.close()

    @property
    def ready(self) -> bool:
        """Whether the stores and their holders are known, and a worker answered recently."""
        if not self._cluster.has_holders:
            return False
        answered_since = boot_ms() - 1000 * max(_UNHEARD_PAUSES * self._pause_s(), _UNHEARD_S)
        return any(
            worker.live and worker.seen_boot_ms > answered_since for worker in self._cluster.workers.values()
        )

    async def readied(self, within_s: float) -> None:
        """Wait, though not for long, until the stores and their holders are known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.ready:
                    await self._polled.wait()

    def refresh(self, host: HostInfo) -> None:
        """Read a worker's status now: it answered as if the map here were out of date."""
        if host in self._poll_now:
            self._poll_now[host].set()
            self._refreshing.add(host)

    async def refreshed(self, deadline_boot_ms: float) -> None:
        """Wait, though not for long, until the pending immediate polls are done."""
        waited_for = self._refreshing.copy()
        left_ms = min(deadline_boot_ms - boot_ms(), _REFRESH_MS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000):
                while waited_for & self._refreshing:
                    await self._polled.wait()

    def admit(self, address: HostInfo, answer: HttpAnswer) -> None:
        """Decide by what an address answers to the request for its identity; raises ``NotAdmitted``."""
        if answer.status == NotReady.status:
            raise ConnectionRefusedError("it is starting")
        if answer.status != 200:
            raise NotAdmitted(
                f"answers {answer.status} at {IDENTITY_PATH}: it is not a worker, or one of a version before this "
                "router's; upgrade the workers first"
            )
        try:
            identity = Identity.parse(answer.body)
        except ValueError as error:
            raise NotAdmitted(f"answers with something other than an identity: {error}") from None
        reason = self._cluster.mismatch(address, identity)
        if reason is not None:
            raise NotAdmitted(reason)
        if not self._is_ours(address, identity.tier, identity.application_id or ""):
            raise NotAdmitted(None)

    def _watch_seeds(self) -> None:
        for address in self._seeds.addresses:
            self._watch(address)

    def _watch(self, address: HostInfo) -> None:
        if address not in self._polls:
            self._poll_now[address] = asyncio.Event()
            self._polls[address] = asyncio.create_task(self._poll_forever(address))

    async def _poll_forever(self, address: HostInfo) -> None:
        poll_now, silences = self._poll_now[address], 0
        while True:
            refreshing = poll_now.is_set()
            poll_now.clear()
            host = None
            silences += 1
            try:
                host = await self._poll(address)
                silences = 0
                self.auth_rejected_by.discard(address)
            except (PollRefused, OSError) as error:
                silences *= isinstance(error, TimeoutError)
                self._lost(address, error)
            except Exception:
                log.exception("the status of %s could not be understood", address)
            self._polled_addresses.add(address)
            if refreshing:
                self._refreshing.discard(address)
            self._polled.set()
            self._polled.clear()
            if self._is_over(address):
                if address not in self._seeds.addresses:
                    self._end(address)
                    return
                self._forget_worker(address)
            pause_s = max(self._pause_s(), min(_PAUSE_AFTER_SILENCE_S * silences, _LONGEST_PAUSE_AFTER_SILENCE_S))
            if host not in (None, address):
                pause_s = max(pause_s, _ALIAS_POLL_INTERVAL_S)
            # There is a pause even for a worker that answers all reads as if the map were out of date.
            await asyncio.sleep(min(_MIN_PAUSE_S, pause_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s - _MIN_PAUSE_S):
                    await poll_now.wait()

    async def _poll(self, address: HostInfo) -> HostInfo | None:
        """Read the status at an address; returns the address that the worker there uses, None if there is no
        worker."""
        polled_boot_ms = boot_ms()
        body = await self._document(address, "/v1/status")
        with self._schedule.reading():
            try:
                host, status = read_status(body)
            except ValueError as error:
                reason = f"answers with a status that is not a worker's: {error}"
                self._cluster.rejected_addresses.ignore(address, reason)
                self._drop(address)
                return None
            if not self._is_ours(address, status.tier, status.application_id):
                self._drop(address)
                return None
            self._worker_addresses.add(address)
            if not self._cluster.take(address, body, host, status, polled_boot_ms):
                return host
        self._watch(host)
        if host == address:
            # Behind another address may be several workers, whose stores and map would not fit each other.
            await self._learn(address, self._cluster.workers[host].generation)
        return host

    async def _document(self, address: HostInfo, path: str) -> bytes:
        """What a worker has at a path; raises ``PollRefused``, and ``OSError`` if there is no answer in time."""
        request = b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
            path.encode(),
            str(address).encode(),
            self._credentials(),
        )
        async with self._turns, running_timeout(_TIMEOUT_S):
            answer = await self._pool[address].request(request, dedicated_connection=True)
        if answer.status != 200:
            raise PollRefused(answer.status)
        return answer.body

    async def _learn(self, address: HostInfo, generation: Generation) -> None:
        """Fetch the map of a worker that has a newer one, unless another's was just fetched."""
        known = self._cluster.metadata
        async with self._fetching:
            self._cluster.drop_map_of_former_group(generation)
            if generation > known.map.generation or not known.stores:
                await self._fetch_metadata(address)

    async def _fetch_metadata(self, address: HostInfo) -> None:
        documents = (self._document(address, path) for path in ("/v1/stores", "/v1/metadata"))
        stores, metadata = map(json.loads, await asyncio.gather(*documents))
        specs = [StoreSpec.from_document(item) for item in stores["stores"]]
        newer = cluster_map_of(metadata)
        if self._cluster.adopt(stores["topology"], specs, newer):
            self._mapped = frozenset(item.host for item in newer.hosts)
            for host in self._mapped:
                self._watch(host)

    def _is_ours(self, address: HostInfo, tier: Any, application_id: str) -> bool:
        rejected_addresses = self._cluster.rejected_addresses
        if tier != "worker":
            rejected_addresses.ignore(address, "is not a worker: name workers as --seeds")
            return False
        # Only as long as there is an application to choose: there may be a thousand of them.
        all_seeds_polled = (
            rejected_addresses.application_id is None
            and self._seeds.addresses <= self._polled_addresses | {address}
        )
        return rejected_addresses.admit(address, application_id, all_seeds_polled=all_seeds_polled)

    def _lost(self, address: HostInfo, error: Exception) -> None:
        if isinstance(error, NotAdmitted):
            if error.reason is not None:
                self._cluster.rejected_addresses.ignore(address, error.reason)
            self.auth_rejected_by.discard(address)
            self._drop(address)
            return
        self._note_auth_rejection(address, error)
        unknown = address not in self._worker_addresses and address not in self.auth_rejected_by
        if unknown or isinstance(error, ssl.SSLCertVerificationError):
            self._cluster.rejected_addresses.not_found(
                address, f"does not answer like a worker: {_explained(error)}"
            )
        if isinstance(error, TimeoutError):
            self._cluster.on_poll_timeout(address)
        else:
            self._cluster.on_unreachable(address)

    def _note_auth_rejection(self, address: HostInfo, error: Exception) -> None:
        if not isinstance(error, PollRefused) or error.status not in REFUSALS:
            self.auth_rejected_by.discard(address)
        elif address not in self.auth_rejected_by:
            self.auth_rejected_by.add(address)
            log_auth_rejection(address, "status polls", error.status)

    def _is_over(self, address: HostInfo) -> bool:
        """Whether no worker is expected at an address: it is not in the map, and has long been silent."""
        if address in self._mapped:
            return False
        worker = self._cluster.workers.get(address)
        return worker is None or boot_ms() - worker.seen_boot_ms >= _FORGET_AFTER_MS

    def _forget_worker(self, seed: HostInfo) -> None:
        """A seed is polled on, as if no worker had ever been there."""
        if seed in self._worker_addresses:
            self._worker_addresses.discard(seed)
            self._drop(seed)

    def _end(self, address: HostInfo) -> None:
        self._drop(address)
        del self._polls[address], self._poll_now[address]
        self._refreshing.discard(address)
        self._pool.forget(address)
        self._cluster.rejected_addresses.forget(address)
        self._polled_addresses.discard(address)
        self._worker_addresses.discard(address)
        self.auth_rejected_by.discard(address)

    def _drop(self, host: HostInfo) -> None:
        self._cluster.forget(host)
        if self._on_forgotten is not None:
            self._on_forgotten(host)

    def _pause_s(self) -> float:
        """From one poll of an address to the next."""
        return self._schedule.pause_s(len(self._polls))


def _explained(error: Exception) -> str:
    """Why there was no answer, with the remedy if one side may speak TLS and the other not."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS fails, which --worker-ca-file asks for; it may speak plain HTTP: {error}"
        case UpstreamClosed():
            return f"{error}; if it speaks HTTPS, this router needs --worker-ca-file"
    return str(error) or "time-out"
