"""A router's metrics: plain integers counted on the way, turned into Prometheus' form when scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay_router.router import Router


class RouterMetrics(Collector):
    """Counts reads, and reads the rest off the router at each scrape."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.reads: Counter[tuple[str, int]] = Counter()
        """Answers by route and status."""

    def registry(self) -> CollectorRegistry:
        """A registry of this router's metrics alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Every metric, for the scraper."""
        reads = CounterMetricFamily("forebay_router_reads", "Answers to reads.", labels=["route", "status"])
        for (route, status), count in list(self.reads.items()):
            reads.add_metric([route, str(status)], count)
        yield reads
        for name, text in (
            ("failovers", "Attempts that failed to connect or broke, and went to another replica."),
            ("hedges", "Second replicas asked because the first was slow."),
            ("hedges_refused", "Hedges that the budget did not allow."),
        ):
            counter = CounterMetricFamily(f"forebay_router_{name}", text)
            counter.add_metric([], self._router.counts[name])
            yield counter
        delay = GaugeMetricFamily("forebay_router_hedge_delay_seconds", "Wait before a second replica is asked.")
        delay.add_metric([], self._router.delay.delay_ms / 1000)
        yield delay
        in_flight = GaugeMetricFamily("forebay_router_in_flight", "Reads in flight.")
        in_flight.add_metric([], self._router.in_flight)
        yield in_flight
        streams = GaugeMetricFamily("forebay_router_event_streams", "Event streams open.")
        streams.add_metric([], self._router.streams.count)
        yield streams
        live = GaugeMetricFamily("forebay_router_worker_live", "1 if the worker is reachable.", labels=["host"])
        for host, worker in sorted(self._router.cluster.workers.items()):
            live.add_metric([str(host)], int(worker.live and not worker.suspect))
        yield live
