"""One of several processes: it reports to the others, and any of them reports on all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from prometheus_client import Metric

from forebay.clock import epoch_ms
from forebay.errors import NotReady, Problem
from forebay_web.health.store_counts import StoreCounts, total
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.process_slot import ProcessSlot, write_report

log = logging.getLogger(__name__)

_TICK_S = 0.1


class ProcessReport(msgspec.Struct, frozen=True):
    """What the others know of a process."""

    process_id: str | None
    state: str
    workers_live: int | None = None
    stores: dict[str, StoreCounts] = {}
    """What the processes of this slot have counted of each store."""


SILENT = ProcessReport(None, "silent")


class ProcessGroup:
    """This process, and all of its parent's together.

    ``report`` returns its own report, whose counts are since it started.
    """

    def __init__(
        self, place: ProcessSlot, tier: str, report: Callable[[], ProcessReport], metrics: GroupMetrics
    ) -> None:
        self._place = place
        self._tier = tier
        self._report = report
        self._metrics = metrics
        self._inherited = self._last_of(place.number).stores

    @contextlib.asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Report to the other processes meanwhile."""
        if self._place.is_single:
            yield
            return
        await self._write()
        tasks = [
            # At the beginning of a second, since the history takes its samples in the middle of one.
            asyncio.create_task(self._repeat(self._write, lambda: 1 - epoch_ms() % 1000 / 1000)),
            asyncio.create_task(self._repeat(self._metrics.write_if_wanted, lambda: _TICK_S)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, write: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(pause_s())
            try:
                await write()
            except Exception:
                log.exception("the other processes of the %s get no report", self._tier)

    async def _write(self) -> None:
        path = self._place.report_of(self._place.number)
        content = msgspec.json.encode(self._own())
        await asyncio.to_thread(write_report, path, content, time.monotonic_ns())

    def _own(self) -> ProcessReport:
        report = self._report()
        return msgspec.structs.replace(report, stores=_added([self._inherited, report.stores]))

    def _last_of(self, number: int) -> ProcessReport:
        """The last report of a slot's processes, however old it is."""
        try:
            return msgspec.json.decode(self._place.report_of(number).read_bytes(), type=ProcessReport)
        except FileNotFoundError:
            return SILENT

    def reports(self) -> list[ProcessReport]:
        """The reports of all processes, in order: this one's too as last written, so that all say the same."""
        if self._place.is_single:
            return [self._report()]
        numbers = range(self._place.processes)
        return [SILENT if self._place.is_silent(number) else self._last_of(number) for number in numbers]

    def readiness(self, own: Problem | None) -> Problem | None:
        """Why not all are ready, ``own`` being this one's reason: a probe sees one, so every one must be."""
        if own is not None or self._place.is_single:
            return own
        missing = sum(report.state != "ready" for report in self.reports())
        if missing == 0:
            return None
        processes = self._place.processes
        return NotReady(f"Not ready: {missing} of the {self._tier}'s {processes} processes.", retry_after_s=1)

    async def metrics(self) -> list[Metric]:
        return await self._metrics.together()

    def store_counts(self) -> dict[str, StoreCounts]:
        """What all processes have counted of each store, the others' as last reported."""
        return _added([self._own().stores, *(self._last_of(number).stores for number in self._place.others)])


def _added(several: list[dict[str, StoreCounts]]) -> dict[str, StoreCounts]:
    by_store: dict[str, list[StoreCounts]] = defaultdict(list)
    for stores in several:
        for store, counts in stores.items():
            by_store[store].append(counts)
    return {store: added for store, counts in by_store.items() if (added := total(counts)) is not None}
