"""``scripts/bench``: every comparison in one run, or those named. A full run writes the page and its JSON."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click
from bench import (
    changelog,
    checkpointing,
    control_plane,
    enrichment,
    failover,
    followers,
    growth,
    hop,
    identities,
    kafka,
    kafka_streams,
    large_restart,
    large_state,
    many_keys,
    many_partitions,
    memory,
    reads_beside_writes,
    relocation,
    restart,
    restoration,
    sidecar,
    single_key,
    sink,
    start_up,
    state_tap,
    worker_processes,
)
from bench.comparison import Comparison, Effort
from bench.figures import Row, Series
from bench.machine import machine, versions
from bench.plot import growth_plot
from bench.report import Report, tables

ROOT = Path(__file__).parents[1]
_RESULTS = ROOT / "bench" / "results"
COMPARISONS = (
    Comparison("constant", single_key.constant, ("wrk",)),
    Comparison("redis", single_key.redis, ("wrk", "redis-server"), ("redis",)),
    Comparison("static-file", single_key.static_file, ("wrk", "nginx")),
    Comparison("ttl", single_key.ttl, ("wrk",)),
    Comparison("identities", identities.identities, ("wrk",)),
    Comparison("haproxy", hop.haproxy, ("wrk", "haproxy")),
    Comparison("added-latency", hop.added_latency, ("wrk", "haproxy")),
    Comparison("httpx-proxy", hop.httpx_proxy, ("wrk",)),
    Comparison("aiohttp-proxy", hop.aiohttp_proxy, ("wrk",), ("aiohttp",)),
    Comparison("sidecar", sidecar.sidecar),
    Comparison("enrichment", enrichment.enrichment, ("java",)),
    Comparison("batch-get", many_keys.batches, ("wrk",)),
    Comparison("scan", many_keys.scan),
    Comparison("changelog", changelog.appends_and_reads),
    Comparison("restoration", restoration.restoration),
    Comparison("kafka", kafka.kafka, ("java", "mvn")),
    Comparison("kafka-streams", kafka_streams.kafka_streams, ("java", "javac", "mvn", "wrk")),
    Comparison("reads-beside-writes", reads_beside_writes.reads_beside_writes, ("java", "javac", "mvn", "wrk")),
    Comparison("large-state", large_state.large_state, ("java", "javac", "mvn", "wrk")),
    Comparison("large-restart", large_restart.large_restart, ("java", "mvn")),
    Comparison("many-partitions", many_partitions.many_partitions, ("java", "mvn", "wrk")),
    Comparison("worker-processes", worker_processes.worker_processes, ("java", "mvn", "wrk")),
    Comparison("failover", failover.failover),
    Comparison("restart", restart.restart),
    Comparison("start-up", start_up.start_up),
    Comparison("checkpointing", checkpointing.checkpointing),
    Comparison("followers", followers.followers, ("wrk",)),
    Comparison("memory", memory.memory),
    Comparison("relocation", relocation.relocation),
    Comparison("control-plane", control_plane.control_plane),
    Comparison("growth", growth.growth, ("wrk",)),
    Comparison("sink", sink.sink, ("java", "mvn")),
    Comparison("state-tap", state_tap.state_tap, ("java",)),
)
SOAK = "soak"
"""Rows of ``scripts/soak``, the last of the report."""
ORDER = (*(comparison.name for comparison in COMPARISONS), SOAK)


@click.command(epilog="Comparisons: " + ", ".join(comparison.name for comparison in COMPARISONS))
@click.argument("names", nargs=-1, type=click.Choice([comparison.name for comparison in COMPARISONS]))
@click.option("--rounds", default=3, show_default=True, help="Rounds of every comparison.")
@click.option("--seconds", default=3, show_default=True, help="Length of timed measurements.")
@click.option("--again", is_flag=True, help="Put those named into the newest report, in place of its own.")
def main(names: tuple[str, ...], rounds: int, seconds: int, again: bool) -> None:
    """Measure forebay against others on this machine; all comparisons unless some are named."""
    if again and not names:
        raise click.UsageError("--again needs the names of comparisons; without it, all are measured anew.")
    before = machine()
    found: dict[str, Sequence[Row | Series]] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for comparison in COMPARISONS:
        if names and comparison.name not in names:
            continue
        why = comparison.obstacle()
        if why is not None:
            click.echo(f"{comparison.name}: skipped, {why}")
            skipped[comparison.name] = why
            continue
        try:
            found[comparison.name] = _measured(comparison, rounds, seconds)
        except Exception as error:
            # The other results should not be lost.
            why = f"it failed: {type(error).__name__}: {error}".splitlines()[0]
            click.echo(f"{comparison.name}: {why}\n{traceback.format_exc()}")
            failed[comparison.name] = why
    report = Report(date.today().isoformat(), before, versions(), rounds, seconds, found, {**skipped, **failed})
    if again:
        report = newest_report().with_newer(report, ORDER)
    if again or not names:
        publish(report)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def newest_report() -> Report:
    """The report that the page is written from."""
    return Report.from_json(max(_RESULTS.glob("*.json")).read_text())


def publish(report: Report) -> None:
    """Write the report, its page and its plot."""
    _RESULTS.mkdir(exist_ok=True)
    (_RESULTS / f"{report.date}.json").write_text(report.to_json())
    (ROOT / "docs" / "performance.md").write_text(report.page())
    (ROOT / "docs" / "figures.md").write_text(report.figures_page())
    if report.series:
        (ROOT / "docs" / "growth.svg").write_text(growth_plot(report.series))


def _measured(comparison: Comparison, rounds: int, seconds: int) -> Sequence[Row | Series]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"forebay-bench-{comparison.name}-") as directory:
        found = comparison.measure(Effort(rounds, seconds, Path(directory)))
    click.echo("\n".join([f"{comparison.name}: {time.monotonic() - begun:.0f} s", *tables(found), ""]))
    return found


if __name__ == "__main__":
    main()
