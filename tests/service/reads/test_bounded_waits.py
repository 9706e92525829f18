"""Reads that wait."""

import asyncio
from contextlib import ExitStack

import pytest

from forebay.errors import Overloaded
from forebay_web.limits import Limit, Peer
from forebay_worker.reads.admission import BoundedWaits


async def test_the_more_reads_wait_the_seldomer_each_is_looked_at(monkeypatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    waits, peer = BoundedWaits(Limit("waiting", 4_096, "")), Peer("a")
    with ExitStack() as waiting:
        for _ in range(2_000):
            await waiting.enter_context(waits.one(peer))()
    with waits.one(peer) as pause:
        await pause()
    assert (pauses[0], pauses[1_999], pauses[-1]) == (0.005, pytest.approx(0.2), 0.005)


async def test_waiting_reads_are_bounded():
    """Reads that need not wait do not count."""
    waits, peer = BoundedWaits(Limit("waiting", 1, "ask without wait_ms")), Peer("a")
    with waits.one(peer), waits.one(peer) as pause, waits.one(peer) as another:
        await pause()
        await pause()
        with pytest.raises(Overloaded, match="ask without wait_ms"):
            await another()
    with waits.one(peer) as pause:
        await pause()
