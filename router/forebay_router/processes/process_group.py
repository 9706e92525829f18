"""Reports on a router as a whole, whichever of its processes is asked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay.console.history import History, StoreSample, merged
from forebay.errors import NotReady, Problem
from forebay_router.metrics import RouterMetrics
from forebay_router.processes.peer_processes import PeerProcesses, ProcessSlot
from forebay_router.processes.summed_metrics import counted, document_of, metrics_of, summed
from forebay_router.router import Router

_CATCH_UP_S = 5.0
_SILENT = {"process_id": None, "state": "silent", "workers_live": None}


class ProcessGroupView:
    """Readiness, status, metrics and history of all processes together."""

    def __init__(self, router: Router, metrics: RouterMetrics, history: History, place: ProcessSlot) -> None:
        self._router = router
        self._history = history
        self._metrics = metrics
        self._place = place
        self.peers = PeerProcesses(
            place,
            {
                "state": lambda _: self._state(),
                "metrics": lambda _: document_of(self._counted_here()),
                "history": self._samples_document,
            },
        )
        # To Prometheus, a counter that went down would look like a restart of all.
        self._inherited = self._last_reported_by(place.number)

    async def readiness(self) -> Problem | None:
        """Why the router is not ready; every process must be, since any may get the next connection."""
        problem = self._router.readiness()
        if problem is not None:
            return problem
        states = await self._states()
        missing = sum(state["state"] != "ready" for state in states)
        if missing == 0:
            return None
        return NotReady(f"Not ready: {missing} of the router's {len(states)} processes.", retry_after_s=1)

    async def catch_up(self) -> None:
        """Wait to be ready if another process is, for some seconds at most; called before this one listens.

        All share the address, so one that takes the place of another gets its connections from the beginning.
        """
        others = await self.peers.ask("state")
        if any(state is not None and state["state"] == "ready" for state in others.values()):
            await self._router.discovery.readied(_CATCH_UP_S)

    async def status_document(self) -> dict[str, Any]:
        """``GET /v1/status``: the answering process, and a summary of all."""
        return {**self._router.status_document(), "processes": await self._states()}

    async def metrics(self) -> Collector:
        """The metrics of all processes together.

        For one that does not answer, counters are given as last reported, and gauges are left out.
        """
        answers = await self.peers.ask("metrics")
        others = [
            self._last_reported_by(number) if document is None else metrics_of(document)
            for number, document in answers.items()
        ]
        answering = 1 + sum(document is not None for document in answers.values())
        return _CollectedMetrics([*summed([self._counted_here(), *others]), *self._processes(answering)])

    async def samples(self, store: str) -> list[StoreSample]:
        """The last minutes of a store, by second; without the reads of a process that does not answer."""
        answers = await self.peers.ask("history", store)
        others = [
            map(StoreSample.from_document, document) for document in answers.values() if document is not None
        ]
        return merged([self._history.samples(store), *others])

    def _samples_document(self, store: str) -> list[Any]:
        return [sample.document() for sample in self._history.samples(store)]

    async def _states(self) -> list[dict[str, Any]]:
        answers = {self._place.number: self._state(), **await self.peers.ask("state")}
        return [answers[number] or _SILENT for number in sorted(answers)]

    def _state(self) -> dict[str, Any]:
        return {
            "process_id": str(os.getpid()),
            "state": self._router.state,
            "workers_live": sum(map(self._router.cluster.is_healthy, self._router.cluster.workers)),
        }

    def _counted_here(self) -> list[Metric]:
        """This process's metrics on top of its predecessors'; saved before they are reported."""
        found = summed([self._inherited, self._metrics.collect()])
        if not self._place.is_single:
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
        for name, text, value in (
            ("forebay_router_processes", "Processes that the router should have.", self._place.processes),
            ("forebay_router_processes_answering", "Processes whose figures are in this answer.", answering),
        ):
            gauge = GaugeMetricFamily(name, text)
            gauge.add_metric([], value)
            yield gauge


class _CollectedMetrics(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
