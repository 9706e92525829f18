"""The metrics of several processes as those of one, whichever of them is scraped."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from forebay.event_loop_turns import in_turns
from forebay_web.processes.process_slot import ProcessSlot, date_of, set_date, write_report

_Combine = Callable[[float, float], float]
_Labels = tuple[tuple[str, str], ...]

_NOT_SUMMED: dict[str, _Combine] = {
    "forebay_router_ready": min,
    "forebay_router_worker_live": min,
    "forebay_router_unheld_partitions": max,
    "forebay_router_hedge_delay_seconds": max,
    "forebay_router_build_info": max,
    "forebay_ready": min,
    "forebay_storage_fault": max,
    "forebay_group_generation": max,
    "forebay_build_info": max,
    "forebay_state_disk_size_bytes": max,
    "forebay_state_disk_free_bytes": min,
    "process_start_time_seconds": min,
    "process_max_fds": min,
}
"""For these gauges, only the worst process's figure is meaningful."""

_LONGEST_WAIT_S = 1.0
_POLL_S = 0.01


class GroupMetrics:
    """This process's metrics, on top of its predecessors', and with those of the other processes.

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
        self._inherited = counted(self._last_of(place.number))
        self._written_ns = 0
        self._writing = asyncio.Lock()

    async def write_if_wanted(self) -> None:
        """Write the metrics for a process that is scraped since they were last written."""
        wanted_ns = date_of(self._place.wanted)
        if wanted_ns > self._written_ns:
            await self._write(wanted_ns)

    async def together(self) -> list[Metric]:
        """The metrics of all.

        Of a process that does not write its own in time, counters are given as last written, and gauges are left
        out.
        """
        if self._place.is_single:
            return [*await self._since_start(), *self._processes(1)]
        wanted_ns = await asyncio.to_thread(self._want)
        own = await self._write(wanted_ns)
        await self._wait_for_others(wanted_ns)
        # With thousands of replicas this takes a while, in which no read would be answered.
        return await asyncio.to_thread(self._with_others, own, wanted_ns)

    def _want(self) -> int:
        self._place.wanted.touch()
        set_date(self._place.wanted, time.monotonic_ns())
        # As the file system keeps it.
        return date_of(self._place.wanted)

    async def _write(self, wanted_ns: int) -> list[Metric]:
        """This process's metrics on top of its predecessors'; written before they are reported."""
        async with self._writing:
            found = await self._since_start()
            self._written_ns = max(wanted_ns, self._written_ns)
            return await asyncio.to_thread(self._continued, found)

    async def _since_start(self) -> list[Metric]:
        return [metric for metric in await in_turns(self._steps()) if metric is not None]

    def _continued(self, found: list[Metric]) -> list[Metric]:
        number = self._place.number
        metrics = summed([self._inherited, [of_process(metric, number) for metric in found]])
        write_report(self._place.metrics_of(number), encoded(metrics), self._written_ns)
        return metrics

    async def _wait_for_others(self, wanted_ns: int) -> None:
        deadline_s = time.monotonic() + _LONGEST_WAIT_S
        while any(self._is_awaited(number, wanted_ns) for number in self._place.others):
            if time.monotonic() >= deadline_s:
                return
            await asyncio.sleep(_POLL_S)

    def _is_awaited(self, number: int, wanted_ns: int) -> bool:
        return not self._has_written(number, wanted_ns) and not self._place.is_silent(number)

    def _has_written(self, number: int, wanted_ns: int) -> bool:
        return date_of(self._place.metrics_of(number)) >= wanted_ns

    def _with_others(self, own: list[Metric], wanted_ns: int) -> list[Metric]:
        others, answering = [], 1
        for number in self._place.others:
            is_current = self._has_written(number, wanted_ns)
            metrics = self._last_of(number)
            others.append(metrics if is_current else counted(metrics))
            answering += is_current
        return [*summed([own, *others]), *self._processes(answering)]

    def _last_of(self, number: int) -> list[Metric]:
        """The metrics that a slot's processes last wrote."""
        try:
            return decoded(self._place.metrics_of(number).read_bytes())
        except FileNotFoundError:
            return []

    def _processes(self, answering: int) -> Iterator[Metric]:
        for suffix, text, value in (
            ("", f"Processes that the {self._tier} should have.", self._place.processes),
            ("_answering", "Processes whose figures are in this answer.", answering),
        ):
            yield GaugeMetricFamily(f"{self._name}{suffix}", text, value)


def summed(several: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Each metric once, its figures summed over all processes; the worst if a sum is meaningless."""
    families: dict[str, Metric] = {}
    figures: dict[str, dict[tuple[str, _Labels], float]] = {}
    for metric in chain.from_iterable(several):
        families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        known = figures.setdefault(metric.name, {})
        combine: _Combine = _NOT_SUMMED.get(metric.name, operator.add)
        for sample in metric.samples:
            key = sample.name, tuple(sample.labels.items())
            known[key] = combine(known[key], sample.value) if key in known else sample.value
    for name, known in figures.items():
        for (sample_name, labels), value in known.items():
            families[name].add_sample(sample_name, dict(labels), value)
    return list(families.values())


def counted(metrics: Iterable[Metric]) -> list[Metric]:
    """Those that only grow, and outlive the process that counted them; what is counted of a replica does not."""
    return [metric for metric in metrics if metric.type in ("counter", "histogram") and not _of_replica(metric)]


def of_process(metric: Metric, process: int) -> Metric:
    """The metric, with the process's number as a label if it is about replicas: two may have one partition's."""
    if not _of_replica(metric):
        return metric
    labelled = Metric(metric.name, metric.documentation, metric.type)
    for sample in metric.samples:
        labelled.add_sample(sample.name, {**sample.labels, "process": str(process)}, sample.value)
    return labelled


def _of_replica(metric: Metric) -> bool:
    return any("partition" in sample.labels for sample in metric.samples)


def encoded(metrics: Iterable[Metric]) -> bytes:
    """Metrics for another process."""
    return msgspec.json.encode([(m.name, m.documentation, m.type, [s[:3] for s in m.samples]) for m in metrics])


def decoded(content: bytes) -> list[Metric]:
    """The inverse of ``encoded``."""
    found = []
    for name, documentation, kind, samples in msgspec.json.decode(content):
        metric = Metric(name, documentation, kind)
        for sample in samples:
            metric.add_sample(*sample)
        found.append(metric)
    return found
