"""The metrics of several processes as those of one, whichever of them is scraped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from forebay.event_loop_turns import in_turns
from forebay_web.processes.process_slot import ProcessSlot, date_of, set_date, write_report
from forebay_web.processes.summed_metrics import counted, decoded, encoded, of_process, summed

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
