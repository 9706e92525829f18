"""Wakes followers one in each turn of the event loop, with rests: reads come in between however many there are."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from forebay.clock import boot_ms

Waker: TypeAlias = Callable[[], None]

_BETWEEN_RESTS = 8
_REST_BY_WORK = 3.0
"""While all are busy, followers take a quarter of the time: they get fewer values, and reads keep theirs."""
_MAX_WORK_MS = 10.0
"""What took longer was not the followers' work, but a stop of the process."""


class FollowerTurns:
    """The followers that are to be woken, each once however often it is added meanwhile."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Waker, None] = OrderedDict()
        self._waking: asyncio.Task[None] | None = None

    def add(self, *wakers: Waker) -> None:
        """Wake these after those that wait already."""
        self._waiting.update(dict.fromkeys(wakers))
        if self._waking is None:
            self._waking = asyncio.ensure_future(self._wake_waiting())

    async def wake(self, wakers: Iterable[Waker]) -> None:
        """Wake these, and return once each had its turn."""
        done = asyncio.Event()
        self.add(*wakers, done.set)
        await done.wait()

    async def _wake_waiting(self) -> None:
        while self._waiting:
            begun = boot_ms()
            for _ in range(min(_BETWEEN_RESTS, len(self._waiting))):
                wake, _ = self._waiting.popitem(last=False)
                asyncio.get_running_loop().call_soon(wake)
                await asyncio.sleep(0)
            await asyncio.sleep(_REST_BY_WORK * min(boot_ms() - begun, _MAX_WORK_MS) / 1000)
        self._waking = None


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FollowerTurns] = WeakKeyDictionary()


def follower_turns() -> FollowerTurns:
    """Those of the running loop, which the followers of all stores and keys share."""
    loop = asyncio.get_running_loop()
    return _turns.get(loop) or _turns.setdefault(loop, FollowerTurns())


async def wait_until(woken: asyncio.Event, due_boot_ms: float) -> None:
    """Wait until an event is set. Once the time is over, it is set when it is this follower's turn.

    Why: timers of thousands come due together once anything has held the loop.
    """
    # Loops count whole milliseconds.
    delay_ms = math.ceil(max(0.0, due_boot_ms - boot_ms()))
    timer = asyncio.get_running_loop().call_later(delay_ms / 1000, follower_turns().add, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
