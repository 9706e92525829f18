"""``batch-get`` through the router: workers are asked at once, each for all its keys."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from forebay.clock import boot_ms
from forebay.errors import AnswerTooLarge, NotHostedHere, Problem
from forebay.event_loop_turns import in_turns
from forebay.grants import Access
from forebay.lag import UNLIMITED, Tolerance
from forebay.store_kinds import SINGLE_VALUE_KINDS
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay.wire.answer_aging import time_reserved_for_retry_ms
from forebay.wire.answers import OF_THE_REPLICA, HttpAnswer, problem_answer
from forebay.wire.batches import (
    BatchKeys,
    KeyResult,
    key_result,
    read_batch,
    read_plain,
    require_size,
)
from forebay.wire.parameters import ReadParameters, parse_parameters
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE
from forebay.wire.scans import require_kind
from forebay_router.metrics import RouterMetrics
from forebay_router.reads.keys import decides, verdict
from forebay_router.reads.refusals import RETRYABLE_SOON, Attempt, refusal
from forebay_router.reads.replica_read import ReplicaRead
from forebay_router.reads.replica_request import (
    ReplicaRequest,
    TimedAnswer,
    may_be_elsewhere,
)
from forebay_router.reads.send_window import SendWindow
from forebay_router.router import Router
from forebay_web.large_answers import (
    LargeAnswer,
    batch_answer_in_turns,
    lag_by_now,
    read_batch_frames_in_turns,
    results_by_now,
)
from forebay_web.limits import Held, Peer
from forebay_web.routes import BATCH_ROUTE

_FRAMES = FRAMES_MEDIA_TYPE.encode()
_MIN_AGE_MS = 1.0
"""Figures of a lag are whole milliseconds."""

_Places = dict[int, list[int]]
"""The places of each partition's keys in a request."""


class _ResultGroup(NamedTuple):
    """Results that came together: the places of their keys in a request, and as of when they are right."""

    places: Sequence[int]
    results: Sequence[KeyResult]
    as_of_boot_ms: float


async def batch_get(
    router: Router,
    metrics: RouterMetrics,
    store: str,
    query: bytes,
    body: bytes,
    peer: Peer,
    memory: Held,
    access: Access | None = None,
) -> HttpAnswer | LargeAnswer:
    """Answer a peer's ``batch-get`` whose body has arrived, and count it; what arrives is held in ``memory``.

    With an ``access``, each key has to be within it.
    """
    answer: HttpAnswer | LargeAnswer
    try:
        parameters = parse_parameters(query, BATCH_ROUTE.parameters)
        spec = parameters.written(router.spec(store))
        require_kind(spec, *SINGLE_VALUE_KINDS)
        deadline = router.deadline(parameters)
        with router.admitted(peer, parameters):
            keys = await read_batch(body)
            if access is not None:
                await in_turns(access.require_keys("read", spec, keys.values))
            if keys.large:
                memory.take(len(body))
            tolerance = router.tolerance(spec, parameters)
            with contextlib.closing(SendWindow(memory, spec.partitions)) as window:
                batch = _BatchGet(router, spec, keys, query, parameters, deadline, tolerance, memory, window)
                results = await batch.results()
            answer = await batch_answer_in_turns(keys, results)
            metrics.count_batch(store, results)
    except Problem as problem:
        answer = problem_answer(problem)
        metrics.count(BATCH_ROUTE.path, answer.status, store, problem.name)
    return answer


class _AttemptHistory(NamedTuple):
    """The outcome for keys so far: their attempts, by place in the request, and the workers asked."""

    attempts: Mapping[int, Sequence[Attempt]] = MappingProxyType({})
    hosts: frozenset[HostInfo] = frozenset()

    def attempts_at(self, place: int, read: ReplicaRead) -> list[Attempt]:
        """Those for one key, with a later read's."""
        return [*self.attempts.get(place, ()), *read.attempts]


class _BatchResults:
    """The results for a request's keys, by place, as they come."""

    def __init__(self, keys: int) -> None:
        self.results: list[Any] = [None] * keys
        self._as_of_boot_ms = [math.inf] * keys

    def take(self, found: Iterable[_ResultGroup]) -> None:
        """Results that came, instead of those before."""
        for places, results, as_of_boot_ms in found:
            for place, result in zip(places, results, strict=True):
                self.results[place] = result
                self._as_of_boot_ms[place] = as_of_boot_ms

    def early(self, tolerance: Tolerance) -> set[int]:
        """The places of those that have left their bounds while waiting for others."""
        if tolerance == UNLIMITED:
            return set()
        now = boot_ms()
        lags = [
            lag_by_now(result, now - as_of_boot_ms)
            for result, as_of_boot_ms in zip(self.results, self._as_of_boot_ms, strict=True)
        ]
        return {place for place, lag in enumerate(lags) if lag is not None and not tolerance.met_by(lag)}

    async def by_now(self, store: str, tolerance: Tolerance) -> list[KeyResult]:
        """All as they are now, a problem in place of each that has left its bounds."""
        now = boot_ms()
        if tolerance == UNLIMITED and now - min(self._as_of_boot_ms, default=now) < _MIN_AGE_MS:
            return self.results
        return await results_by_now(self.results, self._as_of_boot_ms, tolerance, store)


class _ArrivingAnswer:
    """The memory for one worker's answer, held from when its size is known, before it is read."""

    def __init__(self, memory: Held) -> None:
        self._memory = memory
        self._held_bytes = 0

    def admit(self, size_bytes: int) -> None:
        """Hold what an answer is going to take; raises ``Overloaded``."""
        self._memory.take(size_bytes)
        self._held_bytes += size_bytes

    def settle(self, size_bytes: int) -> None:
        """Hold what has arrived, and give the rest back; raises ``Overloaded``."""
        if size_bytes > self._held_bytes:
            self.admit(size_bytes - self._held_bytes)
        else:
            self._memory.adjust(size_bytes - self._held_bytes)
            self._held_bytes = size_bytes


@dataclass(frozen=True)
class _BatchGet:
    """One request's keys on their way."""

    router: Router
    spec: StoreSpec
    keys: BatchKeys
    query: bytes
    parameters: ReadParameters
    deadline_boot_ms: float
    tolerance: Tolerance
    memory: Held
    window: SendWindow
    no_wait: bool = False
    """Workers are not to wait."""

    async def results(self) -> list[KeyResult]:
        """Each key's answer or problem, in order."""
        results = _BatchResults(len(self.keys.values))
        plains, faults = await read_plain(self.spec.key_codec, self.keys)
        results.take([_ResultGroup(list(faults), list(faults.values()), boot_ms())])
        left_ms = self.deadline_boot_ms - boot_ms()
        until = self.deadline_boot_ms - time_reserved_for_retry_ms(self.tolerance, left_ms)
        if may_be_elsewhere(self.parameters) or (self.parameters.wait_ms and self.spec.store_kind.has_forms):
            # First whatever some replica can answer at once.
            results.take(await replace(self, no_wait=True)._lookup(plains, until))
            left = [place for place in plains if results.results[place[0]][0] in RETRYABLE_SOON]
        else:
            left = plains
        results.take(await self._lookup(left, until))
        early = results.early(self.tolerance)
        if early and boot_ms() < self.deadline_boot_ms:
            # Once more: those that kept the others waiting are not asked again.
            again = replace(self, parameters=self.parameters.of_a_reread)
            results.take(
                await again._lookup([place for place in plains if place[0] in early], self.deadline_boot_ms)
            )
        return await results.by_now(self.spec.name, self.tolerance)

    async def _lookup(self, plains: list[tuple[int, bytes]], until: float) -> list[_ResultGroup]:
        """Ask for some keys."""
        if self.spec.stream_partitioner is None:
            return await self._in_every_partition(plains, until)
        return await self._where_they_are(plains, until)

    async def _where_they_are(self, plains: list[tuple[int, bytes]], until: float) -> list[_ResultGroup]:
        """Ask for each key at its replicas, with one request for all partitions with the same candidates."""
        by_partition: _Places = defaultdict(list)
        found = map(self.spec.partition_of, [plain for _, plain in plains])
        partitions = await in_turns(found) if self.keys.large else found
        for (index, _), partition in zip(plains, partitions, strict=True):
            by_partition[partition].append(index)
        return await self._ask_each(by_partition, until, _AttemptHistory())

    async def _ask_each(self, by_partition: _Places, until: float, history: _AttemptHistory) -> list[_ResultGroup]:
        """Ask for keys, with one request for all partitions with the same candidates."""
        groups: dict[tuple[HostInfo, ...], _Places] = {}
        for partition, at in by_partition.items():
            hosts = tuple(self.router.candidates(self.spec, partition, self.parameters))
            groups.setdefault(hosts, {})[partition] = at
        if len(groups) == 1:
            (only,) = groups.values()
            return await self._ask(only, until, history)
        found: list[_ResultGroup] = []
        async for some in self._as_completed(groups.values(), until, history):
            found += some
        return found

    async def _in_every_partition(self, plains: list[tuple[int, bytes]], until: float) -> list[_ResultGroup]:
        """Ask every partition for all keys, until each key is settled or all have answered."""
        timed_answers: dict[int, list[TimedAnswer]] = {index: [] for index, _ in plains}
        undecided = set(timed_answers)
        everywhere = range(self.spec.partitions) if timed_answers else ()
        groups = [{partition: list(timed_answers)} for partition in everywhere]
        # The same for all.
        sent = self.keys.body(list(timed_answers))
        await self.window.reserve(len(sent), len(groups))
        completed = self._as_completed(groups, until, _AttemptHistory(), sent)
        async with contextlib.aclosing(completed) as groups_done:
            async for some in groups_done:
                for indices, results, as_of_boot_ms in some:
                    for index, (status, body) in zip(indices, results, strict=True):
                        answer = HttpAnswer(status, b"", body)
                        timed_answers[index].append(TimedAnswer(answer, as_of_boot_ms))
                        if decides(self.spec, answer):
                            undecided.discard(index)
                if not undecided:
                    break
        self.window.release()
        return await in_turns(self._verdict(index, of_one) for index, of_one in timed_answers.items())

    def _verdict(self, index: int, timed_answers: list[TimedAnswer]) -> _ResultGroup:
        answer = verdict(self.spec, timed_answers)
        as_of_boot_ms = next((each.as_of_boot_ms for each in timed_answers if each.answer is answer), boot_ms())
        return _ResultGroup([index], [key_result(answer)], as_of_boot_ms)

    async def _as_completed(
        self, groups: Iterable[_Places], until: float, history: _AttemptHistory, body: bytes | None = None
    ) -> AsyncGenerator[list[_ResultGroup], None]:
        """Ask for all groups at once; if the consumer stops, the rest is stopped."""
        tasks = [asyncio.create_task(self._ask(group, until, history, body)) for group in groups]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for one in tasks:
                one.cancel()

    async def _ask(
        self, group: _Places, until: float, history: _AttemptHistory, body: bytes | None = None
    ) -> list[_ResultGroup]:
        """Some partitions' results for their keys; keys that one replica refuses are asked of others."""
        indices = [index for at in group.values() for index in at]
        arriving = _ArrivingAnswer(self.memory)
        body = self.keys.body(indices) if body is None else body
        request = self._request(next(iter(group)), body, indices, len(group) > 1, history.hosts)
        read = ReplicaRead(self.router, replace(request, admit=arriving.admit), self.parameters, until)
        async with self.window.sending(len(body)):
            answer = await read.run()
        arriving.settle(read.answer_bytes)
        if answer is not None and answer.status == AnswerTooLarge.status:
            require_size(self.router.settings.max_answer_bytes + 1, self.router.settings.max_answer_bytes)
        if answer is None or answer.status != 200 or read.answered_by is None:
            return await in_turns(self._without_answer(group, read, answer, history))
        require_size(self.memory.amount - self.window.held_bytes, self.router.settings.max_answer_bytes)
        statuses, bodies = read.decoded
        results = list(zip(statuses, bodies, strict=True))
        if OF_THE_REPLICA.isdisjoint(statuses):
            return [_ResultGroup(indices, results, read.as_of_boot_ms)]
        return await self._ask_others(group, dict(zip(indices, results, strict=True)), read, until, history)

    def _without_answer(
        self, group: _Places, read: ReplicaRead, answer: HttpAnswer | None, history: _AttemptHistory
    ) -> Iterator[_ResultGroup]:
        """What no replica answered, or one with a problem for all keys."""
        now = boot_ms()
        for partition, at in group.items():
            for index in at:
                attempts = history.attempts_at(index, read)
                yield _ResultGroup([index], [key_result(answer or self._refusal(read, partition, attempts))], now)

    async def _ask_others(
        self,
        group: _Places,
        results: Mapping[int, KeyResult],
        read: ReplicaRead,
        until: float,
        history: _AttemptHistory,
    ) -> list[_ResultGroup]:
        """The results that are final, and those of other replicas for the keys that this one refused."""
        assert read.answered_by is not None
        found: list[_ResultGroup] = []
        refused: _Places = defaultdict(list)
        attempts = dict(history.attempts)
        for partition, at in group.items():
            for index in at:
                status, body = results[index]
                if status not in OF_THE_REPLICA:
                    found.append(_ResultGroup([index], [(status, body)], read.as_of_boot_ms))
                    continue
                refused[partition].append(index)
                attempt = Attempt(read.answered_by, "answered", HttpAnswer(status, b"", body))
                attempts[index] = [*history.attempts_at(index, read), attempt]
                if status == NotHostedHere.status:
                    self.router.discovery.refresh(read.answered_by)
        met = {read.answered_by, *(attempt.host for attempt in read.attempts)}
        return found + await self._ask_each(refused, until, _AttemptHistory(attempts, history.hosts | met))

    def _refusal(self, read: ReplicaRead, partition: int, attempts: Sequence[Attempt]) -> HttpAnswer:
        """Why a key has no answer: the answers of the replicas asked for it, if any."""
        if any(attempt.answer is not None for attempt in attempts):
            return refusal(self.spec.name, partition, attempts)
        return read.refusal(partition)

    def _request(
        self,
        partition: int,
        body: bytes,
        places: Sequence[int],
        multi_partition: bool,
        excluded: frozenset[HostInfo],
    ) -> ReplicaRequest:
        path = b"/v1/stores/%b/batch-get" % self.spec.name_bytes
        target = path + b"?" + self.query if self.query else path
        return ReplicaRequest(
            self.spec,
            partition,
            target,
            body,
            accept=_FRAMES,
            dedicated_connection=True,
            multi_partition=multi_partition,
            excluded=excluded,
            no_wait=self.no_wait,
            memory=self.memory,
            decode=partial(read_batch_frames_in_turns, count=len(places)),
        )
