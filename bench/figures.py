"""Measurements: rounds of figures, their medians, the targets that they are checked against, and growth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log10
from statistics import median
from typing import Any


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
    """One comparison: a figure of forebay's per round, and of the opponent's, if any."""

    what: str
    unit: str
    ours: tuple[float, ...]
    against: str = ""
    theirs: tuple[float, ...] = ()
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        """Our median divided by theirs."""
        return median(self.ours) / median(self.theirs) if self.theirs and median(self.theirs) else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met, None without one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of_ratio else median(self.ours)
        return value is not None and self.target.met_by(value)

    def document(self) -> dict[str, Any]:
        """The row for machines."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Row:
        """The inverse of ``document``."""
        target = document["target"]
        return cls(
            document["what"],
            document["unit"],
            tuple(document["ours"]),
            document["against"],
            tuple(document["theirs"]),
            None if target is None else Target(**target),
        )


@dataclass(frozen=True)
class Point:
    """Single-key reads at one size of what grows, a figure per round."""

    size: float
    requests_per_second: tuple[float, ...]
    p99_ms: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """What one thing's growth costs, from its first and smallest point on."""

    what: str
    unit: str
    latency_of: str
    """The requests whose latency is given."""
    points: tuple[Point, ...]

    @property
    def throughput_ratios(self) -> tuple[float, ...]:
        """Each point's median throughput divided by the first's."""
        return _by_first([median(point.requests_per_second) for point in self.points])

    @property
    def p99_ratios(self) -> tuple[float, ...]:
        """Each point's median p99 divided by the first's."""
        return _by_first([median(point.p99_ms) for point in self.points])

    def size(self, point: Point) -> str:
        """A point's size in words: ``10 kB``, ``0.25 ×``, ``1,024``."""
        if self.unit != "B":
            return f"{point.size:,g} {self.unit}".rstrip()
        power = int(log10(point.size)) // 3
        return f"{point.size / 1000**power:g} {('', 'k', 'M', 'G')[power]}B"

    def document(self) -> dict[str, Any]:
        """The series for machines."""
        return {**asdict(self), "throughput_ratios": self.throughput_ratios, "p99_ratios": self.p99_ratios}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Series:
        """The inverse of ``document``."""
        points = [
            Point(point["size"], tuple(point["requests_per_second"]), tuple(point["p99_ms"]))
            for point in document["points"]
        ]
        return cls(document["what"], document["unit"], document["latency_of"], tuple(points))


def _by_first(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(value / values[0] for value in values)


def number(value: float) -> str:
    """A figure in words, to three digits unless it has more before the point."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def interleaved(rounds: int, *sides: Callable[[], float]) -> list[tuple[float, ...]]:
    """Every side's figures, measured in turn (A B A B …), so that other load on the machine affects all
    equally."""
    measured = [[side() for side in sides] for _ in range(rounds)]
    return [tuple(column) for column in zip(*measured, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that this percentage of all are at or below (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, ceil(len(ranked) * percent / 100) - 1)]
