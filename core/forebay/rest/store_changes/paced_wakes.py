"""Wakes many followers without taking the time of reads: a few per turn of the loop, and pauses after all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from forebay.clock import boot_ms

_WOKEN_PER_TURN = 8
_PAUSE_BY_WORK = 3.0
"""While all are busy, sending takes a quarter of the time: followers get fewer values, and reads keep theirs."""

Waker: TypeAlias = Callable[[], None]


class PacedWakes:
    """The followers of a process that are to be woken, each once however often it is added meanwhile."""

    def __init__(self) -> None:
        self._waiting: dict[Waker, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, wakers: Iterable[Waker]) -> None:
        """Wake these as soon as it is their turn."""
        self._waiting.update(dict.fromkeys(wakers))
        if self._waiting and self._idle.is_set():
            self._begin()

    async def idle(self) -> None:
        """Wait until all were woken, and what they do has taken no more than its part of the time."""
        await self._idle.wait()

    def _begin(self) -> None:
        waiting, self._waiting = list(self._waiting), {}
        if waiting:
            self._idle.clear()
            self._wake(waiting, boot_ms())
        else:
            self._idle.set()

    def _wake(self, waiting: list[Waker], begun_boot_ms: float) -> None:
        for wake in waiting[-_WOKEN_PER_TURN:]:
            wake()
        del waiting[-_WOKEN_PER_TURN:]
        loop = asyncio.get_running_loop()
        if waiting:
            loop.call_soon(self._wake, waiting, begun_boot_ms)
        else:
            loop.call_later(_PAUSE_BY_WORK * (boot_ms() - begun_boot_ms) / 1000, self._begin)
