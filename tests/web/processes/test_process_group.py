"""Processes that report to each other in files, here all in one event loop."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay_web.health.store_counts import StoreCounts
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.process_group import ProcessGroup, ProcessReport
from forebay_web.processes.process_slot import ProcessSlot, set_date
from tests.support.cluster import until


class Process:
    """Its state, and what it has counted since it started."""

    def __init__(self, place: ProcessSlot, reads: int = 0) -> None:
        self.place = place
        self.state = "ready"
        self.reads = reads
        metrics = GroupMetrics(place, self.steps, "router", "processes")
        self.group = ProcessGroup(place, "router", self.report, metrics)

    def report(self) -> ProcessReport:
        counts = StoreCounts(self.reads, {}, (self.reads,), ((), (), ()))
        return ProcessReport(str(self.place.number), self.state, 1, {"s": counts})

    def steps(self) -> list[Metric]:
        reads = CounterMetricFamily("reads", "", value=self.reads)
        lag = GaugeMetricFamily("lag", "", labels=["partition"])
        lag.add_metric(["0"], self.reads)
        return [reads, lag]

    async def metrics(self) -> dict[str, dict[str, float]]:
        """By name, the figures by process."""
        found = await self.group.metrics()
        return {
            metric.name: {sample.labels.get("process", ""): sample.value for sample in metric.samples}
            for metric in found
        }

    def states(self) -> list[str]:
        return [report.state for report in self.group.reports()]


@pytest.fixture
def place(tmp_path: Path) -> ProcessSlot:
    return ProcessSlot(0, 2, tmp_path)


async def test_any_process_reports_on_all(place: ProcessSlot) -> None:
    one, other = Process(place, reads=3), Process(replace(place, number=1), reads=4)
    async with one.group.reporting(), other.group.reporting():
        assert one.states() == other.states() == ["ready", "ready"]
        assert one.group.readiness(None) is None
        expected = {
            "reads": {"": 7},
            "lag": {"0": 3, "1": 4},
            "processes": {"": 2},
            "processes_answering": {"": 2},
        }
        assert await one.metrics() == await other.metrics() == expected
        other.state, other.reads = "not-ready", 5
        assert (await one.metrics())["reads"] == {"": 8}
        await until(lambda: one.states() == ["ready", "not-ready"])
        refusal = one.group.readiness(None)
        assert refusal is not None
        assert refusal.detail == "Not ready: 1 of the router's 2 processes."
        assert one.group.store_counts()["s"].reads == 8


async def test_scrapes_at_once_never_count_less(place: ProcessSlot) -> None:
    one, other = Process(place), Process(replace(place, number=1))
    async with one.group.reporting(), other.group.reporting():
        reported = 0.0
        for _ in range(10):
            one.reads += 1
            other.reads += 1
            scrapes = await asyncio.gather(*(process.metrics() for process in (one, other, one, other)))
            figures = [scrape["reads"][""] for scrape in scrapes]
            assert min(figures) >= reported
            reported = max(figures)
        assert reported == 20


async def test_a_successor_continues_the_counts_of_the_dead(place: ProcessSlot) -> None:
    other = Process(replace(place, number=1), reads=4)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(other.group.reporting())
        dead = Process(place, reads=3)
        async with dead.group.reporting():
            assert (await other.metrics())["reads"] == {"": 7}
        # As the parent does.
        set_date(place.report_of(0), 0)
        assert other.states() == ["silent", "ready"]
        assert other.group.readiness(None) is not None
        found = await other.metrics()
        assert (found["reads"], found["lag"], found["processes_answering"]) == ({"": 7}, {"1": 4}, {"": 1})
        assert other.group.store_counts()["s"].reads == 7
        successor = Process(place, reads=1)
        await stack.enter_async_context(successor.group.reporting())
        assert (await other.metrics())["reads"] == (await successor.metrics())["reads"] == {"": 8}
        assert other.group.store_counts() == successor.group.store_counts()
        assert successor.group.store_counts()["s"].reads == 8


async def test_a_process_that_hangs_is_silent_after_a_while(place: ProcessSlot) -> None:
    one, hanging = Process(place), Process(replace(place, number=1))
    async with one.group.reporting():
        async with hanging.group.reporting():
            assert one.states() == ["ready", "ready"]
        await until(lambda: one.states() == ["ready", "silent"])
