"""Batches whose keys may be anywhere, asked of scripted replicas."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest

from forebay.clock import boot_ms
from forebay.lag import UNLIMITED
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay_router.reads import batches
from forebay_router.reads.batches import batch_get
from forebay_web.limits import Held, Limit, Peer

PARTITIONS = 5
SPEC = StoreSpec("s", "key-value", "string", "json", "unknown", "t", PARTITIONS)


class Replicas:
    """Stands for all replicas: the last partition has the keys."""

    def __init__(self, memory: Held) -> None:
        self._memory = memory
        self.bodies: list[bytes] = []
        self.at_once = self.max_at_once = self.max_held_bytes = 0

    def read(self, router, request, parameters, deadline_boot_ms):
        return SimpleNamespace(run=lambda: self._run(request), **self._results(request))

    def _results(self, request):
        count = len(json.loads(request.body)["keys"])
        result = (200, b'{"value":1}') if request.partition == PARTITIONS - 1 else (404, b"{}")
        decoded = ([result[0]] * count, [result[1]] * count)
        host = HostInfo("h", 1)
        return {"decoded": decoded, "answered_by": host, "answer_bytes": 10, "as_of_boot_ms": boot_ms()}

    async def _run(self, request):
        self.bodies.append(request.body)
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        self.max_held_bytes = max(self.max_held_bytes, self._memory.amount)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        return SimpleNamespace(status=200)


ROUTER = SimpleNamespace(
    spec=lambda store: SPEC,
    deadline=lambda parameters: boot_ms() + 5_000,
    tolerance=lambda spec, parameters: UNLIMITED,
    admitted=lambda peer, parameters: contextlib.nullcontext(),
    settings=SimpleNamespace(max_answer_bytes=32 << 20),
)
METRICS = SimpleNamespace(count=lambda *_: None, count_batch=lambda *_: None, observe_ms=lambda *_: None)


def batch(size_bytes: int) -> bytes:
    keys = max(1, size_bytes // 4000)
    return json.dumps({"keys": [f"{key:03}".ljust(size_bytes // keys, "x") for key in range(keys)]}).encode()


@pytest.mark.parametrize(("size_bytes", "at_once"), [(40, PARTITIONS), (900_000, 2), (1_900_000, 1)])
async def test_large_batches_are_sent_to_few_partitions_at_once(monkeypatch, size_bytes, at_once):
    """All have the same body, which is encoded once and counted for each that is asked."""
    memory = Held(Limit("memory", 64 << 20, "no memory"), Peer("a"))
    replicas = Replicas(memory)
    monkeypatch.setattr(batches, "ReplicaRead", replicas.read)
    answer = await batch_get(ROUTER, METRICS, "s", b"", batch(size_bytes), Peer("a"), memory)
    assert answer.status == 200
    assert len(replicas.bodies) == PARTITIONS
    assert all(body is replicas.bodies[0] for body in replicas.bodies)
    assert replicas.max_at_once == at_once
    assert replicas.max_held_bytes >= at_once * size_bytes
    assert memory.amount < 2 * size_bytes + 100


async def test_large_batches_are_refused_without_memory(monkeypatch):
    memory = Held(Limit("memory", 3 << 20, "no memory"), Peer("a"))
    replicas = Replicas(memory)
    monkeypatch.setattr(batches, "ReplicaRead", replicas.read)
    answer = await batch_get(ROUTER, METRICS, "s", b"", batch(1_500_000), Peer("a"), memory)
    assert (answer.status, replicas.bodies) == (429, [])
