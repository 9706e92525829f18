"""The router's fast path: a recognised read goes to its best candidate over a shared connection, at once.

If it gets no final answer there (a refusal, a lost connection, a worker slower than the hedge delay), it continues
as an ordinary read, which asks the others; slots keep the client's order of answers. A batch is an ordinary read
from the beginning, only without the framework.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forebay.clock import boot_ms
from forebay.codecs import from_segment
from forebay.errors import InternalError, Problem
from forebay.fast_path import FastPathProtocol, KeyHandler, PendingResponse, RecognisedBatch, RequestTemplate
from forebay.metadata import HostInfo
from forebay.rest.aging import IN_TRANSIT_MS, answer_by_now
from forebay.rest.answers import HttpAnswer, problem_answer
from forebay.rest.limits import Peer
from forebay.rest.routes import BATCH_ROUTE, READ_ROUTES
from forebay_router.metrics import RouterMetrics
from forebay_router.reads.attempts import Attempt, late
from forebay_router.reads.batches import batch_get
from forebay_router.reads.candidate_cache import CandidateCache, ReadTarget, RoutedKeyRead
from forebay_router.reads.keys import read_admitted_key
from forebay_router.reads.named_key import NamedKey
from forebay_router.reads.replica_read import is_final
from forebay_router.router import Router
from forebay_router.upstream.credentials import REFUSALS
from forebay_router.upstream.timeouts import was_stopped

log = logging.getLogger(__name__)

_PATH = READ_ROUTES[0].path
_TICK_S = 0.005
_RECHECK_INTERVAL_MS = 50.0


@dataclass(slots=True, eq=False)
class _Outstanding:
    """A read on its way to its first candidate."""

    prepared: RoutedKeyRead
    segment: bytes
    partition: int
    named: NamedKey
    pending: PendingResponse
    target: ReadTarget
    sent_boot_ms: float
    peer: Peer
    done: bool = False
    """Answered, or continued as an ordinary read."""
    slow_path: asyncio.Task[None] | None = None
    hedged: bool = False
    hedge_throttled: bool = False
    """No hedge was allowed when one was due."""


class RouterFastPath:
    """Sends single-key reads to their best candidate, coalesced and pipelined; starts batches."""

    def __init__(self, router: Router, metrics: RouterMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self._answer_ms = metrics.answer_ms[_PATH]
        self._candidates = CandidateCache(router)
        # Counted without a call: a router's part of a read is some seven microseconds.
        self._requests = router.limits.requests
        self._by_request = router.limits.peers.by_request
        self._outstanding: deque[_Outstanding] = deque()
        self._ticking = False
        self._sent_since_tick = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def key(self, template: RequestTemplate) -> KeyHandler:
        """Fills a slot later, or leaves it to the route."""
        return partial(self._ask, template)

    def _ask(
        self, template: RequestTemplate, segment: bytes, protocol: FastPathProtocol
    ) -> HttpAnswer | PendingResponse | None:
        router = self._router
        try:
            prepared = self._candidates.key_read(template)
            if prepared is None:
                return None
            partition, named = prepared.key_of(segment)
        except Problem:
            return None
        peer = protocol.peer(template) if self._by_request else protocol.address
        requests = self._requests
        if requests.used >= requests.open and (overload := requests.refusal(peer)) is not None:
            self._metrics.count(_PATH, overload.status, prepared.spec.name, overload.name)
            self._answer_ms[prepared.spec.name].observe(0)
            return problem_answer(overload)
        now = boot_ms()
        target = self._candidates.choose(prepared, partition, now)
        if target is None:
            return None
        pending = protocol.pending(template)
        read = _Outstanding(prepared, segment, partition, named, pending, target, now, peer)
        # Of the bytes received, only key and query are passed on, both checked.
        sent = b"".join((prepared.before, segment, prepared.between, target.rest))
        most_load = router.settings.max_in_flight_per_worker
        if not target.upstream.send(sent, partial(self._answered, read), most_load):
            return None
        requests.used += 1
        peer.requests += 1
        self._sent_since_tick += 1
        self._outstanding.append(read)
        if not self._ticking:
            self._tick()
        return pending

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> PendingResponse:
        """A slot that will be filled."""
        pending = protocol.pending(request.template)
        pending.on_abandoned = self._begin(self._batch(request, pending, protocol.peer(request.template))).cancel
        return pending

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _batch(self, request: RecognisedBatch, pending: PendingResponse, peer: Peer) -> None:
        template, router = request.template, self._router
        with router.limits.memory_of(peer) as memory:
            try:
                memory.grow(len(request.body))
                answer = await batch_get(
                    router, self._metrics, template.store, template.query, request.body, peer, memory
                )
            except Problem as problem:
                answer = problem_answer(problem)
                self._metrics.count(BATCH_ROUTE.path, answer.status, template.store, problem.name)
            except Exception:
                answer = _failed("a batch failed")
                self._metrics.count(BATCH_ROUTE.path, answer.status, template.store, InternalError.name)
            pending.fill(answer)

    def _answered(self, read: _Outstanding, answer: HttpAnswer | None) -> bool:
        """Handle a worker's answer, None if the connection ended first: that alone does not mean it is down.

        Returns whether the answer was for the key that was asked.
        """
        router = self._router
        named = read.named
        in_step = answer is None or answer.body.startswith(named.document) or named.is_in(answer)
        if not in_step:
            router.cluster.on_mismatched_answer(read.target.worker.host)
            answer = None
        took_ms = boot_ms() - read.sent_boot_ms
        if answer is not None:
            target = read.target
            target.worker.on_answer(late=read.done)
            router.delay.observe(took_ms)
            if not target.reported:
                target.reported = True
                router.cluster.on_answer_headers(
                    target.worker.host, (read.prepared.spec.name, read.partition), answer.head
                )
            if took_ms > IN_TRANSIT_MS:
                answer = self._by_now(read, answer, took_ms)
        if read.done:
            if answer is not None and is_final(answer):
                self._answered_after_all(read, answer, took_ms)
        elif answer is None or not is_final(answer):
            rejected_by = None
            if answer is not None and answer.status not in REFUSALS:
                # One that refused the router's token is asked again: it may have another since.
                rejected_by = (read.target.worker.host, answer)
            self._continue_on_slow_path(read, rejected_by=rejected_by)
        else:
            read.done = True
            self._requests.used -= 1
            read.peer.requests -= 1
            self._fill(read, answer, took_ms)
        return in_step

    def _by_now(self, read: _Outstanding, answer: HttpAnswer, took_ms: float) -> HttpAnswer | None:
        """An answer that may have waited to be received, because this process was stopped for example: all that is
        known is that it is newer than the request. None if the read's time is over."""
        prepared = read.prepared
        if took_ms > self._router.timeout_ms(prepared.parameters):
            return None
        store, tolerance = prepared.bounds
        return answer_by_now(answer, took_ms, tolerance, store, "it had arrived")

    def _answered_after_all(self, read: _Outstanding, answer: HttpAnswer, took_ms: float) -> None:
        """The first worker was faster than those asked since."""
        if read.slow_path is not None and not read.slow_path.done():
            read.slow_path.cancel()
            self._fill(read, answer, took_ms)

    def _fill(self, read: _Outstanding, answer: HttpAnswer, took_ms: float) -> None:
        prepared = read.prepared
        self._answer_ms[prepared.spec.name].observe(took_ms)
        self._metrics.count_answer(_PATH, prepared.spec.name, answer)
        read.pending.fill(answer, prepared.bounds)

    def _continue_on_slow_path(
        self,
        read: _Outstanding,
        *,
        unresponsive_host: HostInfo | None = None,
        rejected_by: tuple[HostInfo, HttpAnswer] | None = None,
    ) -> None:
        read.done = True
        read.slow_path = self._begin(self._slow_path(read, unresponsive_host, rejected_by))
        # It keeps its place among those in flight: who was admitted is not refused for others that came later.
        read.slow_path.add_done_callback(partial(self._leave, read.peer))
        read.pending.on_abandoned = read.slow_path.cancel

    def _leave(self, peer: Peer, _: asyncio.Task[None]) -> None:
        self._router.limits.requests.count(peer, -1)

    async def _slow_path(
        self,
        read: _Outstanding,
        unresponsive_host: HostInfo | None,
        rejected_by: tuple[HostInfo, HttpAnswer] | None,
    ) -> None:
        prepared = read.prepared
        path = b"/v1/stores/%b/keys/%b" % (prepared.spec.name_bytes, read.segment)
        try:
            spec = self._router.spec(prepared.spec.name)
            plain = from_segment(spec.key_codec, read.segment)
            left_ms = int(self._left_ms(read))
            if left_ms > 0:
                parameters = replace(prepared.parameters, timeout_ms=left_ms)
                answer = await read_admitted_key(
                    self._router, spec, plain, path, prepared.query, parameters, unresponsive_host, rejected_by
                )
                self._router.counts["hedges_won"] += read.hedged and is_final(answer)
            else:
                answer = late(spec.name, read.partition, [Attempt(read.target.worker.host, "no answer yet")])
        except Problem as problem:
            answer = problem_answer(problem)
        except Exception:
            answer = _failed("a read that had left the fast path failed")
        self._fill(read, answer, boot_ms() - read.sent_boot_ms)

    def _tick(self) -> None:
        self._ticking = True
        asyncio.get_running_loop().call_later(_TICK_S, self._continue_slow_reads, boot_ms())

    def _continue_slow_reads(self, ticked_boot_ms: float) -> None:
        """Let reads that waited past the hedge delay continue as ordinary ones, within the budget of hedges."""
        self._ticking = False
        router, now = self._router, boot_ms()
        if was_stopped(now - ticked_boot_ms):
            # What came meanwhile is read first.
            self._tick()
            return
        router.budget.earn(now, self._sent_since_tick)
        self._sent_since_tick = 0
        late = now - router.delay.delay_ms
        while self._outstanding and (self._outstanding[0].done or self._outstanding[0].sent_boot_ms < late):
            read = self._outstanding.popleft()
            if read.done:
                continue
            router.cluster.on_slow_read(read.target.worker.host)
            self._hedge(read)
        if self._outstanding:
            self._tick()

    def _hedge(self, read: _Outstanding) -> None:
        """Ask another replica, if there is one and the budget allows; otherwise keep waiting, and check again."""
        router = self._router
        if not self._has_another(read):
            self._wait(read)
        elif router.budget.spend():
            router.counts["hedges"] += 1
            read.hedged = True
            self._continue_on_slow_path(read, unresponsive_host=read.target.worker.host)
        elif router.cluster.is_healthy(read.target.worker.host):
            router.counts["hedges_throttled"] += not read.hedge_throttled
            read.hedge_throttled = True
            self._wait(read)
        else:
            # The worker hangs: this is no hedge.
            self._continue_on_slow_path(read, unresponsive_host=read.target.worker.host)

    def _has_another(self, read: _Outstanding) -> bool:
        prepared = read.prepared
        spec = self._router.cluster.metadata.stores.get(prepared.spec.name)
        if spec is None:
            return False
        hosts = self._router.candidates(spec, read.partition, prepared.parameters)
        return any(host != read.target.worker.host for host in hosts)

    def _wait(self, read: _Outstanding) -> None:
        pause_ms = max(0.0, min(self._left_ms(read), _RECHECK_INTERVAL_MS))
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._recheck, read)

    def _recheck(self, read: _Outstanding) -> None:
        if read.done:
            return
        if self._left_ms(read) <= 0:
            self._continue_on_slow_path(read, unresponsive_host=read.target.worker.host)
        else:
            self._hedge(read)

    def _left_ms(self, read: _Outstanding) -> float:
        return self._router.timeout_ms(read.prepared.parameters) - (boot_ms() - read.sent_boot_ms)


def _failed(what: str) -> HttpAnswer:
    """The client's answer then: an empty slot would hold back every later answer of the connection."""
    log.exception(what)
    return problem_answer(InternalError("The service failed; its log says why."))
