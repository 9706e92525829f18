"""A router's metrics: plain integers counted along the way, converted to Prometheus' form when scraped."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from forebay import __version__
from forebay.lag import Lag
from forebay.wire.answer_aging import stated_lags
from forebay.wire.answers import WITH_LAG, HttpAnswer
from forebay.wire.batches import KeyResult
from forebay_router.cluster.worker_view import reported_in
from forebay_router.router import Router
from forebay_web.health.store_counts import StoreCounts, added
from forebay_web.histogram import Histogram, LagCounts, ServedLag
from forebay_web.routes import BATCH_ROUTE

_MAX_UNREAD = 256
"""Reading them takes a fraction of a millisecond, in which no read is answered."""
_PROCESS = ProcessCollector(registry=None)
ANSWER_MS = (0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 30_000)
"""The upper bounds of the buckets of answers' times."""
_PROBLEM = re.compile(rb'\{"type": ?"urn:forebay:problem:([a-z-]+)"')


def _problem_in(body: bytes) -> str:
    """The name of the problem in a body, nothing if there is none."""
    found = _PROBLEM.match(body)
    return "" if found is None else found[1].decode()


class RouterMetrics(Collector):
    """Counts reads, and collects the rest from the router at each scrape."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.refusals: Counter[int] = Counter()
        """Requests that the authenticator refused, by status."""
        self._reads: Counter[tuple[str, int, str]] = Counter()
        self._results: Counter[tuple[str, int]] = Counter()
        self._lag = ServedLag()
        self._problems: Counter[tuple[str, str]] = Counter()
        """Refusals by store and problem; keys that do not exist are none."""
        self.answer_ms: dict[str, dict[str, Histogram]] = defaultdict(
            lambda: defaultdict(lambda: Histogram(ANSWER_MS))
        )
        """How long answers took, by route and store: lists until their first byte, event streams not at all."""
        self._unread: Counter[tuple[str, str, int, bytes]] = Counter()
        """Answers by route, store, status and header lines."""

    def count(self, route: str, status: int, store: str = "", problem: str = "") -> None:
        """Count an answer that no single replica gave; ``store`` as the client named it, if it did.

        ``problem`` is the name of the problem that it is, if it is one.
        """
        self._reads[route, status, ""] += 1
        self._results[self._known(store), status] += 1
        if problem:
            self._problems[self._known(store), problem] += 1

    def observe_ms(self, route: str, store: str, took_ms: float) -> None:
        """Count how long an answer took; ``store`` as the client named it."""
        self.answer_ms[route][self._known(store)].observe(took_ms)

    def count_batch(self, store: str, results: Sequence[KeyResult]) -> None:
        """Count a batch that was answered, and each key's result."""
        self._reads[BATCH_ROUTE.path, 200, ""] += 1
        for status, times in Counter(status for status, _ in results).items():
            self._results[store, status] += times
        for status, body in results:
            if status not in WITH_LAG and (problem := _problem_in(body)):
                self._problems[store, problem] += 1
        self._lag.count_worst(store, stated_lags(results))

    def _known(self, store: str) -> str:
        """Clients may name any number of stores that do not exist."""
        return store if store in self._router.metadata.stores else ""

    def count_answer(self, route: str, store: str, answer: HttpAnswer) -> None:
        """Count an answer, and how far behind it was. Header lines are parsed later, identical ones only once."""
        self._unread[route, store, answer.status, answer.head] += 1
        if answer.status not in WITH_LAG and (problem := _problem_in(answer.body)):
            self._problems[store, problem] += 1
        if len(self._unread) >= _MAX_UNREAD:
            self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, Counter()
        for (route, store, status, head), count in unread.items():
            reported = reported_in(head)
            self._reads[route, status, "" if reported is None else reported.role] += count
            self._results[store, status] += count
            if reported is not None and status in WITH_LAG:
                self._lag[store][reported.lag] += count

    def count_list(self, route: str, store: str, lag: Lag) -> None:
        """Count a list, and the largest lag of its partitions."""
        self._reads[route, 200, ""] += 1
        self._results[store, 200] += 1
        self._lag[store][lag] += 1

    def store_counts(self) -> dict[str, StoreCounts]:
        """What is counted of each store, for its history."""
        self._read()
        reads: Counter[str] = Counter()
        for (store, _), count in self._results.items():
            reads[store] += count
        problems: dict[str, dict[str, int]] = {}
        for (store, problem), count in self._problems.items():
            problems.setdefault(store, {})[problem] = count
        return {
            store: StoreCounts(
                reads[store],
                problems.get(store, {}),
                added(of[store].counts for of in self.answer_ms.values() if store in of),
                tuple(tuple(figure.counts) for figure in self._lag.get(store, LagCounts()).histograms()),
            )
            for store in self._router.metadata.stores
        }

    def collect(self) -> Iterator[Metric]:
        """Every metric, for the scraper."""
        return (metric for metric in self.steps() if metric is not None)

    def steps(self) -> Iterator[Metric | None]:
        """The same with a step for each store, which may have thousands of partitions."""
        self._read()
        reads = CounterMetricFamily(
            "forebay_router_reads", "Answers to reads.", labels=["route", "status", "role"]
        )
        for (route, status, role), count in list(self._reads.items()):
            reads.add_metric([route, str(status), role], count)
        results = CounterMetricFamily(
            "forebay_router_results", "Results of reads, one for each key of a batch.", labels=["store", "status"]
        )
        for (store, status), count in list(self._results.items()):
            results.add_metric([store, str(status)], count)
        refusals = CounterMetricFamily(
            "forebay_router_auth_failures", "Requests that authentication refused.", labels=["status"]
        )
        for status, count in list(self.refusals.items()):
            refusals.add_metric([str(status)], count)
        yield from (reads, results, refusals)
        yield from self._lag.collect("forebay_router_served")
        took = HistogramMetricFamily(
            "forebay_router_answer_seconds",
            "Time from a read's arrival to its answer, or to the first byte of a list.",
            labels=["route", "store"],
        )
        for route, by_store in sorted(self.answer_ms.items()):
            for store, histogram in sorted(by_store.items()):
                histogram.add_to(took, [route, store], 1_000)
                yield None
        yield took
        problems = CounterMetricFamily(
            "forebay_router_problems", "Results of reads that are problems.", labels=["store", "problem"]
        )
        for (store, problem), count in list(self._problems.items()):
            problems.add_metric([store, problem], count)
        yield problems
        for name, text in (
            ("failovers", "Attempts that failed to connect or broke, and went to another replica."),
            ("hedges", "Second replicas asked because the first was slow."),
            ("hedges_won", "Hedges that were answered first."),
            ("hedges_throttled", "Hedges that the budget did not allow."),
        ):
            yield CounterMetricFamily(f"forebay_router_{name}", text, self._router.counts[name])
        delay_s = self._router.delay.delay_ms / 1000
        yield GaugeMetricFamily(
            "forebay_router_hedge_delay_seconds", "Wait before a second replica is asked.", delay_s
        )
        yield GaugeMetricFamily(
            "forebay_router_hedge_budget", "Hedges currently allowed.", self._router.budget.left
        )
        yield from self._router.limits.metrics("forebay_router")
        is_ready = self._router.readiness() is None
        yield GaugeMetricFamily("forebay_router_ready", "1 if the router knows workers and their map.", is_ready)
        unheld = GaugeMetricFamily(
            "forebay_router_unheld_partitions", "Partitions that no answering worker holds.", labels=["store"]
        )
        for spec in self._router.cluster.metadata.stores.values():
            unheld.add_metric([spec.name], self._router.cluster.unheld(spec))
            yield None
        yield unheld
        live = GaugeMetricFamily("forebay_router_worker_live", "1 if the worker is reachable.", labels=["host"])
        in_flight = GaugeMetricFamily(
            "forebay_router_worker_in_flight", "Requests in flight at the worker.", labels=["host"]
        )
        for host, worker in sorted(self._router.cluster.workers.items()):
            live.add_metric([str(host)], int(worker.live and not worker.suspect))
            in_flight.add_metric([str(host)], self._router.pool.load(host))
        yield from (live, in_flight)
        build = GaugeMetricFamily(
            "forebay_router_build_info", "1. The label gives the version running.", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        yield from _PROCESS.collect()
