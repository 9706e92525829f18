"""Wakes many followers without taking the time of reads: a few per turn of the loop, and a pause after each turn.

Followers that wait for a time are woken so, too: the timers of thousands come due together once anything has held
the loop, and would hold it again each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from forebay.clock import boot_ms

_WOKEN_PER_TURN = 8
_PAUSE_BY_WORK = 3.0
"""While all are busy, sending takes a quarter of the time: followers get fewer values, and reads keep theirs."""
_LEAST_PAUSE_MS = 2.0
"""Shorter pauses are added up: the loop's timers know milliseconds only."""

Waker: TypeAlias = Callable[[], None]


class PacedWakes:
    """The followers that are to be woken, in rounds: each once in a round however often it is added meanwhile."""

    def __init__(self, now_ms: Callable[[], float] = boot_ms) -> None:
        self._now_ms = now_ms
        self._next: dict[Waker, None] = {}
        self._next_over = asyncio.Event()
        self._left: list[Waker] = []
        """Of the present round."""
        self._over = asyncio.Event()
        self._running = False
        self._owed_ms = 0.0

    def add(self, wakers: Iterable[Waker]) -> asyncio.Event:
        """Wake these as soon as it is their turn.

        The event is set once all were, and what they do has taken no more than its part of the time.
        """
        over = self._next_over
        self._next.update(dict.fromkeys(wakers))
        if not self._running:
            self._running = True
            self._begin()
        return over

    def at(self, waker: Waker, due_boot_ms: float) -> asyncio.TimerHandle:
        """Wake one once it is time and its turn; until it is time, what is returned can be cancelled."""
        delay_s = max(0.0, due_boot_ms - self._now_ms()) / 1000
        return asyncio.get_running_loop().call_later(delay_s, self.add, (waker,))

    def _begin(self) -> None:
        self._left, self._next = list(self._next), {}
        self._over, self._next_over = self._next_over, asyncio.Event()
        if self._left:
            self._wake()
        else:
            self._running = False
            self._over.set()

    def _wake(self) -> None:
        begun = self._now_ms()
        for wake in self._left[-_WOKEN_PER_TURN:]:
            wake()
        del self._left[-_WOKEN_PER_TURN:]
        # After those who were woken, which is in the loop's next turn.
        asyncio.get_running_loop().call_soon(self._pause, begun)

    def _pause(self, begun_ms: float) -> None:
        self._owed_ms += _PAUSE_BY_WORK * (self._now_ms() - begun_ms)
        pause_ms = self._owed_ms if self._owed_ms >= _LEAST_PAUSE_MS else 0.0
        self._owed_ms -= pause_ms
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._go_on)

    def _go_on(self) -> None:
        if self._left:
            self._wake()
        else:
            self._over.set()
            self._begin()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, PacedWakes] = WeakKeyDictionary()


def paced_wakes() -> PacedWakes:
    """Those of the running loop: the followers of all stores and keys share what is theirs of the time."""
    loop = asyncio.get_running_loop()
    return _of_loops.get(loop) or _of_loops.setdefault(loop, PacedWakes())
