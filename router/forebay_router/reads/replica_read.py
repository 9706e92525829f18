"""One read of a partition: its candidates asked in order, failing over for free and hedging within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay.clock import boot_ms
from forebay.errors import NotHostedHere
from forebay.lag import Tolerance
from forebay.metadata import HostInfo
from forebay.rest.aging import as_of
from forebay.rest.answers import HttpAnswer
from forebay.rest.parameters import ReadParameters
from forebay.rest.statuses import FINAL
from forebay.topology import StoreSpec
from forebay_router.reads.attempts import Attempt, attempts_head, late, overload, refusal
from forebay_router.reads.named_key import NamedKey
from forebay_router.router import Router
from forebay_router.upstream.connection import Admit, AnsweredForAnother
from forebay_router.upstream.credentials import REFUSALS
from forebay_router.upstream.pool import InFlightPermit
from forebay_router.upstream.timeouts import TIME_TO_READ_S, was_stopped

_UNKNOWN_STORE = b'{"type":"urn:forebay:problem:unknown-store"'
_LEAST_TIME_FOR_AN_ATTEMPT_MS = 1.0
_RECHECK_INTERVAL_MS = 50.0
"""How soon a read notices that a worker it asked has been found to hang."""
_REFRESH_INTERVAL_MS = 250.0
"""How soon a read whose last candidate hangs notices that another worker took over."""
RETRYABLE_SOON = frozenset({412, 503})
"""Refusals of what a replica may be able to answer soon."""
_RESERVED_FOR_RETRY = 0.1
"""Fraction of the time of a read with time bounds."""
_LARGE_ANSWER_MS = 250.0
"""A page or a batch takes longer than the single keys from which the hedge delay is learnt."""


@dataclass(frozen=True)
class ReplicaRequest:
    """A request to a partition's replicas.

    ``dedicated_connection`` keeps it off shared connections. ``multi_partition`` means that it contains keys of
    several partitions with the same candidates. ``unresponsive_host`` is a worker that was asked and has not
    answered yet: it comes last. ``rejected_by`` is one with its answer, which was not final. ``excluded`` workers
    are not asked. If ``no_wait``, workers are told not to wait, whatever the client allows.
    """

    spec: StoreSpec
    partition: int
    target: bytes
    body: bytes | None = None
    accept: bytes = b""
    dedicated_connection: bool = False
    multi_partition: bool = False
    unresponsive_host: HostInfo | None = None
    rejected_by: tuple[HostInfo, HttpAnswer] | None = None
    excluded: frozenset[HostInfo] = frozenset()
    no_wait: bool = False
    page_bytes: int = 0
    """How large the answer may become, if it is a page."""
    named: NamedKey | None = None
    """The key that the answer must be for."""
    admit: Admit | None = None
    """Makes room for a large answer before it is read; only on a dedicated connection."""
    decode: Callable[[bytes], Any] | None = None
    """Reads the body of an answer in the form of ``accept``; raises ``ValueError``."""

    def render(self, host: HostInfo, left_ms: int, credentials: bytes, *, waits: bool = True) -> bytes:
        """The request's bytes for one worker; ``credentials`` is the authorization line, if any."""
        method, target = b"GET" if self.body is None else b"POST", self.target
        if not self.multi_partition:
            target += b"%bpartition=%d" % (b"&" if b"?" in target else b"?", self.partition)
        lines = [
            b"%b %b HTTP/1.1" % (method, target),
            b"host: " + str(host).encode(),
            b"forebay-deadline-ms: %d" % left_ms,
        ]
        if not waits:
            lines.append(b"forebay-wait-ms: 0")
        if self.accept:
            lines.append(b"accept: " + self.accept)
        if self.page_bytes:
            lines.append(b"forebay-page-bytes: %d" % self.page_bytes)
        if self.body is not None:
            lines += [b"content-type: application/json", b"content-length: %d" % len(self.body)]
        return b"\r\n".join(lines) + b"\r\n" + credentials + b"\r\n" + (self.body or b"")

    def read(self, answer: HttpAnswer) -> Any:
        """An answer's body as ``decode`` reads it.

        Raises ``ValueError`` if it is not in the form that was asked for: a worker of another version may not know
        that, and one that lies sends anything.
        """
        if not self.accept or answer.status != 200:
            return None
        if b"content-type: " + self.accept + b"\r\n" not in answer.head:
            raise ValueError("answered in another version's format")
        return None if self.decode is None else self.decode(answer.body)


class TimedAnswer(NamedTuple):
    """One partition's answer, and as of when its lag is right, since it or others may have taken longer."""

    answer: HttpAnswer
    as_of_boot_ms: float
    decoded: Any = None
    """Its body, as the request's ``decode`` reads it."""


async def ask(
    router: Router, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float
) -> TimedAnswer:
    """The first final answer of a partition's replicas, or the problem that sums up why there is none.

    An answer states which other workers were asked; one that is only part of a client's answer does not.
    """
    read = ReplicaRead(router, request, parameters, deadline_boot_ms)
    answer = await read.run()
    if answer is None:
        return TimedAnswer(read.refusal(request.partition), boot_ms())
    if not request.accept:
        answer = answer._replace(head=answer.head + attempts_head(read.other_attempts()))
    return TimedAnswer(answer, read.as_of_boot_ms, read.decoded)


class ReplicaRead:
    """One read in progress: the workers still to ask, those being asked, and the answers so far.

    If the client lets replicas wait for its bounds, each is first asked what it can answer at once. Only if none
    can, all are asked again, to wait.
    """

    def __init__(
        self,
        router: Router,
        request: ReplicaRequest,
        parameters: ReadParameters,
        deadline_boot_ms: float,
    ) -> None:
        router.budget.earn(boot_ms())
        self._router = router
        self._request = request
        spec, partition = request.spec, request.partition
        self._held = (spec.name, partition)
        self._dedicated = request.dedicated_connection
        self._parameters = parameters
        self._wait_ms = parameters.wait_ms
        self._deadline = deadline_boot_ms
        self._generation = router.metadata.map.generation
        self._met = set(request.excluded)
        self._refused: set[HostInfo] = set()
        """Those whose answer was not final."""
        self._waiting: list[HostInfo] = []
        self.attempts: list[Attempt] = []
        """Those without a final answer, so far."""
        self._overloads = 0
        if request.rejected_by is not None:
            self._met.add(request.rejected_by[0])
            self._note_refusal(*request.rejected_by)
        self._refresh_candidates()
        # A stable sort: all others stay in order.
        self._waiting.sort(key=lambda host: host == request.unresponsive_host)
        self._in_flight: dict[asyncio.Task[HttpAnswer], HostInfo] = {}
        self._sent_boot_ms: dict[HostInfo, float] = {}
        self._hedge_due_boot_ms = 0.0
        self._hedge_throttled = False
        self._unresponsive: set[HostInfo] = set()
        self._hedges: set[asyncio.Task[HttpAnswer]] = set()
        self._may_retry_allowing_wait = (
            may_be_elsewhere(parameters) and len(self._waiting) > 1 and request.body is None
        )
        """Whether to ask again, to wait: of a batch's keys each may have to."""
        self._lets_wait = not (self._may_retry_allowing_wait or request.no_wait)
        self.answered_by: HostInfo | None = None
        """The worker that gave the final answer."""
        self.decoded: Any = None
        """Its body, as the request's ``decode`` reads it."""
        self.as_of_boot_ms = 0.0
        """As of when the lag in the final answer is right."""
        self._overloaded = False
        self._late = False

    async def run(self) -> HttpAnswer | None:
        """The first final answer, None if there is none."""
        try:
            while (
                self._waiting
                or self._in_flight
                or self._retry_allowing_wait()
                or await self._refresh_when_exhausted()
            ):
                if not self._in_flight and not self._ask_next():
                    break
                done = await self._wait()
                for task in done:
                    final = self._on_answer(task)
                    if final is not None:
                        self._router.counts["hedges_won"] += task in self._hedges
                        return final
                if boot_ms() >= self._deadline - _LEAST_TIME_FOR_AN_ATTEMPT_MS:
                    self.attempts += [Attempt(host, "no answer yet") for host in self._in_flight.values()]
                    self._late = True
                    break
                if done and self._in_flight:
                    # A fail-over is free, even while others are being asked.
                    self._ask_next()
                elif not done:
                    self._on_timeout()
            return None
        finally:
            for task in self._in_flight:
                task.cancel()

    def other_attempts(self) -> list[Attempt]:
        """The workers that were asked beside the one with the final answer."""
        unanswered = list(self._in_flight.values())
        unresponsive_host = self._request.unresponsive_host
        if (
            unresponsive_host is not None
            and unresponsive_host != self.answered_by
            and unresponsive_host not in unanswered
        ):
            unanswered.append(unresponsive_host)
        known = {attempt.host for attempt in self.attempts}
        others = [Attempt(host, "no answer yet") for host in unanswered if host not in known]
        return [*self.attempts, *others]

    def refusal(self, partition: int) -> HttpAnswer:
        """The problem that sums up why there was no final answer, for a requested partition."""
        store = self._request.spec.name
        if self._late:
            return late(store, partition, self.attempts)
        if self._overloaded:
            return overload(store, partition, self.attempts)
        return refusal(store, partition, self.attempts)

    def _refresh_candidates(self) -> None:
        """Find the workers to ask, best first, except those already encountered."""
        generation = self._router.metadata.map.generation
        if generation != self._generation:
            # A worker may have been assigned since what it refused before.
            self._generation = generation
            self._met -= self._refused
            self._refused.clear()
        found = self._router.candidates(self._request.spec, self._request.partition, self._parameters)
        self._waiting = [host for host in found if host not in self._met]
        self._met.update(self._waiting)

    async def _refresh_when_exhausted(self) -> bool:
        """Whether the router now knows a worker that has not been asked.

        If a worker answered as if the map were out of date, this uses the map being fetched because of it.
        """
        await self._router.discovery.refreshed(self._deadline)
        self._refresh_candidates()
        return bool(self._waiting)

    async def _wait(self) -> set[asyncio.Task[HttpAnswer]]:
        now = boot_ms()
        pause_ms = self._deadline - now
        if self._waiting:
            pause_ms = min(pause_ms, self._hedge_due_boot_ms - now, _RECHECK_INTERVAL_MS)
        else:
            pause_ms = min(pause_ms, _REFRESH_INTERVAL_MS)
        done, _ = await asyncio.wait(
            self._in_flight, timeout=max(pause_ms, 0.0) / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        if not done and was_stopped(boot_ms() - now - pause_ms):
            done, _ = await asyncio.wait(
                self._in_flight, timeout=TIME_TO_READ_S, return_when=asyncio.FIRST_COMPLETED
            )
        return done

    def _hedge_delay_ms(self) -> float:
        """How long those asked may be silent, including the time they were told to wait."""
        delay_ms = self._router.delay.delay_ms
        wait_ms = self._wait_ms if self._lets_wait else 0
        return wait_ms + (max(delay_ms, _LARGE_ANSWER_MS) if self._dedicated else delay_ms)

    def _ask_next(self) -> bool:
        """Ask the best remaining candidate that is not full; returns whether there was one."""
        router = self._router
        while self._waiting:
            host = self._waiting.pop(0)
            if router.full(host):
                # A worker that hangs will not recover by being asked again.
                self._overloaded |= router.cluster.is_healthy(host)
                self.attempts.append(Attempt(host, "full"))
                continue
            left_ms = max(1, int(self._deadline - boot_ms()))
            request = self._request.render(host, left_ms, router.credentials(), waits=self._lets_wait)
            self._in_flight[self._ask(host, request)] = host
            now = boot_ms()
            self._sent_boot_ms[host] = now
            # The next worker must have time to answer too.
            self._hedge_due_boot_ms = now + min(self._hedge_delay_ms(), (self._deadline - now) / 2)
            return True
        return False

    def _retry_allowing_wait(self) -> bool:
        """Ask all that refused what they may be able to answer soon, to wait; returns whether there were any."""
        if not self._may_retry_allowing_wait:
            return False
        self._may_retry_allowing_wait, self._lets_wait = False, True
        waiting = [
            attempt for attempt in self.attempts if attempt.answer and attempt.answer.status in RETRYABLE_SOON
        ]
        self.attempts = [attempt for attempt in self.attempts if attempt not in waiting]
        self._waiting = [attempt.host for attempt in waiting]
        self._refused.difference_update(self._waiting)
        while self._ask_next():
            pass
        return bool(self._in_flight)

    def _ask(self, host: HostInfo, request: bytes) -> asyncio.Task[HttpAnswer]:
        permit = self._router.pool[host].permit()
        task = asyncio.create_task(self._timed(host, request, permit))
        # It may end before it begins.
        task.add_done_callback(lambda _: permit.release())
        return task

    async def _timed(self, host: HostInfo, request: bytes, permit: InFlightPermit) -> HttpAnswer:
        begun = boot_ms()
        named = None if self._request.named is None else self._request.named.is_in
        upstream = self._router.pool[host]
        answer = await upstream.request(
            request, dedicated_connection=self._dedicated, permit=permit, named=named, admit=self._request.admit
        )
        if not self._dedicated:
            self._router.delay.observe(boot_ms() - begun)
        return answer

    def _on_timeout(self) -> None:
        """No answer yet: record silent workers, and ask one more if those asked hang, or as a hedge."""
        cluster, now = self._router.cluster, boot_ms()
        if not self._waiting and self._retry_allowing_wait():
            return
        if self._waiting:
            for host in self._in_flight.values():
                if host not in self._unresponsive and now - self._sent_boot_ms[host] >= self._hedge_delay_ms():
                    self._unresponsive.add(host)
                    cluster.on_slow_read(host)
        if not any(cluster.is_healthy(host) for host in self._in_flight.values()):
            if not self._waiting:
                # Another worker may have taken over meanwhile.
                self._refresh_candidates()
            # This is not a hedge: workers that hang are not expected to answer.
            self._ask_next()
        elif self._waiting and now >= self._hedge_due_boot_ms:
            self._hedge()

    def _hedge(self) -> None:
        """Ask one more if the budget allows."""
        if self._router.budget.spend():
            in_flight_before = set(self._in_flight)
            self._router.counts["hedges"] += self._ask_next()
            self._hedges |= self._in_flight.keys() - in_flight_before
        else:
            self._router.counts["hedges_throttled"] += not self._hedge_throttled
            self._hedge_throttled = True
            self._hedge_due_boot_ms = boot_ms() + _RECHECK_INTERVAL_MS

    def _on_answer(self, task: asyncio.Task[HttpAnswer]) -> HttpAnswer | None:
        """Record an attempt's outcome; returns the answer if it is final."""
        host = self._in_flight.pop(task)
        cluster = self._router.cluster
        error = task.exception()
        if error is not None:
            if not isinstance(error, OSError):
                raise error
            outcome = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
            self.attempts.append(Attempt(host, outcome))
            self._router.counts["failovers"] += 1
            if isinstance(error, TimeoutError):
                cluster.on_slow_read(host)
            elif isinstance(error, AnsweredForAnother):
                cluster.on_mismatched_answer(host)
            else:
                cluster.on_unreachable(host)
            return None
        answer = task.result()
        cluster.on_answer(host)
        cluster.on_answer_headers(host, self._held, answer.head)
        try:
            decoded = self._request.read(answer)
        except ValueError as error:
            self.attempts.append(Attempt(host, str(error)))
            self._refused.add(host)
            return None
        if is_final(answer):
            now = boot_ms()
            if now > self._deadline:
                # It waited to be received, because this process was stopped for example.
                self.attempts.append(Attempt(host, "timeout"))
                return None
            self.answered_by, self.decoded = host, decoded
            self.as_of_boot_ms = as_of(answer, self._sent_boot_ms[host], now)
            return answer
        self._note_refusal(host, answer)
        return answer if answer.status == 429 and self._overloads > 1 else None

    def _note_refusal(self, host: HostInfo, answer: HttpAnswer) -> None:
        self.attempts.append(Attempt(host, "answered", answer))
        self._refused.add(host)
        if answer.status in REFUSALS:
            self._router.cluster.on_auth_rejected(host, answer.status)
        if answer.status == NotHostedHere.status:
            self._router.discovery.refresh(host)
        self._overloads += answer.status == 429


def may_be_elsewhere(parameters: ReadParameters) -> bool:
    """Whether a replica that would have to wait may not be the only one to ask."""
    return parameters.wait_ms > 0 and not parameters.require_active


def time_reserved_for_retry_ms(tolerance: Tolerance, time_ms: float) -> float:
    """How much of a read's time is reserved for re-reading answers that left their bounds while waiting."""
    in_time = tolerance.max_time_lag_ms is not None or tolerance.max_age_ms is not None
    return _RESERVED_FOR_RETRY * time_ms if in_time else 0.0


def is_final(answer: HttpAnswer) -> bool:
    """Whether a worker's answer goes to the client, without asking another worker.

    A worker that does not know a store in the router's map is behind in a deployment.
    """
    return answer.status in FINAL and not (answer.status == 404 and answer.body.startswith(_UNKNOWN_STORE))
