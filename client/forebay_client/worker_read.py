"""One read of a partition by a partition-aware client: its workers are asked in a router's order.

What is asked next is ``ReadPolicy``'s decision. Requests go out one after the other, so there are no hedges.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import httpx

from forebay.clock import boot_ms
from forebay.errors import (
    DeadlineExceeded,
    NoReplica,
    NotHostedHere,
    Overloaded,
    PartitionerMismatch,
    Problem,
    UnknownStore,
)
from forebay.lag import UNKNOWN_LAG
from forebay.routing.failover_policy import Action, Ask, AttemptOutcome, Finish, GiveUp, ReadPolicy, Refresh
from forebay.streams_metadata import Generation, HostInfo
from forebay.wire.answer_aging import as_of_waited
from forebay.wire.key_changes import is_transient
from forebay.wire.retryable_statuses import TRANSIENT
from forebay.wire.server_sent_events import EVENTS_MEDIA_TYPE
from forebay_client.exchange import (
    Close,
    Discard,
    Opened,
    Plan,
    RefusalIn,
    Request,
    content_of,
    in_vain,
    mismatched,
    not_forebay,
    request_step,
)
from forebay_client.problems import problem_of_response
from forebay_client.target_partition import TargetPartition
from forebay_client.unix_sockets import http_url

_LEAST_PAUSE_S = 0.1
_PAUSE_S = 0.25
"""How soon another worker may have taken over."""
_LAG_STATUS = 412
_RETRYABLE_SOON = frozenset({412, 503})
"""Refusals of what a replica may be able to answer soon."""

Answer: TypeAlias = dict[str, Any] | Opened
"""A document, or a stream that has begun."""


class _PartitionReplicas:
    """A partition's replicas as a policy needs to know them: requests are not counted, and never hedged."""

    def __init__(self, target: TargetPartition, parameters: Mapping[str, Any]) -> None:
        self._target = target
        self._parameters = parameters
        self.newest: tuple[HostInfo, ...] = ()
        """The candidates, as they were last determined."""

    @property
    def generation(self) -> Generation:
        return self._target.workers.map.generation

    def candidates(self) -> tuple[HostInfo, ...]:
        self.newest = self._target.candidates(self._parameters)
        return self.newest

    def is_full(self, host: HostInfo) -> bool:
        return False

    def is_healthy(self, host: HostInfo) -> bool:
        return True

    def hedge_delay_ms(self) -> float:
        return math.inf

    def spend_hedge(self) -> bool:
        return False


class WorkerRead:
    """One pass over the workers of a partition: what they refused, and the answer of the one that had it.

    ``refresh`` plans to read the map anew if that is due.
    """

    def __init__(
        self,
        request: Request,
        target: TargetPartition,
        deadline_ms: float,
        refusal_in: RefusalIn,
        refresh: Callable[[float], Plan[None]],
        clock: Callable[[], float] = time.monotonic,
        decimals: bool = False,
    ) -> None:
        self._request = request
        self._decimals = decimals
        self._target = target
        self._workers = target.workers
        self._replicas = _PartitionReplicas(target, request.parameters)
        self._deadline_ms = deadline_ms
        self._refusal_in = refusal_in
        self._refresh = refresh
        self._clock = clock
        self._attempts: dict[HostInfo, dict[str, Any]] = {}
        self._refusals: dict[HostInfo, Problem] = {}
        self._resent: set[HostInfo] = set()
        self._has_mismatched = self._late = False
        self._answer: Answer | None = None
        self.as_of_boot_ms = 0.0
        """As of when the lag in the last answer is right."""

    def run(self) -> Plan[tuple[Answer, HostInfo] | None]:
        """The first final answer and who gave it, None if nobody has one; raises ``Problem``."""
        policy = self._policy()
        actions: Sequence[Action[HostInfo]] = policy.begin(self._now_ms())
        to_ask: deque[Ask[HostInfo]] = deque()
        while True:
            to_ask += [action for action in actions if isinstance(action, Ask)]
            match actions[-1]:
                case Finish(host):
                    return None if self._answer is None else (self._answer, host)
                case GiveUp(reason):
                    self._late = reason == "late"
                    return None
                case Refresh():
                    yield from self._refresh(self._deadline_ms)
                    actions = policy.refreshed(self._now_ms())
                case _:
                    host, lets_wait, _ = to_ask.popleft()
                    outcome = yield from self._ask(host, lets_wait=lets_wait)
                    actions = policy.settle([(host, outcome)], self._now_ms())

    def _policy(self) -> ReadPolicy[HostInfo]:
        parameters = self._request.parameters
        wait_ms = parameters.get("wait_ms") or 0
        asks_before_waiting = not (parameters.get("require_active") or self._request.streamed)
        return ReadPolicy(
            self._replicas, self._deadline_ms, wait_ms=wait_ms, asks_before_waiting=asks_before_waiting
        )

    def refusal(self) -> Problem:
        """The problem that sums up why there is no answer: the refusal shared by all, else no replica."""
        store, partition = self._target.spec.name, self._target.partition
        attempts, refusals = list(self._attempts.values()), list(self._refusals.values())
        if refusals and all(problem.status == _LAG_STATUS for problem in refusals):
            least = min(refusals, key=_lag_order)
            least.members["attempts"] = attempts
            return least
        if refusals and all(isinstance(problem, PartitionerMismatch) for problem in refusals):
            return refusals[0]
        members: dict[str, Any] = {"store": store, "partition": partition, "attempts": attempts}
        if self._late:
            return DeadlineExceeded(in_vain("No worker answered in time", attempts), **members)
        what = f"No worker could answer for partition {partition} of {store!r}"
        return NoReplica(in_vain(what, attempts), retry_after_s=1, **members)

    def pause_s(self) -> float | None:
        """When asking again may help; None if it does not."""
        refusals = self._refusals.values()
        if not self._request.patient or (refusals and all(problem.status == _LAG_STATUS for problem in refusals)):
            return None
        pauses = [float(problem.retry_after_s) for problem in refusals if problem.retry_after_s is not None]
        if len(refusals) < len(self._attempts) or not refusals or any(map(_is_elsewhere, refusals)):
            # Another worker may take over.
            pauses.append(_PAUSE_S)
        return max(_LEAST_PAUSE_S, min(pauses)) if pauses else None

    def _ask(self, host: HostInfo, *, lets_wait: bool) -> Plan[AttemptOutcome]:
        """Ask one worker; raises ``Problem`` if it answers with one that no other would answer otherwise."""
        request, workers = self._request, self._workers
        if not lets_wait:
            request = replace(request, parameters={**request.parameters, "wait_ms": None})
        left_ms = max(1.0, self._deadline_ms - self._now_ms())
        hosts_left = 1 + sum(other != host and other not in self._attempts for other in self._replicas.newest)
        workers.on_request(host)
        sent_boot_ms = boot_ms()
        reply = yield request_step(request, http_url(workers.url(host)), left_ms, hosts_left)
        if isinstance(reply, httpx.Response):
            self.as_of_boot_ms = as_of_waited(_waited_ms(reply), sent_boot_ms, boot_ms())
        if isinstance(reply, httpx.Response | Opened):
            return (yield from self._on_reply(request, host, reply))
        assert isinstance(reply, httpx.RequestError)
        self._note(host, f"{type(reply).__name__}: {reply}")
        if host not in self._resent and not isinstance(reply, httpx.ConnectError | httpx.TimeoutException):
            # It may have closed an idle connection just as the request was sent.
            self._resent.add(host)
            return AttemptOutcome.UNSENT
        workers.on_unreachable(host)
        return AttemptOutcome.FAILED

    def _on_reply(self, request: Request, host: HostInfo, reply: httpx.Response | Opened) -> Plan[AttemptOutcome]:
        if isinstance(reply, Opened):
            return (yield from self._on_stream(host, reply))
        if request.streamed:
            problem = problem_of_response(reply)
            if not is_transient(problem):
                raise problem
            return self._on_refusal(host, problem)
        content = content_of(request, reply, decimals=self._decimals)
        if isinstance(content, str):
            yield Discard(reply)
            if self._has_mismatched:
                raise mismatched(str(reply.url), content)
            self._has_mismatched = True
            self._note(host, f"answered with {content}")
            return AttemptOutcome.FAILED
        return self._on_content(host, content)

    def _on_stream(self, host: HostInfo, stream: Opened) -> Plan[AttemptOutcome]:
        if not stream.response.headers.get("content-type", "").startswith(EVENTS_MEDIA_TYPE):
            yield Close(stream)
            raise not_forebay(stream.response, "a stream of events")
        self._workers.on_answer(host, self._target.spec, ())
        self._answer = stream
        return AttemptOutcome.FINAL

    def _on_content(self, host: HostInfo, content: dict[str, Any] | Problem) -> AttemptOutcome:
        answers = [content.members] if isinstance(content, Problem) else _answers_in(content)
        name = str(host)
        other = next((one["host"] for one in answers if one.get("host", name) != name), None)
        if other is not None:
            # Another worker has got the address since the map was made.
            self._note(host, f"answered as {other}")
            self._workers.on_unreachable(host)
            return AttemptOutcome.FAILED
        self._workers.on_answer(host, self._target.spec, answers)
        problem = content if isinstance(content, Problem) else self._refusal_in(content)
        if problem is not None and (problem.status in TRANSIENT or isinstance(problem, UnknownStore)):
            return self._on_refusal(host, problem)
        if isinstance(content, Problem):
            raise content
        self._answer = content
        return AttemptOutcome.FINAL

    def _on_refusal(self, host: HostInfo, problem: Problem) -> AttemptOutcome:
        self._refusals[host] = problem
        self._note(host, "answered", status=problem.status, type=problem.type)
        if _is_elsewhere(problem):
            self._workers.on_outdated()
        if problem.status == Overloaded.status:
            return AttemptOutcome.OVERLOADED
        return AttemptOutcome.NOT_YET if problem.status in _RETRYABLE_SOON else AttemptOutcome.REFUSED

    def _note(self, host: HostInfo, outcome: str, **members: Any) -> None:
        self._attempts[host] = {"host": str(host), "outcome": outcome, **members}

    def _now_ms(self) -> float:
        return self._clock() * 1000


def _waited_ms(response: httpx.Response) -> int:
    """For how long a worker waited before it read anything."""
    waited_ms = response.headers.get("forebay-waited-ms", "")
    return int(waited_ms) if waited_ms.isdecimal() else 0


def _answers_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """What in a document names a replica: a single answer, those of a batch, or a list's partitions."""
    answers = document.get("results") or document.get("partitions") or [document]
    return [answer.get("problem", answer) for answer in answers]


def _is_elsewhere(problem: Problem) -> bool:
    """Whether the map is out of date."""
    return isinstance(problem, NotHostedHere)


def _lag_order(problem: Problem) -> tuple[float, ...]:
    return tuple(float("inf") if figure is None else figure for figure in problem.lag or UNKNOWN_LAG)
