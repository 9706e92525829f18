"""The router's hot path: a recognised read goes to its best candidate over a shared connection, at once.

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
from forebay.hot_path import HotBatch, HotPathProtocol, KeyHandler, RequestForm, Slot
from forebay.metadata import HostInfo
from forebay.rest.aging import IN_TRANSIT_MS, answer_by_now
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.limits import Peer
from forebay.rest.routes import BATCH_ROUTE, READ_ROUTES
from forebay_router.metrics import RouterMetrics
from forebay_router.reads.attempts import Attempt, late
from forebay_router.reads.batches import batch_get
from forebay_router.reads.choices import Choices, KeyRead, Target
from forebay_router.reads.keys import read_admitted_key
from forebay_router.reads.named_key import NamedKey
from forebay_router.reads.replica_read import is_final
from forebay_router.router import Router
from forebay_router.upstream.credentials import REFUSALS
from forebay_router.upstream.timeouts import was_stopped

log = logging.getLogger(__name__)

_PATH = READ_ROUTES[0].path
_TICK_S = 0.005
_LOOK_AGAIN_MS = 50.0


@dataclass(slots=True, eq=False)
class _Outstanding:
    """A read on its way to its first candidate."""

    asked: KeyRead
    segment: bytes
    partition: int
    named: NamedKey
    slot: Slot
    target: Target
    sent_boot_ms: float
    peer: Peer
    done: bool = False
    """Answered, or continued as an ordinary read."""
    ordinary: asyncio.Task[None] | None = None
    hedged: bool = False
    refused: bool = False
    """No hedge was allowed when one was due."""


class RouterHotPath:
    """Sends single-key reads to their best candidate, coalesced and pipelined; starts batches."""

    def __init__(self, router: Router, metrics: RouterMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self._answer_ms = metrics.answer_ms[_PATH]
        self._choices = Choices(router)
        # Counted without a call: a router's part of a read is some seven microseconds.
        self._requests = router.limits.requests
        self._by_request = router.limits.peers.by_request
        self._outstanding: deque[_Outstanding] = deque()
        self._ticking = False
        self._asked_since_tick = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def key(self, form: RequestForm) -> KeyHandler:
        """Fills a slot later, or leaves it to the route."""
        return partial(self._ask, form)

    def _ask(self, form: RequestForm, segment: bytes, protocol: HotPathProtocol) -> Answer | Slot | None:
        router = self._router
        try:
            asked = self._choices.key_read(form)
            if asked is None:
                return None
            partition, named = asked.key_of(segment)
        except Problem:
            return None
        peer = protocol.peer(form) if self._by_request else protocol.address
        requests = self._requests
        if requests.used >= requests.open and (overload := requests.refusal(peer)) is not None:
            self._metrics.count(_PATH, overload.status, asked.spec.name, overload.name)
            self._answer_ms[asked.spec.name].observe(0)
            return problem_answer(overload)
        now = boot_ms()
        target = self._choices.choose(asked, partition, now)
        if target is None:
            return None
        slot = protocol.slot(form)
        read = _Outstanding(asked, segment, partition, named, slot, target, now, peer)
        # Of the bytes received, only key and query are passed on, both checked.
        sent = b"".join((asked.before, segment, asked.between, target.rest))
        most_load = router.settings.max_in_flight_per_worker
        if not target.upstream.send(sent, partial(self._answered, read), most_load):
            return None
        requests.used += 1
        peer.requests += 1
        self._asked_since_tick += 1
        self._outstanding.append(read)
        if not self._ticking:
            self._tick()
        return slot

    def batch(self, request: HotBatch, protocol: HotPathProtocol) -> Slot:
        """A slot that will be filled."""
        slot = protocol.slot(request.form)
        slot.on_abandoned = self._begin(self._batch(request, slot, protocol.peer(request.form))).cancel
        return slot

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _batch(self, request: HotBatch, slot: Slot, peer: Peer) -> None:
        form, router = request.form, self._router
        with router.limits.memory_of(peer) as memory:
            try:
                memory.grow(len(request.body))
                answer = await batch_get(router, self._metrics, form.store, form.query, request.body, peer, memory)
            except Problem as problem:
                answer = problem_answer(problem)
                self._metrics.count(BATCH_ROUTE.path, answer.status, form.store, problem.name)
            except Exception:
                answer = _failed("a batch failed")
                self._metrics.count(BATCH_ROUTE.path, answer.status, form.store, InternalError.name)
            slot.fill(answer)

    def _answered(self, read: _Outstanding, answer: Answer | None) -> bool:
        """Handle a worker's answer, None if the connection ended first: that alone does not mean it is down.

        Returns whether the answer was for the key that was asked.
        """
        router = self._router
        named = read.named
        in_step = answer is None or answer.body.startswith(named.document) or named.is_in(answer)
        if not in_step:
            router.cluster.answered_for_another_key(read.target.worker.host)
            answer = None
        took_ms = boot_ms() - read.sent_boot_ms
        if answer is not None:
            target = read.target
            target.worker.answered(late=read.done)
            router.delay.observe(took_ms)
            if not target.reported:
                target.reported = True
                router.cluster.heard(target.worker.host, (read.asked.spec.name, read.partition), answer.head)
            if took_ms > IN_TRANSIT_MS:
                answer = self._by_now(read, answer, took_ms)
        if read.done:
            if answer is not None and is_final(answer):
                self._answered_after_all(read, answer, took_ms)
        elif answer is None or not is_final(answer):
            refused = None
            if answer is not None and answer.status not in REFUSALS:
                # One that refused the router's token is asked again: it may have another since.
                refused = (read.target.worker.host, answer)
            self._go_on_as_ordinary(read, refused=refused)
        else:
            read.done = True
            self._requests.used -= 1
            read.peer.requests -= 1
            self._fill(read, answer, took_ms)
        return in_step

    def _by_now(self, read: _Outstanding, answer: Answer, took_ms: float) -> Answer | None:
        """An answer that may have waited to be received, because this process was stopped for example: all that is
        known is that it is newer than the request. None if the read's time is over."""
        asked = read.asked
        if took_ms > self._router.timeout_ms(asked.parameters):
            return None
        store, tolerance = asked.bounds
        return answer_by_now(answer, took_ms, tolerance, store, "it had arrived")

    def _answered_after_all(self, read: _Outstanding, answer: Answer, took_ms: float) -> None:
        """The first worker was faster than those asked since."""
        if read.ordinary is not None and not read.ordinary.done():
            read.ordinary.cancel()
            self._fill(read, answer, took_ms)

    def _fill(self, read: _Outstanding, answer: Answer, took_ms: float) -> None:
        asked = read.asked
        self._answer_ms[asked.spec.name].observe(took_ms)
        self._metrics.count_answer(_PATH, asked.spec.name, answer)
        read.slot.fill(answer, asked.bounds)

    def _go_on_as_ordinary(
        self, read: _Outstanding, *, silent: HostInfo | None = None, refused: tuple[HostInfo, Answer] | None = None
    ) -> None:
        read.done = True
        read.ordinary = self._begin(self._ordinary(read, silent, refused))
        # It keeps its place among those in flight: who was admitted is not refused for others that came later.
        read.ordinary.add_done_callback(partial(self._leave, read.peer))
        read.slot.on_abandoned = read.ordinary.cancel

    def _leave(self, peer: Peer, _: asyncio.Task[None]) -> None:
        self._router.limits.requests.count(peer, -1)

    async def _ordinary(
        self, read: _Outstanding, silent: HostInfo | None, refused: tuple[HostInfo, Answer] | None
    ) -> None:
        asked = read.asked
        path = b"/v1/stores/%b/keys/%b" % (asked.spec.name_bytes, read.segment)
        try:
            spec = self._router.spec(asked.spec.name)
            plain = from_segment(spec.key_codec, read.segment)
            left_ms = int(self._left_ms(read))
            if left_ms > 0:
                parameters = replace(asked.parameters, timeout_ms=left_ms)
                answer = await read_admitted_key(
                    self._router, spec, plain, path, asked.query, parameters, silent, refused
                )
                self._router.counts["hedges_won"] += read.hedged and is_final(answer)
            else:
                answer = late(spec.name, read.partition, [Attempt(read.target.worker.host, "no answer yet")])
        except Problem as problem:
            answer = problem_answer(problem)
        except Exception:
            answer = _failed("a read that had left the hot path failed")
        self._fill(read, answer, boot_ms() - read.sent_boot_ms)

    def _tick(self) -> None:
        self._ticking = True
        asyncio.get_running_loop().call_later(_TICK_S, self._look_for_slow_reads, boot_ms())

    def _look_for_slow_reads(self, ticked_boot_ms: float) -> None:
        """Let reads that waited past the hedge delay continue as ordinary ones, within the budget of hedges."""
        self._ticking = False
        router, now = self._router, boot_ms()
        if was_stopped(now - ticked_boot_ms):
            # What came meanwhile is read first.
            self._tick()
            return
        router.budget.earn(now, self._asked_since_tick)
        self._asked_since_tick = 0
        late = now - router.delay.delay_ms
        while self._outstanding and (self._outstanding[0].done or self._outstanding[0].sent_boot_ms < late):
            read = self._outstanding.popleft()
            if read.done:
                continue
            router.cluster.silent(read.target.worker.host)
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
            self._go_on_as_ordinary(read, silent=read.target.worker.host)
        elif router.cluster.well(read.target.worker.host):
            router.counts["hedges_refused"] += not read.refused
            read.refused = True
            self._wait(read)
        else:
            # The worker hangs: this is no hedge.
            self._go_on_as_ordinary(read, silent=read.target.worker.host)

    def _has_another(self, read: _Outstanding) -> bool:
        asked = read.asked
        spec = self._router.cluster.metadata.stores.get(asked.spec.name)
        if spec is None:
            return False
        hosts = self._router.candidates(spec, read.partition, asked.parameters)
        return any(host != read.target.worker.host for host in hosts)

    def _wait(self, read: _Outstanding) -> None:
        pause_ms = max(0.0, min(self._left_ms(read), _LOOK_AGAIN_MS))
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._look_again, read)

    def _look_again(self, read: _Outstanding) -> None:
        if read.done:
            return
        if self._left_ms(read) <= 0:
            self._go_on_as_ordinary(read, silent=read.target.worker.host)
        else:
            self._hedge(read)

    def _left_ms(self, read: _Outstanding) -> float:
        return self._router.timeout_ms(read.asked.parameters) - (boot_ms() - read.sent_boot_ms)


def _failed(what: str) -> Answer:
    """The client's answer then: an empty slot would hold back every later answer of the connection."""
    log.exception(what)
    return problem_answer(InternalError("The service failed; its log says why."))
