"""The router's fast path: a recognised read goes to its best candidate over a shared connection, at once.

If it gets no final answer there (a refusal, a lost connection, a worker slower than the hedge delay), the policy
of reads decides. As soon as that asks another worker, the read continues as an ordinary one, in which its first
request is one of several; slots keep the client's order of answers. A batch is an ordinary read from the
beginning, only without the framework.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay.clock import boot_ms
from forebay.errors import InternalError, Problem
from forebay.request_trace import RequestTrace, context_of
from forebay.routing.failover_policy import Action, NoteSlow, NoteThrottled, ReadPolicy, Wait
from forebay.streams_metadata import HostInfo
from forebay.wire.answer_aging import IN_TRANSIT_MS, answer_by_now
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay_router.metrics import RouterMetrics
from forebay_router.reads.batches import batch_get
from forebay_router.reads.candidate_cache import CandidateCache, ReadTarget, RoutedKeyRead
from forebay_router.reads.refusals import is_final
from forebay_router.reads.replica_read import go_on, note
from forebay_router.reads.replica_request import (
    FirstRequest,
    NamedKey,
    PartitionReplicas,
    ReplicaRequest,
    answered_by_now,
)
from forebay_router.router import Router
from forebay_router.upstream.connection import TIME_TO_READ_S, AnsweredForAnother, UpstreamClosed, was_stopped
from forebay_web.fast_path.pending import PendingResponse
from forebay_web.fast_path.protocol import FastPathProtocol, KeyHandler
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.large_answers import LargeAnswer
from forebay_web.limits import Peer
from forebay_web.routes import BATCH_ROUTE, READ_ROUTES

log = logging.getLogger(__name__)

_PATH = READ_ROUTES[0].path
_TICK_S = 0.005


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
    first: FirstRequest | None = None
    """What it is in the ordinary read that it continues as."""
    policy: ReadPolicy[HostInfo] | None = None
    """Decides what happens once it waits for longer than the hedge delay."""


class RouterFastPath:
    """Sends single-key reads to their best candidate, coalesced and pipelined; starts batches."""

    def __init__(self, router: Router, metrics: RouterMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self._answer_ms = metrics.answer_ms[_PATH]
        self._candidates = CandidateCache(router)
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
        if pending.trace is not None:
            sent = pending.trace.passed_on(sent)
        max_load = router.settings.max_in_flight_per_worker
        if not target.upstream.send(sent, partial(self._answered, read), max_load):
            return None
        requests.count(peer)
        self._sent_since_tick += 1
        self._outstanding.append(read)
        if not self._ticking:
            self._tick()
        return pending

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> PendingResponse:
        """A slot that will be filled."""
        pending = protocol.pending(request.template)
        pending.waits = b"wait_ms=" in request.template.query
        batch = self._batch(request, protocol, pending, protocol.peer(request.template))
        pending.on_abandoned = self._begin(batch, pending.trace).cancel
        return pending

    def _begin(self, work: Coroutine[Any, Any, None], trace: RequestTrace | None) -> asyncio.Task[None]:
        task = asyncio.create_task(work, context=context_of(trace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _batch(
        self, request: RecognisedBatch, protocol: FastPathProtocol, pending: PendingResponse, peer: Peer
    ) -> None:
        begun_boot_ms, template, router = boot_ms(), request.template, self._router
        answer: HttpAnswer | LargeAnswer
        with router.limits.memory_of(peer) as memory:
            try:
                memory.take(len(request.body))
                answer = await batch_get(
                    router, self._metrics, template.store, template.query, request.body, peer, memory
                )
            except Problem as problem:
                answer = problem_answer(problem)
                self._metrics.count(BATCH_ROUTE.path, answer.status, template.store, problem.name)
            except Exception:
                answer = _failed("a batch failed")
                self._metrics.count(BATCH_ROUTE.path, answer.status, template.store, InternalError.name)
            self._metrics.observe_ms(BATCH_ROUTE.path, template.store, boot_ms() - begun_boot_ms)
            if isinstance(answer, LargeAnswer):
                # It is held in memory until it is sent.
                await protocol.send_large(pending, answer)
            else:
                pending.fill(answer)

    def _answered(self, read: _Outstanding, answer: HttpAnswer | None) -> bool:
        """Handle a worker's answer, None if the connection ended first.

        Returns whether the answer was for the key that was asked.
        """
        named, first = read.named, read.first
        in_step = answer is None or answer.body.startswith(named.document) or named.is_in(answer)
        if answer is not None and in_step:
            took_ms = boot_ms() - read.sent_boot_ms
            self._router.delay.observe(took_ms)
            if first is None and self._finish(read, answer, took_ms):
                return True
        if first is None:
            first = self._continue_on_slow_path(read, self._policy_of(read), [Wait(0.0)])
        elif first.answer.done():
            # Nobody waits for it any more.
            if not in_step:
                self._router.cluster.on_mismatched_answer(first.host)
            elif answer is not None:
                read.target.worker.on_answer(late=True)
            return in_step
        _settle(first.answer, answer, in_step=in_step)
        return in_step

    def _finish(self, read: _Outstanding, answer: HttpAnswer, took_ms: float) -> bool:
        """Answer the client if the worker's answer is final, and still within its bounds."""
        if not is_final(answer):
            return False
        if took_ms > IN_TRANSIT_MS:
            # It may have waited to be received: all that is known is that it is newer than the request.
            answer = answer_by_now(
                answer, took_ms, read.prepared.bounds[1], read.prepared.spec.name, "it had arrived"
            )
            if not is_final(answer) or boot_ms() > self._deadline(read):
                return False
        target = read.target
        target.worker.on_answer()
        if not target.reported:
            target.reported = True
            held = read.prepared.spec.name, read.partition
            self._router.cluster.on_answer_headers(target.worker.host, held, answer.head)
        read.done = True
        self._requests.count(read.peer, -1)
        self._fill(read, answer, took_ms)
        return True

    def _fill(self, read: _Outstanding, answer: HttpAnswer, took_ms: float) -> None:
        prepared = read.prepared
        self._answer_ms[prepared.spec.name].observe(took_ms)
        self._metrics.count_answer(_PATH, prepared.spec.name, answer)
        read.pending.fill(answer, prepared.bounds)

    def _policy_of(self, read: _Outstanding) -> ReadPolicy[HostInfo]:
        if read.policy is None:
            prepared = read.prepared
            replicas = PartitionReplicas(self._router, prepared.spec, read.partition, prepared.parameters)
            read.policy = ReadPolicy(replicas, self._deadline(read))
            read.policy.resume(read.target.worker.host, read.sent_boot_ms)
        return read.policy

    def _continue_on_slow_path(
        self, read: _Outstanding, policy: ReadPolicy[HostInfo], actions: Sequence[Action[HostInfo]]
    ) -> FirstRequest:
        """Leave the rest to a driver that can ask several workers; returns what it awaits of the first one."""
        read.done = True
        answer: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        read.first = FirstRequest(read.target.worker.host, read.sent_boot_ms, answer)
        slow_path = self._begin(self._slow_path(read, read.first, policy, actions), read.pending.trace)
        # It keeps its place among those in flight: who was admitted is not refused for others that came later.
        slow_path.add_done_callback(partial(self._leave, read.peer))
        read.pending.on_abandoned = slow_path.cancel
        return read.first

    def _leave(self, peer: Peer, _: asyncio.Task[None]) -> None:
        self._router.limits.requests.count(peer, -1)

    async def _slow_path(
        self,
        read: _Outstanding,
        first: FirstRequest,
        policy: ReadPolicy[HostInfo],
        actions: Sequence[Action[HostInfo]],
    ) -> None:
        prepared = read.prepared
        path = b"/v1/stores/%b/keys/%b" % (prepared.spec.name_bytes, read.segment)
        target = b"%b?%b" % (path, prepared.query) if prepared.query else path
        request = ReplicaRequest(prepared.spec, read.partition, target, named=read.named)
        try:
            timed = await go_on(
                self._router, request, prepared.parameters, self._deadline(read), first, policy, actions
            )
            answer = answered_by_now(timed, *prepared.bounds)
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
            self._on_silence(read)
        if self._outstanding:
            self._tick()

    def _on_silence(self, read: _Outstanding) -> None:
        """Do what the policy decides: keep waiting here, or continue as an ordinary read."""
        policy = self._policy_of(read)
        actions = policy.tick(boot_ms())
        notes = [action for action in actions if isinstance(action, NoteSlow | NoteThrottled)]
        step = actions[-1]
        if not isinstance(step, Wait) or len(notes) < len(actions) - 1:
            self._continue_on_slow_path(read, policy, actions)
            return
        for action in notes:
            note(self._router, action)
        pause_s = max(0.0, step.until_ms - boot_ms()) / 1000
        asyncio.get_running_loop().call_later(pause_s, self._recheck, read, step.until_ms)

    def _recheck(self, read: _Outstanding, due_boot_ms: float) -> None:
        if read.done:
            return
        if was_stopped(boot_ms() - due_boot_ms):
            # What came meanwhile is read first.
            asyncio.get_running_loop().call_later(TIME_TO_READ_S, self._recheck, read, math.inf)
            return
        self._on_silence(read)

    def _deadline(self, read: _Outstanding) -> float:
        return read.sent_boot_ms + self._router.timeout_ms(read.prepared.parameters)


def _settle(future: asyncio.Future[HttpAnswer], answer: HttpAnswer | None, *, in_step: bool) -> None:
    """Give a first request its outcome."""
    if answer is not None and in_step:
        future.set_result(answer)
        return
    if in_step:
        future.set_exception(UpstreamClosed("the worker closed the connection"))
    else:
        future.set_exception(AnsweredForAnother("the worker answered for another key"))
    # Nobody may be there to see it.
    future.exception()


def _failed(what: str) -> HttpAnswer:
    """The client's answer then: an empty slot would hold back every later answer of the connection."""
    log.exception(what)
    return problem_answer(InternalError("The service failed; its log says why."))
