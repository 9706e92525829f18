"""How fast a quantity grows, by least squares over its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import linear_regression


@dataclass(frozen=True)
class Slope:
    """Growth a minute, and its standard error."""

    per_minute: float
    error: float

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Two standard errors below, the growth itself, and two above."""
        return self.per_minute - 2 * self.error, self.per_minute, self.per_minute + 2 * self.error


def slope(minutes: Sequence[float], values: Sequence[float]) -> Slope:
    """The line through samples at these times; raises ``ValueError`` if there are fewer than three.

    The error takes samples for independent. Those of one process seldom are, so it is rather too small.
    """
    if len(minutes) < 3:
        raise ValueError(f"{len(minutes)} samples give no slope and its error, take more")
    growth, start = linear_regression(minutes, values)
    squares = sum((value - start - growth * at) ** 2 for at, value in zip(minutes, values, strict=True))
    middle = sum(minutes) / len(minutes)
    spread = sum((at - middle) ** 2 for at in minutes)
    return Slope(growth, sqrt(squares / (len(minutes) - 2) / spread))
