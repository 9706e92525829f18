"""Wakes many followers without taking the time of reads: a few per turn of the loop, and a pause after each turn.

Followers that wait for a time are woken so, too: the timers of thousands come due together once anything has held
the loop, and would hold it again each time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from forebay.clock import boot_ms

_LEAST_PER_TURN, _MOST_PER_TURN = 8, 64
_ROUND_MS = 4_000.0
"""Where others hold the loop for long, more are woken in a turn, so that all still come in so much time."""
_PAUSE_BY_WORK = 3.0
"""While all are busy, sending takes a quarter of the time: followers get fewer values, and reads keep theirs."""
_LEAST_PAUSE_MS = 2.0
"""Shorter pauses are added up: the loop's timers know milliseconds only."""
_MOST_WORK_MS = 10.0
"""What took longer was not the followers' work, but a stop of the process or of the loop."""
_ENDED_PER_TURN = 32

Waker: TypeAlias = Callable[[], None]


class PacedWakes:
    """Those that are to be woken, in rounds: each once in a round however often it is added meanwhile."""

    def __init__(
        self,
        pause_by_work: float = _PAUSE_BY_WORK,
        least_per_turn: int = _LEAST_PER_TURN,
        now_ms: Callable[[], float] = boot_ms,
    ) -> None:
        self._pause_by_work = pause_by_work
        self._least_per_turn = least_per_turn
        self._now_ms = now_ms
        self._next: dict[Waker, None] = {}
        self._next_over = asyncio.Event()
        self._left: list[Waker] = []
        """Of the present round."""
        self._over = asyncio.Event()
        self._due_ms = 0.0
        """When the present round should be over."""
        self._running = False
        self._turn_begun_ms: float | None = None
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
        # The loop counts whole milliseconds from a whole one, and whoever is woken too early waits once more.
        delay_ms = math.floor(max(0.0, due_boot_ms - self._now_ms())) + 2
        return asyncio.get_running_loop().call_later(delay_ms / 1000, self.add, (waker,))

    def _begin(self) -> None:
        self._left, self._next = list(self._next), {}
        self._over, self._next_over = self._next_over, asyncio.Event()
        self._turn_begun_ms = None
        if self._left:
            self._due_ms = self._now_ms() + _ROUND_MS
            self._wake()
        else:
            self._running = False
            self._over.set()

    def _wake(self) -> None:
        begun_ms = self._now_ms()
        count = self._count(begun_ms)
        woken, self._left = self._left[-count:], self._left[:-count]
        try:
            for wake in woken:
                wake()
        finally:
            # After those who were woken, which is in the loop's next turn.
            asyncio.get_running_loop().call_soon(self._pause, begun_ms)

    def _count(self, now_ms: float) -> int:
        """How many to wake in this turn: all are in time if the next turns take as long as the last one."""
        last_ms, self._turn_begun_ms = self._turn_begun_ms, now_ms
        if last_ms is None:
            return self._least_per_turn
        turns = max(1.0, (self._due_ms - now_ms) / max(1.0, now_ms - last_ms))
        return min(max(self._least_per_turn, math.ceil(len(self._left) / turns)), _MOST_PER_TURN)

    def _pause(self, begun_ms: float) -> None:
        self._owed_ms += self._pause_by_work * min(self._now_ms() - begun_ms, _MOST_WORK_MS)
        pause_ms = self._owed_ms if self._owed_ms >= _LEAST_PAUSE_MS else 0.0
        self._owed_ms -= pause_ms
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._go_on)

    def _go_on(self) -> None:
        if self._left:
            self._wake()
        else:
            self._over.set()
            self._begin()


_wakes: WeakKeyDictionary[asyncio.AbstractEventLoop, PacedWakes] = WeakKeyDictionary()
_ends: WeakKeyDictionary[asyncio.AbstractEventLoop, PacedWakes] = WeakKeyDictionary()


def paced_wakes() -> PacedWakes:
    """Those of the running loop: the followers of all stores and keys share what is theirs of the time."""
    loop = asyncio.get_running_loop()
    return _wakes.get(loop) or _wakes.setdefault(loop, PacedWakes())


def paced_ends() -> PacedWakes:
    """Those that end what clients have left, a few in each turn: others want their places."""
    loop = asyncio.get_running_loop()
    return _ends.get(loop) or _ends.setdefault(loop, PacedWakes(0.0, _ENDED_PER_TURN))
