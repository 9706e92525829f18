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
from forebay.metadata import HostInfo
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.batches import batch_answer, read_batch_frames
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import FRAMES_MEDIA_TYPE, require_kind
from forebay.topology import StoreSpec
from forebay_router.keys import settled, verdict
from forebay_router.replica_read import ReplicaRequest
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
        found: list[list[Answer]] = [[] for _ in self.keys]
        by_partition: _Places = defaultdict(list)
        spec, from_json, partitions = self.spec, self.spec.key_codec.from_json, self.router.partitions
        for index, key in enumerate(self.keys):
            try:
                plain = from_json(key)
            except Problem as problem:
                found[index].append(problem_answer(problem))
                continue
            for partition in partitions(spec, plain):
                by_partition[partition].append(index)
        await self._gather(by_partition, found)
        return [verdict(self.spec, answers) if len(answers) > 1 else answers[0] for answers in found]

    async def _gather(self, by_partition: _Places, found: list[list[Answer]]) -> None:
        """Ask workers at once, until each key is settled or all have answered."""
        asked = [asyncio.create_task(self._ask(group)) for group in self._groups(by_partition)]
        try:
            for task in asyncio.as_completed(asked):
                for index, answer in await task:
                    found[index].append(answer)
                if self.spec.stream_partitioner is None and all(any(map(settled, answers)) for answers in found):
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
        """What some partitions have of their keys. What one replica refused is asked singly of the others."""
        places = [(partition, index) for partition, at in group.items() for index in at]
        request = self._request(next(iter(group)), [self.keys[index] for _, index in places])
        request = replace(request, several=len(group) > 1)
        answers = await self.router.ask_together(request, list(group), self.parameters, self.deadline_boot_ms)
        if answers[0].status != 200:
            of = dict(zip(group, answers, strict=True))
            return [(index, of[partition]) for partition, index in places]
        found = read_batch_frames(answers[0].body)
        again = [i for i, result in enumerate(found) if result.status in _OF_THE_REPLICA]
        singles = await asyncio.gather(*(self._single(*places[i]) for i in again))
        for i, single in zip(again, singles, strict=True):
            found[i] = single
        return [(index, answer) for (_, index), answer in zip(places, found, strict=True)]

    async def _single(self, partition: int, index: int) -> Answer:
        request = replace(self._request(partition, [self.keys[index]]), single=True)
        return await self.router.ask(request, self.parameters, self.deadline_boot_ms)

    def _request(self, partition: int, keys: Sequence[Any]) -> ReplicaRequest:
        path = f"/v1/stores/{quote(self.spec.name, safe='')}/batch-get".encode()
        target = path + b"?" + self.query if self.query else path
        body = json.dumps({"keys": keys}).encode()
        return ReplicaRequest(self.spec, partition, target, body, accept=_FRAMES, alone=True)
