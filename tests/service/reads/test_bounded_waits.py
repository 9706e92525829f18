"""Reads that wait."""

import asyncio
from contextlib import ExitStack

import pytest

from forebay.errors import Overloaded
from forebay_web.limits import Limit, Peer
from forebay_worker.reads.admission import bounded_wait


async def test_the_more_reads_wait_the_seldomer_each_is_looked_at(monkeypatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    limit, peer = Limit("waiting", 4_096, ""), Peer("a")
    with ExitStack() as waiting:
        for _ in range(2_000):
            await waiting.enter_context(bounded_wait(limit, peer))()
    with bounded_wait(limit, peer) as pause:
        await pause()
    assert (pauses[0], pauses[1_999], pauses[-1]) == (0.005, pytest.approx(0.2), 0.005)


async def test_waiting_reads_are_bounded():
    """Reads that need not wait do not count."""
    limit, peer = Limit("waiting", 1, "ask without wait_ms"), Peer("a")
    with bounded_wait(limit, peer), bounded_wait(limit, peer) as pause, bounded_wait(limit, peer) as another:
        await pause()
        await pause()
        with pytest.raises(Overloaded, match="ask without wait_ms"):
            await another()
    with bounded_wait(limit, peer) as pause:
        await pause()
