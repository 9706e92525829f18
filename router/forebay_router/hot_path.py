"""The router's hot path: a recognised read goes to its best candidate over a shared connection, at once.

What is not answered there and then finally (a refusal, a lost connection, a worker slower than the hedge delay)
goes on as an ordinary read, which asks the others; the client's order of answers is kept by slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache

from forebay.codecs import from_segment
from forebay.errors import InternalError, Problem
from forebay.hot_path import HotPathProtocol, HotRequest, Slot
from forebay.lag import Tolerance, boot_ms
from forebay.metadata import HostInfo
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.parameters import KEY_PARAMETERS, ReadParameters, parse_parameters
from forebay.rest.routes import READ_ROUTES
from forebay.topology import StoreSpec
from forebay_router.candidates import candidates, equals, less_loaded
from forebay_router.hedging import MOST_DELAY_MS
from forebay_router.keys import read_key
from forebay_router.metrics import RouterMetrics
from forebay_router.replica_read import is_final
from forebay_router.router import Router

log = logging.getLogger(__name__)

_PATH = READ_ROUTES[0].path
_CHOICE_MAX_AGE_MS = 25.0
_MOST_CHOICES = 10_000
_TICK_S = 0.005
_LOOK_AGAIN_MS = 50.0


@dataclass(slots=True)
class _Outstanding:
    """A read on its way to its first candidate."""

    request: HotRequest
    parameters: ReadParameters
    slot: Slot
    host: HostInfo
    held: tuple[str, int]
    sent_boot_ms: float
    settled: bool = False
    """Answered, or gone on as an ordinary read."""
    ordinary: asyncio.Task[None] | None = None
    hedged: bool = False
    refused: bool = False
    """No hedge was allowed when one was due."""


class RouterHotPath:
    """Sends single-key reads to their best candidate, coalesced and pipelined."""

    def __init__(self, router: Router, metrics: RouterMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self._choices: dict[tuple[str, int, Tolerance, bool], tuple[float, tuple[HostInfo, ...]]] = {}
        self._reported: dict[tuple[HostInfo, tuple[str, int]], float] = {}
        self._outstanding: deque[_Outstanding] = deque()
        self._ticking = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, request: HotRequest, protocol: HotPathProtocol) -> Answer | Slot | None:
        """A slot that will be filled, None where the route must answer."""
        router = self._router
        spec = router.cluster.metadata.stores.get(request.store)
        if spec is None or spec.kind != "key-value":
            return None
        try:
            if spec.stream_partitioner is None:
                return None
            parameters = parse_parameters(request.query, KEY_PARAMETERS)
            partition = spec.partition_of(from_segment(spec.key_codec, request.segment))
        except Problem:
            return None
        timeout_ms = parameters.timeout_ms
        if parameters.wait_ms or (timeout_ms is not None and timeout_ms < MOST_DELAY_MS):
            # One that is slow is only noticed after the hedge delay.
            return None
        overload = router.overload()
        if overload is not None:
            self._metrics.count(_PATH, overload.status)
            return problem_answer(overload)
        now = boot_ms()
        host = self._choose(spec, partition, parameters, now)
        if host is None:
            return None
        slot = protocol.slot(request)
        read = _Outstanding(request, parameters, slot, host, (spec.name, partition), now)
        sent = _render(request, partition, host, router.credentials())
        most_load = router.settings.max_in_flight_per_worker
        if not router.upstreams.send(host, sent, lambda answer: self._answered(read, answer), most_load):
            return None
        router.in_flight += 1
        router.budget.earn(now)
        self._outstanding.append(read)
        self._tick()
        return slot

    def _choose(
        self, spec: StoreSpec, partition: int, parameters: ReadParameters, now_boot_ms: float
    ) -> HostInfo | None:
        """The best candidate, or one of those that are as good; None where the ordinary read must look for one."""
        hosts = self._best(spec, partition, parameters, now_boot_ms)
        if len(hosts) < 2:
            return hosts[0] if hosts else None
        return less_loaded(hosts, self._router.upstreams.load, self._router.choose)

    def _best(
        self, spec: StoreSpec, partition: int, parameters: ReadParameters, now_boot_ms: float
    ) -> tuple[HostInfo, ...]:
        """Whom to choose among, thought about anew after a few milliseconds or once one is lost."""
        tolerance = parameters.tolerance_for(spec)
        spread = parameters.prefer == "any" and not parameters.require_active
        key = (spec.name, partition, tolerance, spread)
        found = self._choices.get(key)
        fit = self._router.cluster.recovered
        if found is not None and now_boot_ms - found[0] < _CHOICE_MAX_AGE_MS and all(map(fit, found[1])):
            return found[1]
        if len(self._choices) > _MOST_CHOICES:
            self._choices.clear()
        holders = self._router.cluster.holders(spec, partition, self._router.upstreams.load)
        hosts = equals(holders, tolerance) if spread else candidates(holders, tolerance)[:1]
        # One that recovers is probed by ordinary reads.
        hosts = hosts if all(map(fit, hosts)) else ()
        self._choices[key] = (now_boot_ms, hosts)
        return hosts

    def _answered(self, read: _Outstanding, answer: Answer | None) -> None:
        """Take a worker's answer, None where the connection ended first: that alone does not mean it is down."""
        router = self._router
        if answer is not None:
            now = boot_ms()
            router.cluster.answered(read.host, late=read.settled)
            router.delay.observe(now - read.sent_boot_ms)
            self._report(read, answer, now)
        if read.settled:
            if answer is not None and is_final(answer):
                self._answered_after_all(read, answer)
        elif answer is None or not is_final(answer):
            self._go_on_as_ordinary(read, None)
        else:
            read.settled = True
            router.in_flight -= 1
            self._fill(read, answer)

    def _report(self, read: _Outstanding, answer: Answer, now_boot_ms: float) -> None:
        """Note what the answer says of its replica, as often as the choice of one is thought about anew."""
        key = read.host, read.held
        if now_boot_ms - self._reported.get(key, 0.0) >= _CHOICE_MAX_AGE_MS:
            if len(self._reported) > _MOST_CHOICES:
                self._reported.clear()
            self._reported[key] = now_boot_ms
            self._router.cluster.heard(read.host, read.held, answer.head)

    def _answered_after_all(self, read: _Outstanding, answer: Answer) -> None:
        """The first worker was faster than those asked since."""
        if read.ordinary is not None and not read.ordinary.done():
            read.ordinary.cancel()
            self._fill(read, answer)

    def _fill(self, read: _Outstanding, answer: Answer) -> None:
        self._metrics.count_answer(_PATH, read.request.store, answer)
        read.slot.fill(answer)

    def _go_on_as_ordinary(self, read: _Outstanding, silent: HostInfo | None) -> None:
        read.settled = True
        self._router.in_flight -= 1
        read.ordinary = asyncio.ensure_future(self._ordinary(read, silent))
        self._tasks.add(read.ordinary)
        read.ordinary.add_done_callback(self._tasks.discard)

    async def _ordinary(self, read: _Outstanding, silent: HostInfo | None) -> None:
        request = read.request
        path = b"/v1/stores/%b/keys/%b" % (request.store.encode(), request.segment)
        try:
            left_ms = int(self._left_ms(read))
            parameters = replace(read.parameters, timeout_ms=max(1, left_ms))
            answer = await read_key(
                self._router, request.store, request.segment, path, request.query, parameters, silent
            )
            self._router.counts["hedges_won"] += read.hedged and is_final(answer)
        except Problem as problem:
            answer = problem_answer(problem)
        except Exception:
            # Left empty, the slot would hold back every later answer of the connection.
            log.exception("a read that had left the hot path failed")
            answer = problem_answer(InternalError("The service failed; its log says why."))
        self._fill(read, answer)

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK_S, self._look_for_slow_reads)

    def _look_for_slow_reads(self) -> None:
        """Let reads that waited past the hedge delay go on as ordinary ones, within the budget of hedges."""
        self._ticking = False
        router = self._router
        late = boot_ms() - router.delay.delay_ms
        while self._outstanding and (self._outstanding[0].settled or self._outstanding[0].sent_boot_ms < late):
            read = self._outstanding.popleft()
            if read.settled:
                continue
            router.cluster.silent(read.host)
            self._hedge(read)
        if self._outstanding:
            self._tick()

    def _hedge(self, read: _Outstanding) -> None:
        """Ask another replica, if there is one and the budget allows; else wait on, and look again."""
        router = self._router
        if not self._has_another(read):
            self._wait(read)
        elif router.budget.spend():
            router.counts["hedges"] += 1
            read.hedged = True
            self._go_on_as_ordinary(read, read.host)
        elif router.cluster.well(read.host):
            router.counts["hedges_refused"] += not read.refused
            read.refused = True
            self._wait(read)
        else:
            # The worker hangs: this is no hedge.
            self._go_on_as_ordinary(read, read.host)

    def _has_another(self, read: _Outstanding) -> bool:
        spec = self._router.cluster.metadata.stores.get(read.held[0])
        if spec is None:
            return False
        return any(host != read.host for host in self._router.candidates(spec, read.held[1], read.parameters))

    def _wait(self, read: _Outstanding) -> None:
        pause_ms = max(0.0, min(self._left_ms(read), _LOOK_AGAIN_MS))
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._look_again, read)

    def _look_again(self, read: _Outstanding) -> None:
        if read.settled:
            return
        if self._left_ms(read) <= 0:
            self._go_on_as_ordinary(read, read.host)
        else:
            self._hedge(read)

    def _left_ms(self, read: _Outstanding) -> float:
        return self._router.timeout_ms(read.parameters) - (boot_ms() - read.sent_boot_ms)


def _render(request: HotRequest, partition: int, host: HostInfo, credentials: bytes) -> bytes:
    """A request of the router's own making; nothing received is passed on but key and query, both checked."""
    return b"GET /v1/stores/%b/keys/%b?%bpartition=%d%b" % (
        request.store.encode(),
        request.segment,
        request.query + b"&" if request.query else b"",
        partition,
        _rest(host, credentials),
    )


@lru_cache(maxsize=1024)
def _rest(host: HostInfo, credentials: bytes) -> bytes:
    """A request to a worker, behind its target."""
    return b" HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (str(host).encode(), credentials)
