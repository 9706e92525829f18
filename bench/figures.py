"""What was measured: rounds of figures, their medians, and the targets that they are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median


@dataclass(frozen=True)
class Target:
    """A bound on a row's ratio, or on its own median where ``of_ratio`` is false."""

    bound: float
    at_least: bool = True
    of_ratio: bool = True

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One comparison: a figure of forebay's per round, and the same of what it is held against, if anything."""

    what: str
    unit: str
    ours: tuple[float, ...]
    against: str = ""
    theirs: tuple[float, ...] = ()
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        """Ours by theirs, of the medians."""
        return median(self.ours) / median(self.theirs) if self.theirs and median(self.theirs) else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met, None without one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of_ratio else median(self.ours)
        return value is not None and self.target.met_by(value)


def interleaved(rounds: int, *sides: Callable[[], float]) -> list[tuple[float, ...]]:
    """Every side's figures, measured in turn (A B A B …), so that what else the machine does hits all alike."""
    measured = [[side() for side in sides] for _ in range(rounds)]
    return [tuple(column) for column in zip(*measured, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all are at or below (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, ceil(len(ranked) * percent / 100) - 1)]
