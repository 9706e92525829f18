"""Histograms of plain numbers: counting costs next to nothing; Prometheus' form is made on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import HistogramMetricFamily


@dataclass
class Histogram:
    """Counts up to each bound; figures above all of them, or unknown, are counted last."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, figure: float | None, times: int = 1) -> None:
        """Count a figure, None if unknown, this many times."""
        if figure is None:
            self.counts[-1] += times
            return
        self.counts[bisect_left(self.bounds, figure)] += times
        self.total += times * figure

    def add_to(self, family: HistogramMetricFamily, labels: list[str], scale: int = 1) -> None:
        """Add it to a metric, whose unit is ``scale`` times that of the figures."""
        buckets, passed = [], 0
        for bound, count in zip(
            [*(f"{bound / scale:.12g}" for bound in self.bounds), "+Inf"], self.counts, strict=True
        ):
            passed += count
            buckets.append((bound, passed))
        family.add_metric(labels, buckets, self.total / scale)


def combined(histograms: Iterable[Histogram], bounds: tuple[float, ...]) -> Histogram:
    """The sum of histograms that have these bounds."""
    summed = Histogram(bounds)
    for histogram in histograms:
        summed.counts = [one + other for one, other in zip(summed.counts, histogram.counts, strict=True)]
        summed.total += histogram.total
    return summed
