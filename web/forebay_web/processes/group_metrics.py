"""The metrics of several processes as those of one, whichever of them is scraped."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay.event_loop_turns import in_turns
from forebay_web.processes.peer_processes import ProcessSlot
from forebay_web.processes.summed_metrics import counted, document_of, metrics_of, summed


class GroupMetrics:
    """This process's metrics, on top of its predecessors', and with those of its peers.

    ``steps`` yields its own, and None for other work. ``name`` is that of the metric that counts the ``tier``'s
    processes.
    """

    def __init__(
        self, place: ProcessSlot, steps: Callable[[], Iterable[Metric | None]], tier: str, name: str
    ) -> None:
        self._place = place
        self._steps = steps
        self._tier = tier
        self._name = name
        # To Prometheus, a counter that went down would look like a restart of all.
        self._inherited = self._last_reported_by(place.number)

    async def document(self) -> list[Any]:
        """What a peer is told."""
        return document_of(await self._counted_here())

    async def together(self, answers: Mapping[int, Any]) -> Collector:
        """The metrics of all, given the peers' documents, None for one that does not answer.

        For that one, counters are given as last reported, and gauges are left out.
        """
        own = await self._counted_here()
        if not self._place.is_single:
            # With thousands of replicas this takes a while, in which no read would be answered.
            own = await asyncio.to_thread(self._with_others, own, answers)
        answering = 1 + sum(document is not None for document in answers.values())
        return _CollectedMetrics([*own, *self._processes(answering)])

    def _with_others(self, own: list[Metric], answers: Mapping[int, Any]) -> list[Metric]:
        others = [
            self._last_reported_by(number) if document is None else metrics_of(document)
            for number, document in answers.items()
        ]
        return summed([own, *others])

    async def _counted_here(self) -> list[Metric]:
        """This process's metrics on top of its predecessors'; saved before they are reported."""
        found = [metric for metric in await in_turns(self._steps()) if metric is not None]
        return found if self._place.is_single else await asyncio.to_thread(self._continued, found)

    def _continued(self, found: list[Metric]) -> list[Metric]:
        if self._inherited:
            found = summed([self._inherited, found])
        # A full disk must not keep the figures from being reported.
        with contextlib.suppress(OSError):
            self._keep(counted(found))
        return found

    def _keep(self, metrics: list[Metric]) -> None:
        path = self._place.counts_of(self._place.number)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document_of(metrics)))
        new.replace(path)

    def _last_reported_by(self, number: int) -> list[Metric]:
        """The counters that a process last reported."""
        path = self._place.counts_of(number)
        if self._place.is_single or not path.exists():
            return []
        return metrics_of(json.loads(path.read_text()))

    def _processes(self, answering: int) -> Iterator[Metric]:
        for suffix, text, value in (
            ("", f"Processes that the {self._tier} should have.", self._place.processes),
            ("_answering", "Processes whose figures are in this answer.", answering),
        ):
            gauge = GaugeMetricFamily(f"{self._name}{suffix}", text)
            gauge.add_metric([], value)
            yield gauge


class _CollectedMetrics(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
