"""The last minutes of each store, second by second: reads, their times, refusals, lag. Bounded rings of counts.

Once a second the counters that are kept anyway are compared with a second ago, so no read pays for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from forebay.clock import epoch_ms
from forebay.lag import Lag
from forebay_console.answer_schemas import HistoryAnswer, LagBuckets, LagsOfAnswers, SecondOfReads
from forebay_web.health.store_counts import StoreCounts, StoreSample, difference, total

log = logging.getLogger(__name__)

SECONDS_KEPT = 180
_MIN_KEPT = 60
SERVED_SECONDS = 60
"""The time over which the lag of answers is summed, for the question what a tolerance would have refused."""
_MAX_REMEMBERED = 20_000
"""Samples of all stores together that are remembered: beyond, each ring is shorter. One takes half a kilobyte."""


class Bounds(NamedTuple):
    """The upper bounds of the buckets of those histograms."""

    answer_ms: Sequence[float]
    served: Sequence[Sequence[int]]


class History:
    """The rings of one process; ``counters`` is None for one that does not count reads by store."""

    def __init__(
        self, counters: Callable[[], Mapping[str, StoreCounts]] | None, lags: Callable[[], Mapping[str, Lag]]
    ) -> None:
        self._counters = counters
        self._lags = lags
        self._last: dict[str, StoreCounts] = {}
        self._kept = SECONDS_KEPT
        self._rings: dict[str, deque[StoreSample]] = defaultdict(lambda: deque(maxlen=self._kept))

    async def run(self) -> None:
        """Sample each second what is counted from now on: a process may continue the counts of another."""
        if self._counters is not None:
            self._last = dict(self._counters())
        while True:
            await asyncio.sleep(pause_ms(epoch_ms()) / 1000)
            try:
                self.sample(int(epoch_ms() // 1000))
            except Exception:
                log.exception("a second is missing in the history")

    def sample(self, at_s: int) -> None:
        """Add the second that ends now."""
        lags = self._lags()
        counters = {} if self._counters is None else self._counters()
        if len(lags) * self._kept > _MAX_REMEMBERED:
            self._kept = max(_MIN_KEPT, _MAX_REMEMBERED // len(lags))
        for store in self._rings.keys() - lags.keys():
            del self._rings[store]
            self._last.pop(store, None)
        for store, lag in lags.items():
            now, counts = counters.get(store), None
            if now is not None:
                counts, self._last[store] = difference(now, self._last.get(store)), now
            self._rings[store].append(StoreSample(at_s, lag, counts))

    def samples(self, store: str) -> list[StoreSample]:
        """The samples of a store, the oldest first."""
        return list(self._rings.get(store, ()))


def pause_ms(now_epoch_ms: float) -> float:
    """The time to the middle of the next second: a timer that is early or late still counts for that second."""
    return 1_500 - now_epoch_ms % 1_000


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """A quantile of a histogram, linear within its bucket as in Prometheus; the last bound for those above."""
    passed, rank = 0, share * sum(counts)
    if rank == 0:
        return None
    for place, count in enumerate(counts):
        if passed + count >= rank:
            if place == len(bounds):
                return float(bounds[-1])
            below = bounds[place - 1] if place else 0
            return below + (bounds[place] - below) * (rank - passed) / count
        passed += count
    return float(bounds[-1])


def history_answer(
    store: str, samples: Sequence[StoreSample], bounds: Bounds | None, after_ms: int = 0
) -> HistoryAnswer:
    """``GET /v1/stores/{store}/history``, of the samples after a moment.

    Without ``bounds`` the process counts no reads by store.
    """
    until_s = samples[-1].at_s if samples else 0
    minute = total(s.counts for s in samples if s.counts is not None and s.at_s > until_s - SERVED_SECONDS)
    return HistoryAnswer(
        store=store,
        interval_ms=1_000,
        samples=[_second(sample, bounds) for sample in samples if sample.at_s * 1000 > after_ms],
        served=None if bounds is None else _served_lag(minute, bounds),
    )


def _second(sample: StoreSample, bounds: Bounds | None) -> SecondOfReads:
    counts = None if bounds is None else sample.counts
    none_read = None if bounds is None else 0
    return SecondOfReads(
        *sample.lag,
        at_ms=sample.at_s * 1000,
        reads=none_read if counts is None else counts.reads,
        p50_ms=_quantile_ms(counts, bounds, 0.5),
        p99_ms=_quantile_ms(counts, bounds, 0.99),
        problems={} if counts is None else counts.problems,
    )


def _quantile_ms(counts: StoreCounts | None, bounds: Bounds | None, share: float) -> float | None:
    if counts is None or bounds is None:
        return None
    return quantile(bounds.answer_ms, counts.answer_ms, share)


def _served_lag(minute: StoreCounts | None, bounds: Bounds) -> LagsOfAnswers:
    """The lag of the last minute's answers, as histograms: the question is what a tolerance would have refused."""
    served = minute.served if minute is not None else ()
    figures = (
        LagBuckets(list(of), list(counts or (0,) * (len(of) + 1)))
        for of, counts in zip(bounds.served, served or ((),) * len(bounds.served), strict=True)
    )
    return LagsOfAnswers(SERVED_SECONDS, {} if minute is None else minute.problems, *figures)
