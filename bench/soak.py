"""``scripts/soak``: does anything grow while nothing changes? One router and two workers at a constant load.

Records and reads come at a constant rate, 2,000 connections are idle, and others are opened and closed all the
while. After a warm-up, memory, descriptors and threads of each tier are sampled once a second. Their growth is the
slope of the line through the samples, by least squares.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median

import click
from bench.deployment import KEYS, OPTIONS, STORE, deployment
from bench.figures import Row, Target
from bench.machine import machine, versions
from bench.process import descriptors, resident_mb, threads
from bench.records import records
from bench.report import Report, tables
from bench.run import ORDER, SOAK, newest_report, publish
from bench.slope import slope
from bench.steady_clients import Clients, steady
from bench.stream_writer import Stream, streaming

from tests.support.cluster import Cluster

RECORDS_PER_SECOND = 5_000
"""Fast enough that what a worker keeps of its last changes is full when the warm-up ends."""
READS_PER_SECOND = 400
CHURNED_PER_SECOND = 20
IDLE = 2_000
_PARTITIONS = 4
_WARM_UP_SHARE, _MAX_WARM_UP_MINUTES = 0.4, 5.0
_SMALL = ("--rocksdb-write-buffer-bytes", str(4 << 20), "--rocksdb-block-cache-bytes", str(8 << 20))
"""Full after the warm-up too."""
_QUANTITIES: Mapping[str, tuple[str, Callable[[int], float]]] = {
    "memory": ("kB", lambda pid: resident_mb(pid) * 1e3),
    "descriptors": ("", descriptors),
    "threads": ("", threads),
}
_MAX_GROWTH = 0.001
"""A minute, of all there is."""
_Samples = dict[tuple[str, str], list[float]]
"""By tier and quantity."""


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long, the warm-up included.")
@click.option("--publish", "publishes", is_flag=True, help="Put the result into the newest report.")
def main(minutes: float, publishes: bool) -> None:
    """Watch what grows under a constant load: memory, descriptors and threads of a router and its workers."""
    before = machine()
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as directory:
        rows = soak(Path(directory), minutes)
    click.echo("\n".join(tables(rows)))
    if publishes:
        found = Report(date.today().isoformat(), before, versions(), 1, round(minutes * 60), {SOAK: rows}, {})
        publish(newest_report().with_newer(found, ORDER))


def soak(directory: Path, minutes: float) -> list[Row]:
    """Each quantity of each tier, and how it grew."""
    warm_up_minutes = min(_WARM_UP_SHARE * minutes, _MAX_WARM_UP_MINUTES)
    with _loaded(directory) as pids:
        time.sleep(warm_up_minutes * 60)
        times, samples = _sampled(pids, minutes - warm_up_minutes)
    return [_row(tier, what, times, values) for (tier, what), values in samples.items()]


@contextmanager
def _loaded(directory: Path) -> Iterator[dict[str, tuple[int, ...]]]:
    """The processes of each tier, once all clients are connected."""
    options = (*OPTIONS, *_SMALL)
    with deployment(directory, partitions=_PARTITIONS, headers={}, worker_options=options) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        workers = cluster.start_workers(2)
        router = cluster.start_router(*OPTIONS)
        cluster.wait_settled(router)
        paths = tuple(f"/v1/stores/{STORE}/keys/{key.decode()}" for key in rows)
        clients = Clients((router, *workers), paths, IDLE, READS_PER_SECOND, CHURNED_PER_SECOND)
        with streaming(_stream(cluster)), steady(clients) as done:
            yield {
                "router": (cluster.router_process(router).pid,),
                "both workers": tuple(cluster.workers[worker].pid for worker in workers),
            }
        click.echo(", ".join(f"{count:,} {what}" for what, count in sorted(done.items())))
        assert done["failed"] + done["refused"] == 0, "some reads were not answered"


def _stream(cluster: Cluster) -> Stream:
    return Stream(cluster.changelog.url, str(cluster.topology_path), STORE, KEYS, RECORDS_PER_SECOND)


def _sampled(pids: Mapping[str, tuple[int, ...]], minutes: float) -> tuple[list[float], _Samples]:
    """The sum of each tier's processes, once a second, and when."""
    begun = time.monotonic()
    times: list[float] = []
    samples: _Samples = {}
    while (now := (time.monotonic() - begun) / 60) < minutes:
        times.append(now)
        for (tier, of_tier), (what, (_, quantity)) in itertools.product(pids.items(), _QUANTITIES.items()):
            samples.setdefault((tier, what), []).append(sum(map(quantity, of_tier)))
        time.sleep(max(0.0, begun + len(times) - time.monotonic()))
    return times, samples


def _row(tier: str, what: str, times: list[float], values: list[float]) -> Row:
    """Growth beside what there is of it, so that the ratio is relative growth."""
    unit, _ = _QUANTITIES[what]
    named = f"soak, {tier}: growth of {what} a minute, over {times[-1]:.1f} minutes, ± 2 standard errors"
    level = (min(values), median(values), max(values))
    most = Target(_MAX_GROWTH, at_least=False)
    return Row(named, unit, slope(times, values).bounds, f"all {what}", level, most)


if __name__ == "__main__":
    main()
