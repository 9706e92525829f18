"""One read of a partition: the driver of its policy, which asks its replicas over connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from forebay.clock import boot_ms
from forebay.errors import NotHostedHere
from forebay.routing.failover_policy import (
    Action,
    Ask,
    AttemptOutcome,
    Finish,
    GiveUp,
    NoteSlow,
    NoteThrottled,
    ReadPolicy,
    Refresh,
    Skip,
    Step,
    Wait,
)
from forebay.streams_metadata import HostInfo
from forebay.wire.answer_aging import as_of
from forebay.wire.answers import HttpAnswer, problem_name
from forebay.wire.parameters import ReadParameters
from forebay_router.reads.refusals import Attempt, attempts_head, is_final, late, outcome_of, overload, refusal
from forebay_router.reads.replica_request import (
    FirstRequest,
    PartitionReplicas,
    ReplicaRequest,
    TimedAnswer,
    answered_by_now,
    may_be_elsewhere,
)
from forebay_router.router import Router
from forebay_router.upstream.connection import TIME_TO_READ_S, AnsweredForAnother, was_stopped
from forebay_router.upstream.opener import REFUSALS
from forebay_router.upstream.pool import InFlightPermit
from forebay_web.explanations import explained


async def ask(
    router: Router, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float
) -> TimedAnswer:
    """The first final answer of a partition's replicas, or the problem that sums up why there is none.

    An answer states which other workers were asked; one that is only part of a client's answer does not.
    """
    return await _result(ReplicaRead(router, request, parameters, deadline_boot_ms))


async def go_on(
    router: Router,
    request: ReplicaRequest,
    parameters: ReadParameters,
    deadline_boot_ms: float,
    first: FirstRequest,
    policy: ReadPolicy[HostInfo],
    actions: Sequence[Action[HostInfo]],
) -> TimedAnswer:
    """The same for a read whose policy has begun with a first request, and wants these actions next."""
    read = ReplicaRead(router, request, parameters, deadline_boot_ms, policy)
    read.adopt(first, actions)
    return await _result(read)


async def _result(read: ReplicaRead) -> TimedAnswer:
    answer = await read.run()
    if answer is None:
        return TimedAnswer(read.refusal(read.request.partition), boot_ms())
    if not read.request.accept:
        answer = answer._replace(head=answer.head + attempts_head(read.other_attempts()))
    return TimedAnswer(answer, read.as_of_boot_ms, read.decoded, read.answer_bytes)


class _Body(NamedTuple):
    """The body of an answer: as the request's ``decode`` reads it, or what is wrong with it, and its size."""

    decoded: Any = None
    error: ValueError | None = None
    size_bytes: int = 0


_NO_BODY = _Body()


class _Received(NamedTuple):
    """An answer, its body, and when it came."""

    answer: HttpAnswer
    body: _Body
    boot_ms: float


class ReplicaRead:
    """One read in progress: carries out what its policy decides, with connections, tasks and the wall clock."""

    def __init__(
        self,
        router: Router,
        request: ReplicaRequest,
        parameters: ReadParameters,
        deadline_boot_ms: float,
        policy: ReadPolicy[HostInfo] | None = None,
    ) -> None:
        self._router = router
        self.request = request
        self._deadline = deadline_boot_ms
        self._policy = policy or _policy(router, request, parameters, deadline_boot_ms)
        self._begun: Sequence[Action[HostInfo]] = ()
        self._held = (request.spec.name, request.partition)
        self._tolerance = router.tolerance(request.spec, parameters)
        if (explanation := explained.get()) is not None:
            explanation.hold_to(
                request=parameters.tolerance,
                store=request.spec.default_tolerance,
                ceiling=router.cluster.ceiling,
                all_of_them=self._tolerance,
            )
        self._dedicated = request.dedicated_connection
        self._may_wait = parameters.wait_ms > 0
        self._in_flight: dict[asyncio.Future[HttpAnswer], HostInfo] = {}
        self._sent_boot_ms: dict[HostInfo, float] = {}
        self._unanswered: list[HostInfo] = []
        """Those that had not answered at the end."""
        self._adopted: asyncio.Future[HttpAnswer] | None = None
        self._bodies: dict[HostInfo, _Body] = {}
        """Those of answers to requests for another form than JSON."""
        self._received: dict[HostInfo, _Received] = {}
        """Answers that may end the read."""
        self._gave_up: GiveUp | None = None
        self.attempts: list[Attempt] = []
        """Those without a final answer, so far."""
        self.answered_by: HostInfo | None = None
        """The worker that gave the final answer."""
        self.decoded: Any = None
        """Its body, as the request's ``decode`` reads it."""
        self.answer_bytes = 0
        """What that took as it arrived."""
        self.as_of_boot_ms = 0.0
        """As of when the lag in the final answer is right."""

    def adopt(self, first: FirstRequest, actions: Sequence[Action[HostInfo]]) -> None:
        """Begin with a request that was sent already, and these actions."""
        self._adopted, self._begun = first.answer, actions
        self._in_flight[first.answer] = first.host
        self._sent_boot_ms[first.host] = first.sent_boot_ms

    async def run(self) -> HttpAnswer | None:
        """The first final answer, None if there is none."""
        try:
            if not self._begun:
                self._router.budget.earn(boot_ms())
                self._begun = self._policy.begin(boot_ms())
            step = self._carry_out(self._begun)
            while isinstance(step, Wait | Refresh):
                step = self._carry_out(await self._next_actions(step))
            if isinstance(step, Finish):
                return self._finish(step)
            self._give_up(step)
            return None
        finally:
            for pending in self._in_flight:
                pending.cancel()
            self._unanswered = list(self._in_flight.values())
            # Each refers to this read by way of what ended it.
            self._in_flight.clear()

    def other_attempts(self) -> list[Attempt]:
        """The workers that were asked beside the one with the final answer."""
        known = {attempt.host for attempt in self.attempts}
        unanswered = [host for host in self._unanswered if host not in known]
        return [*self.attempts, *(Attempt(host, "no answer yet") for host in unanswered)]

    def refusal(self, partition: int) -> HttpAnswer:
        """The problem that sums up why there was no final answer, for a requested partition."""
        assert self._gave_up is not None
        of_reason = {"late": late, "overloaded": overload, "unanswered": refusal}[self._gave_up.reason]
        return of_reason(self.request.spec.name, partition, self.attempts)

    async def _next_actions(self, step: Wait | Refresh) -> Sequence[Action[HostInfo]]:
        if isinstance(step, Refresh):
            # If a worker answered as if the map were out of date, this uses the one being fetched because of it.
            await self._router.discovery.refreshed(self._deadline)
            return self._policy.refreshed(boot_ms())
        settled = await self._settled(step.until_ms)
        if not settled:
            return self._policy.tick(boot_ms())
        return self._policy.settle([self._on_settled(request) for request in settled], boot_ms())

    async def _settled(self, until_boot_ms: float) -> set[asyncio.Future[HttpAnswer]]:
        """The requests that have an outcome; none if there is none by that time."""
        begun = boot_ms()
        pause_ms = max(until_boot_ms - begun, 0.0)
        settled, _ = await _first_of(self._in_flight, pause_ms / 1000)
        if not settled and was_stopped(boot_ms() - begun - pause_ms):
            settled, _ = await _first_of(self._in_flight, TIME_TO_READ_S)
        return settled

    def _carry_out(self, actions: Sequence[Action[HostInfo]]) -> Step[HostInfo]:
        """Carry out all actions; returns the last, the next step."""
        for action in actions:
            match action:
                case Ask(host, lets_wait, is_hedge):
                    self._note("asked", host=host, hedge=is_hedge, may_wait=lets_wait)
                    self._ask(action)
                case Skip(host):
                    self._note("skipped", host=host, why="full")
                    self.attempts.append(Attempt(host, "full"))
                case NoteSlow(host):
                    self._note("slow", host=host)
                    note(self._router, action)
                case NoteThrottled():
                    self._note("hedge-refused", why="budget")
                    note(self._router, action)
                case Finish(host):
                    self._note("final", host=host)
                    return action
                case GiveUp(reason):
                    self._note("gave-up", why=reason)
                    return action
                case Refresh():
                    self._note("map-awaited")
                    return action
                case Wait():
                    return action
        raise AssertionError("a policy ends its actions with a step")

    def _note(self, event: str, **members: Any) -> None:
        explanation = explained.get()
        if explanation is not None:
            # Texts are made up for explanations only.
            shown = {name: str(one) if isinstance(one, HostInfo) else one for name, one in members.items()}
            explanation.note(event, partition=self.request.partition, **shown)

    def _ask(self, action: Ask[HostInfo]) -> None:
        host, router = action.host, self._router
        # One that is asked again has another outcome.
        self.attempts = [attempt for attempt in self.attempts if attempt.host != host]
        self._received.pop(host, None)
        self._bodies.pop(host, None)
        router.counts["hedges"] += action.is_hedge
        left_ms = max(1, int(self._deadline - boot_ms()))
        request = self.request.render(
            host,
            left_ms,
            router.credentials(),
            waits=action.lets_wait,
            doubted=self.request.spec.name in router.cluster.doubted,
        )
        permit = router.pool[host].permit(waits=action.lets_wait and self._may_wait)
        task = asyncio.create_task(self._timed(host, request, permit))
        # It may end before it begins.
        task.add_done_callback(lambda _: permit.release())
        if action.is_hedge:
            self._count_copy(task, len(request))
        self._in_flight[task] = host
        self._sent_boot_ms[host] = boot_ms()

    def _count_copy(self, hedge: asyncio.Task[HttpAnswer], size_bytes: int) -> None:
        """Count a hedge's request as its client's until it ends; that of the first is counted by who made it."""
        memory = self.request.memory
        if memory is not None:
            memory.adjust(size_bytes)
            hedge.add_done_callback(lambda _: memory.adjust(-size_bytes))

    async def _timed(self, host: HostInfo, request: bytes, permit: InFlightPermit) -> HttpAnswer:
        begun = boot_ms()
        named = None if self.request.named is None else self.request.named.is_in
        upstream = self._router.pool[host]
        parts: list[bytes] | None = [] if self.request.accept else None
        answer = await upstream.request(
            request,
            dedicated_connection=self._dedicated,
            permit=permit,
            named=named,
            admit=self.request.admit,
            parts=parts,
        )
        if not self._dedicated:
            self._router.delay.observe(boot_ms() - begun)
        if parts is not None:
            if parts and answer.status != 200:
                return answer._replace(body=b"".join(parts))
            await self._read_body(host, answer, parts or [answer.body])
        return answer

    async def _read_body(self, host: HostInfo, answer: HttpAnswer, parts: list[bytes]) -> None:
        size_bytes = sum(map(len, parts))
        try:
            self._bodies[host] = _Body(await self.request.read(answer, parts), size_bytes=size_bytes)
        except ValueError as error:
            self._bodies[host] = _Body(error=error)

    def _on_settled(self, request: asyncio.Future[HttpAnswer]) -> tuple[HostInfo, AttemptOutcome]:
        """Record the outcome of a request to a worker."""
        host = self._in_flight.pop(request)
        error = request.exception()
        if error is None:
            answer = request.result()
            outcome = self._on_answer(host, answer, adopted=request is self._adopted)
            problem = {"problem": problem_name(answer)} if answer.status >= 400 else {}
            self._note("answered", host=host, status=answer.status, outcome=outcome.name.lower(), **problem)
            return host, outcome
        if not isinstance(error, OSError):
            raise error
        self._note("failed", host=host, why=str(error) or type(error).__name__)
        return host, self._on_error(host, error, adopted=request is self._adopted)

    def _on_error(self, host: HostInfo, error: OSError, *, adopted: bool) -> AttemptOutcome:
        cluster = self._router.cluster
        if isinstance(error, AnsweredForAnother):
            cluster.on_mismatched_answer(host)
        elif isinstance(error, TimeoutError):
            cluster.on_slow_read(host)
        elif not adopted:
            # That a shared connection ended does not mean that the worker is down.
            cluster.on_unreachable(host)
        if adopted:
            return AttemptOutcome.UNSENT
        self.attempts.append(Attempt(host, "timeout" if isinstance(error, TimeoutError) else type(error).__name__))
        self._router.counts["failovers"] += 1
        return AttemptOutcome.FAILED

    def _on_answer(self, host: HostInfo, answer: HttpAnswer, *, adopted: bool) -> AttemptOutcome:
        cluster = self._router.cluster
        cluster.on_answer(host)
        cluster.on_answer_headers(host, self._held, answer.head)
        if adopted and answer.status in REFUSALS:
            # The router may have another token since.
            return AttemptOutcome.UNSENT
        body = self._bodies.pop(host, _NO_BODY)
        if body.error is not None:
            self.attempts.append(Attempt(host, str(body.error)))
            return AttemptOutcome.REFUSED
        answer = self._within_bounds(host, answer)
        outcome = outcome_of(answer)
        self._received[host] = _Received(answer, body, boot_ms())
        if outcome is not AttemptOutcome.FINAL:
            self._note_refusal(host, answer)
        return outcome

    def _within_bounds(self, host: HostInfo, answer: HttpAnswer) -> HttpAnswer:
        """A single key's answer; a refusal if it has left its bounds on the way, since another replica may do
        better."""
        if self.request.named is None:
            return answer
        now = boot_ms()
        timed = TimedAnswer(answer, as_of(answer, self._sent_boot_ms[host], now))
        by_now = answered_by_now(timed, self.request.spec.name, self._tolerance)
        return answer if is_final(by_now) else by_now

    def _note_refusal(self, host: HostInfo, answer: HttpAnswer) -> None:
        self.attempts.append(Attempt(host, "answered", answer))
        if answer.status in REFUSALS:
            self._router.cluster.on_auth_rejected(host, answer.status)
        if answer.status == NotHostedHere.status:
            self._router.discovery.refresh(host)

    def _finish(self, step: Finish[HostInfo]) -> HttpAnswer:
        self._router.counts["hedges_won"] += step.is_hedge
        self.answered_by = host = step.host
        answer, body, received_boot_ms = self._received[host]
        self.decoded, self.answer_bytes = body.decoded, body.size_bytes
        self.as_of_boot_ms = as_of(answer, self._sent_boot_ms[host], received_boot_ms)
        return answer

    def _give_up(self, step: GiveUp) -> None:
        self._gave_up = step
        if step.reason == "late":
            outcomes = dict.fromkeys(self._in_flight.values(), "no answer yet")
            known = {attempt.host for attempt in self.attempts}
            outcomes |= {host: "timeout" for host in self._received if host not in known}
            self.attempts += [Attempt(host, outcome) for host, outcome in outcomes.items()]


def note(router: Router, action: NoteSlow[HostInfo] | NoteThrottled) -> None:
    """Carry out an action that only records something."""
    if isinstance(action, NoteSlow):
        router.cluster.on_slow_read(action.host)
    else:
        router.counts["hedges_throttled"] += 1


def _policy(
    router: Router, request: ReplicaRequest, parameters: ReadParameters, deadline_boot_ms: float
) -> ReadPolicy[HostInfo]:
    large = request.dedicated_connection
    return ReadPolicy(
        PartitionReplicas(router, request.spec, request.partition, parameters, large),
        deadline_boot_ms,
        wait_ms=parameters.wait_ms,
        # Of a batch's keys each may have to wait.
        asks_before_waiting=may_be_elsewhere(parameters) and request.body is None,
        never_waits=request.no_wait,
        excluded=request.excluded,
    )


async def _first_of(
    requests: Iterable[asyncio.Future[HttpAnswer]], timeout_s: float
) -> tuple[set[asyncio.Future[HttpAnswer]], set[asyncio.Future[HttpAnswer]]]:
    return await asyncio.wait(requests, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
