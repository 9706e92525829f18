"""``batch-get`` through the router: workers asked at once, each for all keys that it answers for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from forebay.errors import Problem
from forebay.lag import boot_ms
from forebay.metadata import HostInfo
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.batches import KeyResult, batch_answer, read_batch_frames, read_batch_keys
from forebay.rest.parameters import ReadParameters, parse_parameters
from forebay.rest.routes import BATCH_ROUTE
from forebay.rest.scans import FRAMES_MEDIA_TYPE, require_kind
from forebay.topology import StoreSpec
from forebay_router.attempts import Attempt, refusal
from forebay_router.keys import settled, verdict
from forebay_router.metrics import RouterMetrics
from forebay_router.replica_read import Came, ReplicaRead, ReplicaRequest
from forebay_router.router import Router

_FRAMES = FRAMES_MEDIA_TYPE.encode()
_OF_THE_REPLICA = frozenset({412, 421, 503})
"""Statuses of a key's problem that another replica may not have."""

_Places = dict[int, list[int]]
"""Where in a request the keys of each partition are."""
_Found = tuple[int, KeyResult]
"""Where in a request a key is, and what was said of it."""


async def batch_get(router: Router, metrics: RouterMetrics, store: str, query: bytes, body: bytes) -> Answer:
    """Answer a ``batch-get`` whose body is here, and count it."""
    begun_boot_ms = boot_ms()
    try:
        parameters = parse_parameters(query, BATCH_ROUTE.parameters)
        keys = read_batch_keys(body)
        spec = router.spec(store)
        require_kind(spec, "key-value", "versioned")
        with router.admitted():
            batch = _Batch(router, spec, keys, query, parameters, router.deadline(parameters))
            answer = batch_answer(keys, await batch.results())
    except Problem as problem:
        answer = problem_answer(problem)
    metrics.count(BATCH_ROUTE.path, answer.status)
    metrics.answer_ms[BATCH_ROUTE.path].observe(boot_ms() - begun_boot_ms)
    return answer


@dataclass(frozen=True)
class _Batch:
    """One request's keys on their way."""

    router: Router
    spec: StoreSpec
    keys: Sequence[Any]
    query: bytes
    parameters: ReadParameters
    deadline_boot_ms: float

    async def results(self) -> list[KeyResult]:
        """Each key's answer or problem, in order."""
        results: list[Any] = [None] * len(self.keys)
        plains: list[tuple[int, bytes]] = []
        from_json = self.spec.key_codec.from_json
        for index, key in enumerate(self.keys):
            try:
                plains.append((index, from_json(key)))
            except Problem as problem:
                results[index] = _result(problem_answer(problem))
        found = self._in_every_partition if self.spec.stream_partitioner is None else self._where_they_are
        for index, result in await found(plains):
            results[index] = result
        return results

    async def _where_they_are(self, plains: list[tuple[int, bytes]]) -> list[_Found]:
        """Ask for each key where it is; for those of partitions with the same candidates in one request."""
        by_partition: _Places = defaultdict(list)
        partition_of = self.spec.partition_of
        for index, plain in plains:
            by_partition[partition_of(plain)].append(index)
        groups: dict[tuple[HostInfo, ...], _Places] = {}
        for partition, at in by_partition.items():
            hosts = tuple(self.router.candidates(self.spec, partition, self.parameters))
            groups.setdefault(hosts, {})[partition] = at
        if len(groups) == 1:
            return await self._ask(*groups.values())
        found: list[_Found] = []
        async for some in self._as_they_come(groups.values()):
            found += some
        return found

    async def _in_every_partition(self, plains: list[tuple[int, bytes]]) -> list[_Found]:
        """Ask every partition for all keys, until each is settled or all have answered."""
        came: dict[int, list[Came]] = {index: [] for index, _ in plains}
        everywhere = range(self.spec.partitions) if came else ()
        async with contextlib.aclosing(self._as_they_come([{p: list(came)} for p in everywhere])) as coming:
            async for some in coming:
                now = boot_ms()
                for index, (status, body) in some:
                    came[index].append(Came(Answer(status, b"", body), now))
                if all(any(settled(answer) for answer, _ in of_one) for of_one in came.values()):
                    break
        return [(index, _result(verdict(self.spec, of_one))) for index, of_one in came.items()]

    async def _as_they_come(self, groups: Iterable[_Places]) -> AsyncGenerator[list[_Found], None]:
        """Ask for all groups at once; who stops listening stops the rest."""
        asked = [asyncio.create_task(self._ask(group)) for group in groups]
        try:
            for task in asyncio.as_completed(asked):
                yield await task
        finally:
            for one in asked:
                one.cancel()

    async def _ask(self, group: _Places) -> list[_Found]:
        """What some partitions have of their keys; of the next replica, what the one before refuses."""
        left = [(partition, index) for partition, at in group.items() for index in at]
        found: list[_Found] = []
        attempts: dict[int, list[Attempt]] = defaultdict(list)
        asked: set[HostInfo] = set()
        while left:
            request = self._request(
                next(iter(group)), [self.keys[index] for _, index in left], len(group) > 1, frozenset(asked)
            )
            read = self.router.read(request, self.parameters, self.deadline_boot_ms)
            answer = await read.run()
            if read.attempts:
                for _, index in left:
                    attempts[index] += read.attempts
            if answer is None or answer.status != 200 or read.answered_by is None:
                found += [
                    (index, _result(answer or self._refusal(read, partition, attempts[index])))
                    for partition, index in left
                ]
                break
            asked.update(attempt.host for attempt in read.attempts)
            asked.add(read.answered_by)
            refused = []
            for place, result in zip(left, read_batch_frames(answer.body), strict=True):
                status, body = result
                if status in _OF_THE_REPLICA:
                    attempts[place[1]].append(Attempt(read.answered_by, "answered", Answer(status, b"", body)))
                    refused.append(place)
                else:
                    found.append((place[1], result))
            left = refused
        return found

    def _refusal(self, read: ReplicaRead, partition: int, attempts: Sequence[Attempt]) -> Answer:
        """Why a key has no answer: what the replicas that were asked for it said, if any did."""
        if any(attempt.answer is not None for attempt in attempts):
            return refusal(self.spec.name, partition, attempts)
        return read.refusal(partition)

    def _request(
        self, partition: int, keys: Sequence[Any], several: bool, excluded: frozenset[HostInfo]
    ) -> ReplicaRequest:
        path = f"/v1/stores/{quote(self.spec.name, safe='')}/batch-get".encode()
        target = path + b"?" + self.query if self.query else path
        # Not escaped to ASCII, which would make it longer than a worker takes.
        body = json.dumps({"keys": keys}, ensure_ascii=False).encode()
        return ReplicaRequest(
            self.spec,
            partition,
            target,
            body,
            accept=_FRAMES,
            alone=True,
            several=several,
            excluded=excluded,
        )


def _result(answer: Answer) -> KeyResult:
    return answer.status, answer.body
