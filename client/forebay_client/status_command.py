"""``forebay status``: who holds which task and how far behind it is, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forebay.errors import ForebayError
from forebay.lag import UNLIMITED, Lag, Tolerance
from forebay.output import Output, json_output, print_line, terminal
from forebay_client.command_target import Server, server_options

_MAX_NAMED = 3
_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow"}
_ROLE_STYLES = {"active": "bold green", "restoring": "yellow", "standby": "cyan"}


@click.command()
@server_options
@click.option("--watch", is_flag=True, help="Keep showing it as it changes, until Ctrl-C.")
@click.option("--interval-ms", default=500, show_default=True, type=click.IntRange(min=50), help="With --watch.")
@click.option(
    "--check", is_flag=True, help="Exit with 1 unless every partition has an active within these bounds."
)
@click.option(
    "--standbys", default=0, type=click.IntRange(min=0), help="With --check: as many others within them."
)
@click.option("--max-record-lag", type=click.IntRange(min=0), help="With --check: records it may be behind.")
@click.option("--max-time-lag-ms", type=click.IntRange(min=0), help="With --check: its time behind the log.")
@click.option("--max-age-ms", type=click.IntRange(min=0), help="With --check: its time behind the source.")
@json_output
def status(
    server: Server,
    watch: bool,
    interval_ms: int,
    output: Output,
    check: bool,
    standbys: int,
    **bounds: int | None,
) -> None:
    """Show which worker holds which task, in which role, and how far behind it is."""
    if watch and (output.as_json or check):
        raise ForebayError("--watch goes on for ever; leave it out, or --json and --check.")
    tolerance = Tolerance(**bounds)
    if (tolerance != UNLIMITED or standbys) and not check:
        raise ForebayError("Bounds and --standbys are checked with --check; add it.")
    if watch:
        _watch(server, terminal(), interval_ms / 1000)
        return
    lags, findings = server.lags(), server.findings()
    output.show({"lags": lags, "findings": findings}, status_view(lags, findings))
    if check:
        _check(server, shortcomings(server.partitions(), lags, tolerance, standbys))


def _check(server: Server, found: list[str]) -> None:
    """Name on standard error what is not served as it should be; then exit with 1."""
    for line in found:
        print_line(line, to_stderr=True)
    if found and server.described("/v1/status").get("tier") == "worker":
        print_line(
            f"{server.url} is a worker, which knows only what it holds. A router can judge: --url.", to_stderr=True
        )
    if found:
        sys.exit(1)


def shortcomings(
    partitions: Mapping[str, int], lags: list[dict[str, Any]], tolerance: Tolerance, standbys: int = 0
) -> list[str]:
    """One line for each partition without an active, or too few standbys, that meet the bounds.

    ``partitions`` is how many each store has, ``lags`` the rows of ``/v1/lags``.
    """
    if not partitions:
        return ["No store is known."]
    held: dict[tuple[str, int], list[tuple[str, Lag]]] = {}
    for row in lags:
        lag = Lag(*(row[name] for name in Lag._fields))
        held.setdefault((row["store"], row["partition"]), []).append((row["role"], lag))
    found = []
    for store, count in sorted(partitions.items()):
        for partition in range(count):
            wanting = _wanting(held.get((store, partition), []), tolerance, standbys)
            if wanting is not None:
                found.append(f"{store}, partition {partition}: {wanting}")
    return found


def _wanting(replicas: list[tuple[str, Lag]], tolerance: Tolerance, standbys: int) -> str | None:
    """What one partition's replicas lack, None if nothing."""
    actives = [lag for role, lag in replicas if role == "active"]
    if not actives:
        return "no active replica"
    if not any(tolerance.met_by(lag) for lag in actives):
        return ", ".join(
            f"{name} is unknown" if figure is None else f"{name} {figure} > {bound}"
            for _, bound, name, figure in tolerance.unmet_by(actives[0])
        )
    others = sum(role == "standby" and tolerance.met_by(lag) for role, lag in replicas)
    return None if others >= standbys else f"{others} of {standbys} standbys"


def _watch(server: Server, console: Console, interval_s: float) -> None:
    shown: RenderableType = status_view(server.lags(), server.findings())
    with contextlib.suppress(KeyboardInterrupt), _screen(console) as show:
        while True:
            show(shown)
            time.sleep(interval_s)
            try:
                shown = status_view(server.lags(), server.findings())
            except ForebayError as error:
                # The server may be restarting, which is what --watch is used for.
                shown = Text(str(error))


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """A display that replaces its previous content; without a terminal, it prints one after the other."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda shown: live.update(shown, refresh=True)


def status_view(lags: list[dict[str, Any]], findings: list[dict[str, Any]]) -> RenderableType:
    """The table of tasks, below it why records are not applied, each reason once, and what else is wrong."""
    # Of those the lines of failures state each reason once for all replicas.
    others = [finding for finding in findings if finding["kind"] != "replica-failed"]
    lines = [
        Text.assemble(
            (f"{finding['severity']}: ", _SEVERITY_STYLES[finding["severity"]]),
            f"{finding['detail']} {finding['remedy']}",
        )
        for finding in others
    ]
    return Group(status_table(lags), *(Text(line, style="red") for line in failures(lags)), *lines)


def failures(lags: list[dict[str, Any]]) -> list[str]:
    """One line for each reason why records are not applied, with the replicas that it concerns."""
    concerned: dict[str, list[str]] = {}
    for row in lags:
        if row.get("failure") is not None:
            concerned.setdefault(row["failure"], []).append(f"{row['store']}-{row['partition']} on {row['host']}")
    return [
        f"not applied: {', '.join(sorted(replicas)[:_MAX_NAMED])}"
        f"{f' and {len(replicas) - _MAX_NAMED} more' if len(replicas) > _MAX_NAMED else ''}: {reason}"
        for reason, replicas in concerned.items()
    ]


def status_table(lags: list[dict[str, Any]]) -> Table:
    """Tasks by worker; each cell shows role, record lag, time lag and age, the worst over the task's stores."""
    hosts = sorted({row["host"] for row in lags})
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    stores: dict[str, set[str]] = {}
    for row in lags:
        cells.setdefault((row["task"], row["host"]), []).append(row)
        stores.setdefault(row["task"], set()).add(row["store"])
    table = Table(title="tasks: role, records behind, time behind the log, and age if known", title_justify="left")
    table.add_column("task")
    table.add_column("stores")
    for host in hosts:
        table.add_column(host)
    for task in sorted(stores, key=lambda text: [int(part) for part in text.split("_")]):
        shown = [_cell(cells[task, host]) if (task, host) in cells else "" for host in hosts]
        table.add_row(task, ", ".join(sorted(stores[task])), *shown)
    return table


def _cell(rows: list[dict[str, Any]]) -> Text:
    role = max((row["role"] for row in rows), key=["standby", "active", "restoring"].index)
    records = [row["record_lag"] for row in rows]
    times = [row["time_lag_ms"] for row in rows]
    behind = "?" if None in records else f"{max(records):,}"
    late = "?" if None in times else f"{max(times):,} ms"
    ages = [row["age_ms"] for row in rows if row["age_ms"] is not None]
    age = f" / {max(ages):,} ms" if ages else ""
    return Text.assemble((role, _ROLE_STYLES[role]), f" {behind} / {late}{age}{_restored(rows)}")


def _restored(rows: list[dict[str, Any]]) -> str:
    """How far the restores of a task are, while any is under way."""
    records = [row["restored_records"] for row in rows if row.get("restored_records") is not None]
    if not records:
        return ""
    left = [row["restore_seconds_left"] for row in rows if row.get("restore_seconds_left") is not None]
    return f", {sum(records):,} restored{f', {max(left):,} s left' if left else ''}"
