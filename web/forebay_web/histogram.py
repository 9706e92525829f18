"""Histograms of plain numbers: counting costs next to nothing; Prometheus' form is made on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

from forebay.lag import Lag, worst_lag

_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000)
_AGE_MS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000)
_SERVED = (
    ("record_lag", "Records that answers were behind the log.", 1, (0, *(10**digits for digits in range(1, 7)))),
    ("time_lag_seconds", "Time that answers were behind the log.", 1_000, _MS),
    ("age_seconds", "Time that answers were behind the source.", 1_000, _AGE_MS),
)
SERVED_BOUNDS = tuple(bounds for *_, bounds in _SERVED)
"""The upper bounds of their buckets, in the order of a lag's figures."""
_MAX_LAGS = 256
"""Observing them takes a fraction of a millisecond, in which no read is answered."""


class Histogram:
    """Counts up to each bound; figures above all of them, or unknown, are counted last."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, figure: float | None, times: int = 1) -> None:
        """Count a figure, None if unknown, this many times."""
        if figure is None:
            self.counts[-1] += times
            return
        self.counts[bisect_left(self.bounds, figure)] += times
        self.total += times * figure

    def add_to(self, family: HistogramMetricFamily, labels: list[str], scale: int = 1) -> None:
        """Add it to a metric, whose unit is ``scale`` times that of the figures."""
        bounds = [*(f"{bound / scale:.12g}" for bound in self.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(self.counts), strict=True)), self.total / scale)


class LagCounts(dict[Lag, int]):
    """How many answers of one store stated each lag, until ``histograms`` has them: most share it with others."""

    def __init__(self) -> None:
        self._histograms = tuple(map(Histogram, SERVED_BOUNDS))

    def __missing__(self, lag: Lag) -> int:
        if len(self) >= _MAX_LAGS:
            self.histograms()
        return 0

    def histograms(self) -> tuple[Histogram, ...]:
        """Those of record lag, time lag and age, with all that was counted."""
        for lag, answers in self.items():
            for histogram, figure in zip(self._histograms, lag, strict=True):
                histogram.observe(figure, answers)
        self.clear()
        return self._histograms


class ServedLag(dict[str, LagCounts]):
    """The lag of answers, by store: ``served[store][lag] += 1`` counts one."""

    def __missing__(self, store: str) -> LagCounts:
        return self.setdefault(store, LagCounts())

    def count_worst(self, store: str, lags: Iterable[Lag]) -> None:
        """Count an answer once that states several lags, or none."""
        if found := list(lags):
            self[store][worst_lag(found)] += 1

    def collect(self, stem: str) -> Iterator[HistogramMetricFamily | None]:
        """All histograms, with a step for each store; their names begin with ``stem``."""
        families = [HistogramMetricFamily(f"{stem}_{name}", text, labels=["store"]) for name, text, *_ in _SERVED]
        for store, counts in sorted(self.items()):
            for family, (_, _, scale, _), histogram in zip(families, _SERVED, counts.histograms(), strict=True):
                histogram.add_to(family, [store], scale)
            yield None
        yield from families
