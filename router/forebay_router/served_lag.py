"""How far behind the answers were that clients got: histograms of plain integers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import HistogramMetricFamily

from forebay.lag import Lag

_RECORDS = (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000)
_HISTOGRAMS = (
    ("record_lag", "Records that answers were behind the log.", 1),
    ("time_lag_seconds", "Time that answers were behind the log.", 1_000),
)


@dataclass
class _Figures:
    """One store's answers by one figure: counts up to each bound, what is beyond all or unknown last."""

    bounds: tuple[int, ...]
    counts: list[int] = field(init=False)
    total: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, figure: int | None, answers: int) -> None:
        if figure is None:
            self.counts[-1] += answers
            return
        self.counts[bisect_left(self.bounds, figure)] += answers
        self.total += answers * figure


class ServedLag:
    """Record lag and time lag of answers, by store."""

    def __init__(self) -> None:
        self._by_store: dict[str, tuple[_Figures, _Figures]] = {}

    def observe(self, store: str, lag: Lag, answers: int = 1) -> None:
        """Count so many answers of one lag."""
        found = self._by_store.get(store)
        if found is None:
            found = self._by_store[store] = (_Figures(_RECORDS), _Figures(_MS))
        found[0].observe(lag.record_lag, answers)
        found[1].observe(lag.time_lag_ms, answers)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Both histograms."""
        for which, (name, text, scale) in enumerate(_HISTOGRAMS):
            family = HistogramMetricFamily(f"forebay_router_served_{name}", text, labels=["store"])
            for store, figures in sorted(self._by_store.items()):
                _add(family, store, figures[which], scale)
            yield family


def _add(family: HistogramMetricFamily, store: str, figures: _Figures, scale: int) -> None:
    buckets, passed = [], 0
    for bound, count in zip(
        [*(f"{bound / scale:.12g}" for bound in figures.bounds), "+Inf"], figures.counts, strict=True
    ):
        passed += count
        buckets.append((bound, passed))
    family.add_metric([store], buckets, figures.total / scale)
