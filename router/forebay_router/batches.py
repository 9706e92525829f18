"""``batch-get`` through the router: workers asked at once, each for all keys that it answers for."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from forebay.errors import Problem
from forebay.lag import boot_ms
from forebay.metadata import HostInfo
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.batches import batch_answer, read_batch_frames
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import FRAMES_MEDIA_TYPE, require_kind
from forebay.topology import StoreSpec
from forebay_router.attempts import Attempt, refusal
from forebay_router.keys import settled, verdict
from forebay_router.replica_read import Came, ReplicaRead, ReplicaRequest
from forebay_router.router import Router

_FRAMES = FRAMES_MEDIA_TYPE.encode()
_OF_THE_REPLICA = frozenset({412, 421, 503})
"""Statuses of a key's problem that another replica may not have."""

_Places = dict[int, list[int]]
"""Where in a request the keys of each partition are."""


async def batch_get(
    router: Router, store: str, keys: Sequence[Any], query: bytes, parameters: ReadParameters
) -> Answer:
    """Answer ``batch-get``; raises ``Problem``."""
    spec = router.spec(store)
    require_kind(spec, "key-value", "versioned")
    batch = _Batch(router, spec, keys, query, parameters, router.deadline(parameters))
    return batch_answer(keys, await batch.results())


@dataclass(frozen=True)
class _Batch:
    """One request's keys on their way."""

    router: Router
    spec: StoreSpec
    keys: Sequence[Any]
    query: bytes
    parameters: ReadParameters
    deadline_boot_ms: float

    async def results(self) -> list[Answer]:
        """Each key's answer, in order."""
        found: list[list[Came]] = [[] for _ in self.keys]
        by_partition: _Places = defaultdict(list)
        spec, from_json, partitions = self.spec, self.spec.key_codec.from_json, self.router.partitions
        for index, key in enumerate(self.keys):
            try:
                plain = from_json(key)
            except Problem as problem:
                found[index].append(Came(problem_answer(problem), boot_ms()))
                continue
            for partition in partitions(spec, plain):
                by_partition[partition].append(index)
        await self._gather(by_partition, found)
        return [verdict(self.spec, came) if len(came) > 1 else came[0].answer for came in found]

    async def _gather(self, by_partition: _Places, found: list[list[Came]]) -> None:
        """Ask workers at once, until each key is settled or all have answered."""
        asked = [asyncio.create_task(self._ask(group)) for group in self._groups(by_partition)]
        try:
            for task in asyncio.as_completed(asked):
                for index, answer in await task:
                    found[index].append(Came(answer, boot_ms()))
                if self.spec.stream_partitioner is None and all(
                    any(settled(answer) for answer, _ in came) for came in found
                ):
                    return
        finally:
            for one in asked:
                one.cancel()

    def _groups(self, by_partition: _Places) -> list[_Places]:
        """Partitions to ask for in one request each: those that have the same candidates in the same order."""
        if self.spec.stream_partitioner is None:
            # A worker must be told where to look.
            return [{partition: at} for partition, at in by_partition.items()]
        groups: dict[tuple[HostInfo, ...], _Places] = {}
        for partition, at in by_partition.items():
            hosts = tuple(self.router.candidates(self.spec, partition, self.parameters))
            groups.setdefault(hosts, {})[partition] = at
        return list(groups.values())

    async def _ask(self, group: _Places) -> list[tuple[int, Answer]]:
        """What some partitions have of their keys; of the next replica, what the one before refuses."""
        left = [(partition, index) for partition, at in group.items() for index in at]
        found: list[tuple[int, Answer]] = []
        attempts: dict[int, list[Attempt]] = defaultdict(list)
        asked: set[HostInfo] = set()
        while left:
            request = self._request(next(iter(group)), [self.keys[index] for _, index in left])
            request = replace(request, several=len(group) > 1, excluded=frozenset(asked))
            read = self.router.read(request, self.parameters, self.deadline_boot_ms)
            answer = await read.run()
            for _, index in left:
                attempts[index] += read.attempts
            if answer is None or answer.status != 200 or read.answered_by is None:
                found += [
                    (index, answer or self._refusal(read, partition, attempts[index])) for partition, index in left
                ]
                break
            asked.update(attempt.host for attempt in read.attempts)
            asked.add(read.answered_by)
            refused = []
            for place, result in zip(left, read_batch_frames(answer.body), strict=True):
                if result.status in _OF_THE_REPLICA:
                    attempts[place[1]].append(Attempt(read.answered_by, "answered", result))
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

    def _request(self, partition: int, keys: Sequence[Any]) -> ReplicaRequest:
        path = f"/v1/stores/{quote(self.spec.name, safe='')}/batch-get".encode()
        target = path + b"?" + self.query if self.query else path
        # Not escaped to ASCII, which would make it longer than a worker takes.
        body = json.dumps({"keys": keys}, ensure_ascii=False).encode()
        return ReplicaRequest(self.spec, partition, target, body, accept=_FRAMES, alone=True)
