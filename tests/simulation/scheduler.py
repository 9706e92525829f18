"""Virtual time: what is due runs in order, so that a run depends on nothing but its seed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Scheduler:
    """Runs actions at their times; ``on_step`` is called after each."""

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        self.now = 1_000_000.0
        self.on_step = on_step
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        """The present, in milliseconds."""
        return self.now

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run an action once so much time has passed."""
        heapq.heappush(self._due, (self.now + delay_ms, next(self._order), action))

    def run_for(self, duration_ms: float) -> None:
        """Let time pass; an action may do so too, as one that takes long."""
        until = self.now + duration_ms
        while self._due and self._due[0][0] <= until:
            at, _, action = heapq.heappop(self._due)
            self.now = max(at, self.now)
            action()
            self.on_step()
        self.now = max(until, self.now)

    def run_until(self, condition: Callable[[], bool], deadline_ms: float) -> bool:
        """Let time pass until a condition holds, for so long at most; returns whether it does."""
        until = self.now + deadline_ms
        while not condition() and self.now < until:
            at = self._due[0][0] if self._due else until
            self.run_for(min(at, until) - self.now)
        return condition()
