"""Routing one read: candidates in order, failing over for free and hedging within a budget."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.codecs import from_segment
from forebay.errors import DeadlineExceeded, NotReady, Overloaded, Problem
from forebay.lag import Lag, boot_ms, epoch_ms
from forebay.metadata import HostInfo, StreamsMetadataState
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.event_streams import EventStreams
from forebay.rest.parameters import Prefer, ReadParameters
from forebay.settings import RouterSettings
from forebay.topology import StoreSpec
from forebay_router.attempts import Attempt, refusal
from forebay_router.candidates import candidates
from forebay_router.cluster import Cluster
from forebay_router.hedging import HedgeBudget, HedgeDelay
from forebay_router.upstream import UpstreamAnswer, Upstreams

_UNKNOWN_STORE = b'"urn:forebay:problem:unknown-store"'
_FINAL = frozenset({200, 400, 404, 409})
_LEAST_TIME_FOR_AN_ATTEMPT_MS = 1.0


class Router:
    """Answers reads by asking workers."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.seeds, settings.worker_poll_interval_ms, settings.lag_report_max_age_ms)
        self.upstreams = Upstreams()
        self.streams = EventStreams(settings.max_event_streams)
        self.delay = HedgeDelay()
        self.budget = HedgeBudget()
        self.counts: Counter[str] = Counter()
        """Fail-overs, hedges and refused hedges, by name."""
        self.in_flight = 0
        self.draining = False
        self._incarnation = int(epoch_ms())
        self._sequence = itertools.count(1)
        self.choose = random.Random()

    def readiness(self) -> Problem | None:
        """Why the router is not ready."""
        if self.draining:
            return NotReady("The router is shutting down.")
        if not self.cluster.ready:
            return NotReady("No worker and no map of the workers is known yet.", retry_after_s=1)
        return None

    def drain(self) -> None:
        """Turn readiness off and end the streams: load balancers and clients should look elsewhere."""
        self.draining = True
        self.streams.end_all()

    @property
    def metadata(self) -> StreamsMetadataState:
        """Who holds what, by the newest map that a worker told."""
        return self.cluster.metadata

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint; raises ``NotReady`` before any worker was reached."""
        if self.cluster.application_id is None:
            raise NotReady("The router has not reached any worker yet.", retry_after_s=1)
        return self.cluster.application_id, self.cluster.fingerprint

    def replicas_document(self) -> list[dict[str, Any]]:
        """The replicas of all workers that answer, as they last reported them."""
        return self.cluster.rows()

    def status_document(self) -> dict[str, Any]:
        """``GET /v1/status``: this router, and which workers it can reach."""
        generation = self.metadata.map.generation
        return {
            "tier": "router",
            "application_id": self.cluster.application_id,
            "process_id": str(os.getpid()),
            "incarnation": self._incarnation,
            "sequence": next(self._sequence),
            "state": "ready" if self.readiness() is None else "not-ready",
            "generation": {"incarnation": generation.incarnation, "generation": generation.number},
            "workers": [
                {"host": str(host), "live": worker.live, "suspect": worker.suspect}
                for host, worker in sorted(self.cluster.workers.items())
            ],
        }

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``NotReady`` before any worker was reached, or ``UnknownStore``."""
        if not self.cluster.metadata.stores:
            raise NotReady("The router has not reached any worker yet.", retry_after_s=1)
        return self.cluster.spec(store)

    def partition(self, spec: StoreSpec, plain: bytes) -> int:
        """The partition of a key; raises ``NotReady`` where the partitioner is unknown."""
        if spec.stream_partitioner is None:
            raise NotReady(f"The partitioner of the store {spec.name!r} is 'unknown'.", store=spec.name)
        return spec.partition_of(plain)

    def candidates(self, spec: StoreSpec, partition: int, parameters: ReadParameters) -> list[HostInfo]:
        """The workers to ask for a partition, best first."""
        load = {host: self.upstreams.load(host) for host in self.cluster.workers}
        holders = self.cluster.holders(spec, partition, load)
        # Any but the active would refuse.
        prefer: Prefer = "active" if parameters.require_active else parameters.prefer
        return list(candidates(holders, parameters.tolerance_for(spec), prefer, self.choose))

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in flight; raises ``Overloaded`` rather than let it queue."""
        if self.in_flight >= self.settings.max_in_flight:
            raise Overloaded("The router has as many requests in flight as it takes on.", retry_after_s=1)
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def deadline(self, parameters: ReadParameters) -> float:
        """When a request that begins now must be answered, on the boot-time clock."""
        timeout_ms = parameters.timeout_ms or self.settings.request_timeout_ms
        return boot_ms() + min(timeout_ms, self.settings.max_request_timeout_ms)

    async def ask(self, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float) -> Answer:
        """The first final answer of a partition's replicas, or the problem that sums up why there is none."""
        self.budget.earn(boot_ms())
        return await _Read(self, request, parameters, deadline_boot_ms).run()

    async def key(
        self, store: str, segment: bytes, path: bytes, query: bytes, parameters: ReadParameters
    ) -> Answer:
        """Answer a read of one key from the replica that best meets its tolerance; raises ``Problem``.

        ``path`` and ``query`` are the request's own, as received.
        """
        spec = self.spec(store)
        plain = from_segment(spec.key_codec, segment)
        target = path + b"?" + query if query else path
        alone = parameters.wait_ms > 0
        with self.admitted():
            request = ReplicaRequest(spec, self.partition(spec, plain), target, alone=alone)
            return await self.ask(request, parameters, self.deadline(parameters))


@dataclass(frozen=True)
class ReplicaRequest:
    """What to ask of a partition's replicas. ``alone`` keeps it off the connections that others share."""

    spec: StoreSpec
    partition: int
    target: bytes
    body: bytes | None = None
    accept: bytes = b""
    alone: bool = False

    def render(self, host: HostInfo, left_ms: int) -> bytes:
        """The request's bytes for one worker."""
        lines = [
            b"%b %b HTTP/1.1" % (b"GET" if self.body is None else b"POST", self.target),
            b"host: " + str(host).encode(),
            b"forebay-deadline-ms: %d" % left_ms,
        ]
        if self.accept:
            lines.append(b"accept: " + self.accept)
        if self.body is not None:
            lines += [b"content-type: application/json", b"content-length: %d" % len(self.body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + (self.body or b"")


class _Read:
    """One read on its way: who is still to be asked, who is being asked, what came back."""

    def __init__(
        self,
        router: Router,
        request: ReplicaRequest,
        parameters: ReadParameters,
        deadline_boot_ms: float,
    ) -> None:
        self._router = router
        self._request = request
        spec, partition = request.spec, request.partition
        self._held = (spec.name, partition)
        self._alone = request.alone
        self._deadline = deadline_boot_ms
        self._waiting = router.candidates(spec, partition, parameters)
        self._asked: dict[asyncio.Task[UpstreamAnswer], HostInfo] = {}
        self._hedged: set[HostInfo] = set()
        self._attempts: list[Attempt] = []
        self._overloads = 0

    async def run(self) -> Answer:
        """The first final answer, else the problem that sums the attempts up."""
        try:
            while self._waiting or self._asked:
                if not self._asked:
                    self._ask_next()
                done = await self._wait()
                for task in done:
                    final = self._take(task)
                    if final is not None:
                        return Answer(*final)
                if boot_ms() >= self._deadline - _LEAST_TIME_FOR_AN_ATTEMPT_MS:
                    return self._deadline_passed()
                if not done:
                    self._hedge()
            return refusal(*self._held, self._attempts)
        finally:
            for task in self._asked:
                task.cancel()

    async def _wait(self) -> set[asyncio.Task[UpstreamAnswer]]:
        left_ms = self._deadline - boot_ms()
        hedging = self._waiting and not self._alone
        pause_ms = min(left_ms, self._router.delay.delay_ms) if hedging else left_ms
        done, _ = await asyncio.wait(
            self._asked, timeout=max(pause_ms, 0.0) / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        return done

    def _ask_next(self) -> None:
        host = self._waiting.pop(0)
        left_ms = max(1, int(self._deadline - boot_ms()))
        request = self._request.render(host, left_ms)
        self._asked[asyncio.create_task(self._timed(host, request))] = host

    async def _timed(self, host: HostInfo, request: bytes) -> UpstreamAnswer:
        begun = boot_ms()
        answer = await self._router.upstreams.request(host, request, alone=self._alone)
        if not self._alone:
            self._router.delay.observe(boot_ms() - begun)
        return answer

    def _hedge(self) -> None:
        """Nobody answered within the hedge delay: note who is silent, and ask one more if the budget allows."""
        for host in self._asked.values():
            if host not in self._hedged:
                self._hedged.add(host)
                self._router.cluster.silent(host)
        if self._waiting:
            if self._router.budget.spend():
                self._router.counts["hedges"] += 1
                self._ask_next()
            else:
                self._router.counts["hedges_refused"] += 1

    def _take(self, task: asyncio.Task[UpstreamAnswer]) -> UpstreamAnswer | None:
        """Note what came of an attempt; the answer if it is final."""
        host = self._asked.pop(task)
        cluster = self._router.cluster
        error = task.exception()
        if error is not None:
            if not isinstance(error, OSError):
                raise error
            outcome = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
            self._attempts.append(Attempt(host, outcome))
            self._router.counts["failovers"] += 1
            if isinstance(error, TimeoutError):
                cluster.silent(host)
            else:
                cluster.unreachable(host)
            return None
        answer = task.result()
        cluster.answered(host)
        self._report(host, answer)
        if is_final(answer):
            return answer
        self._attempts.append(Attempt(host, "answered", answer))
        if answer.status == 421:
            cluster.refresh()
        if answer.status == 429:
            self._overloads += 1
            if self._overloads > 1:
                return answer
        return None

    def _report(self, host: HostInfo, answer: UpstreamAnswer) -> None:
        headers = _forebay_headers(answer.head)
        if b"role" in headers:
            self._router.cluster.report(host, self._held, headers[b"role"].decode(), _lag_of(headers))

    def _deadline_passed(self) -> Answer:
        attempts = [*self._attempts, *(Attempt(host, "no answer yet") for host in self._asked.values())]
        return problem_answer(
            DeadlineExceeded("No replica answered in time.", attempts=[attempt.document() for attempt in attempts])
        )


def is_final(answer: UpstreamAnswer) -> bool:
    """Whether a worker's answer is the client's, and no other worker need be asked.

    A worker that does not know a store which the router's map has is behind a deployment.
    """
    return answer.status in _FINAL and not (answer.status == 404 and _UNKNOWN_STORE in answer.body)


def _forebay_headers(head: bytes) -> dict[bytes, bytes]:
    headers = {}
    for line in head.split(b"\r\n"):
        if line.startswith(b"forebay-"):
            name, _, value = line.partition(b": ")
            headers[name.removeprefix(b"forebay-")] = value
    return headers


def _lag_of(headers: dict[bytes, bytes]) -> Lag:
    def figure(name: bytes) -> int | None:
        value = headers.get(name)
        return None if value is None else int(value)

    return Lag(figure(b"record-lag"), figure(b"time-lag-ms"), figure(b"age-ms"))
