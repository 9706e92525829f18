"""``batch-get`` through the router: the keys of each partition asked of its replicas at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from forebay.errors import Problem
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
        by_partition: dict[int, list[int]] = {}
        for index, key in enumerate(self.keys):
            try:
                plain = self.spec.key_codec.from_json(key)
            except Problem as problem:
                found[index].append(problem_answer(problem))
                continue
            for partition in self.router.partitions(self.spec, plain):
                by_partition.setdefault(partition, []).append(index)
        await self._gather(by_partition, found)
        return [verdict(self.spec, answers) if len(answers) > 1 else answers[0] for answers in found]

    async def _gather(self, by_partition: dict[int, list[int]], found: list[list[Answer]]) -> None:
        """Ask partitions at once, until each key is settled or all have answered."""
        asked = [asyncio.create_task(self._ask(partition, at)) for partition, at in by_partition.items()]
        try:
            for task in asyncio.as_completed(asked):
                for index, answer in await task:
                    found[index].append(answer)
                if self.spec.stream_partitioner is None and all(any(map(settled, answers)) for answers in found):
                    return
        finally:
            for one in asked:
                one.cancel()

    async def _ask(self, partition: int, at: Sequence[int]) -> list[tuple[int, Answer]]:
        """What one partition has of some keys. Those that one replica refused are asked singly of the others."""
        answer = await self._send(partition, [self.keys[index] for index in at])
        if answer.status != 200:
            return [(index, answer) for index in at]
        found = read_batch_frames(answer.body)
        again = [i for i, result in enumerate(found) if result.status in _OF_THE_REPLICA]
        singles = await asyncio.gather(*(self._single(partition, self.keys[at[i]]) for i in again))
        for i, single in zip(again, singles, strict=True):
            found[i] = single
        return list(zip(at, found, strict=True))

    async def _single(self, partition: int, key: Any) -> Answer:
        return await self._send(partition, [key], single=True)

    async def _send(self, partition: int, keys: Sequence[Any], *, single: bool = False) -> Answer:
        path = f"/v1/stores/{quote(self.spec.name, safe='')}/batch-get".encode()
        target = path + b"?" + self.query if self.query else path
        body = json.dumps({"keys": keys}).encode()
        request = ReplicaRequest(self.spec, partition, target, body, accept=_FRAMES, alone=True, single=single)
        return await self.router.ask(request, self.parameters, self.deadline_boot_ms)
