"""How far behind clients' answers were: histograms of plain integers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily

from forebay.lag import Lag
from forebay_web.histogram import Histogram

_RECORDS = (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000)
_AGE_MS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000)
_HISTOGRAMS = (
    ("record_lag", "Records that answers were behind the log.", 1, _RECORDS),
    ("time_lag_seconds", "Time that answers were behind the log.", 1_000, _MS),
    ("age_seconds", "Time that answers were behind the source.", 1_000, _AGE_MS),
)
"""In the order of a lag's figures."""
SERVED_BOUNDS = tuple(bounds for *_, bounds in _HISTOGRAMS)
"""The upper bounds of their buckets."""


class ServedLag:
    """Record lag, time lag and age of answers, by store."""

    def __init__(self) -> None:
        self._by_store: dict[str, tuple[Histogram, ...]] = {}

    def observe(self, store: str, lag: Lag, answers: int = 1) -> None:
        """Count this many answers with one lag."""
        found = self._by_store.get(store)
        if found is None:
            found = self._by_store[store] = tuple(Histogram(bounds) for *_, bounds in _HISTOGRAMS)
        for histogram, figure in zip(found, lag, strict=True):
            histogram.observe(figure, answers)

    def counts(self, store: str) -> tuple[tuple[int, ...], ...]:
        """The counts of a store's histograms by bucket, in the order of a lag's figures."""
        histograms = self._by_store.get(store) or [Histogram(bounds) for bounds in SERVED_BOUNDS]
        return tuple(tuple(histogram.counts) for histogram in histograms)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """All histograms."""
        for which, (name, text, scale, _) in enumerate(_HISTOGRAMS):
            family = HistogramMetricFamily(f"forebay_router_served_{name}", text, labels=["store"])
            for store, figures in sorted(self._by_store.items()):
                figures[which].add_to(family, [store], scale)
            yield family
