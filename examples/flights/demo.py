"""The flights demo: ``scripts/demo [--speed N|max] [--days N] [--kafka] [--tap] [--check]``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.broker import Broker
from examples.flights.check import Finding, examples, run_check
from examples.flights.flights import first_days, load_flights, replay, slices
from examples.flights.supervisor import DemoFailed, Supervisor
from examples.ports import free_ports
from forebay.errors import ForebayError
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind

DEFAULT_PORT = 8080
_DAYS_PER_SLICE_AT_MAX = 17.0
_CHECK_APPLY_RATE = 12_000
console = Console()


def main() -> None:
    """Run the demo; exit status 1 if ``--check`` found anything wrong, 2 if the demo could not run."""
    arguments = _arguments()
    directory = Path(tempfile.mkdtemp(prefix="forebay-flights-"))
    signal.signal(signal.SIGTERM, _interrupt)
    supervisor = None
    try:
        port = free_ports(1)[0] if arguments.check else arguments.port
        bind(HostInfo("127.0.0.1", port)).close()
        # At full speed a worker would be behind for milliseconds only. Paced, it can be seen to catch up, and
        # for as long however few the days are.
        rate = _CHECK_APPLY_RATE * arguments.days // 365
        options = ("--apply-records-per-second", str(rate)) if arguments.check else ()
        broker = Broker(directory / "kafka") if arguments.kafka else None
        supervisor = Supervisor(directory, port, options, broker, arguments.tap)
        speed = None if arguments.check else arguments.speed
        passed = run(supervisor, speed, arguments.days, check=arguments.check)
    except KeyboardInterrupt:
        passed = True
    except (DemoFailed, ForebayError, FileNotFoundError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}", highlight=False, markup=True)
        sys.exit(2)
    finally:
        if supervisor is not None:
            console.print("Stopping every process…")
            supervisor.stop()
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if passed else 1)


def run(supervisor: Supervisor, days_per_second: float | None, days: int, *, check: bool) -> bool:
    """Start everything and replay the flights of so many days; then check, or stay up until interrupted."""
    begun = time.monotonic()
    flights = first_days(load_flights(), days)
    missing = int(flights["tailnum"].isna().sum())
    console.print(f"{len(flights):,} flights; {missing:,} have no tail number and count for no aircraft.")
    console.print(f"Starting three workers, a router and the Spark job{' and its taps' * supervisor.tapped}…")
    supervisor.start()
    console.print(f"Up after {time.monotonic() - begun:.1f} s. The router answers at [bold]{supervisor.router}[/]")
    console.print(f"Open [bold]{supervisor.router}/console[/] to watch it.")
    _print_examples(supervisor)
    days_per_slice, pause_s = (_DAYS_PER_SLICE_AT_MAX, 0.0) if days_per_second is None else (days_per_second, 1.0)
    total_slices = sum(1 for _ in slices(flights, days_per_slice))
    with _progress(supervisor, flights, days_per_slice, pause_s):
        if check:
            findings = run_check(supervisor, flights, total_slices)
        else:
            _wait_for_end(supervisor, len(flights))
    if check:
        _print_findings(findings, time.monotonic() - begun)
        return all(finding.passed for finding in findings)
    console.print("No flight is left; everything stays up until Ctrl-C.")
    while True:
        supervisor.check_alive()
        time.sleep(1)


class _progress:
    """Replays in a thread, and shows how far replay and queries are."""

    def __init__(
        self, supervisor: Supervisor, flights: pd.DataFrame, days_per_slice: float, pause_s: float
    ) -> None:
        self._supervisor = supervisor
        self._flights = flights
        self._days_per_slice = days_per_slice
        self._pause_s = pause_s
        self._replayed = 0
        self._done = threading.Event()
        self._display = Progress(
            TextColumn("{task.description:<21}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("flights {task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )

    def __enter__(self) -> None:
        threading.Thread(target=self._replay, daemon=True).start()
        self._shower = threading.Thread(target=self._show, daemon=True)
        self._shower.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._shower.join()

    def _replay(self) -> None:
        replay(
            self._flights,
            self._supervisor.source,
            days_per_slice=self._days_per_slice,
            pause_s=self._pause_s,
            on_slice=self._count,
        )

    def _count(self, stretch: pd.DataFrame) -> None:
        self._replayed += len(stretch)

    def _show(self) -> None:
        total = len(self._flights)
        with self._display as display:
            replayed = display.add_task("replayed", total=total, note="")
            queries = {name: display.add_task(name, total=total, note="") for name in self._supervisor.stores}
            while True:
                last = self._done.wait(0.5)
                display.update(replayed, completed=self._replayed)
                for name, task in queries.items():
                    note = f"in {self._supervisor.batches[name]} batches"
                    display.update(task, completed=self._supervisor.rows[name], note=note)
                if last:
                    return


def _wait_for_end(supervisor: Supervisor, total: int) -> None:
    while not supervisor.has_read(total):
        supervisor.check_alive()
        time.sleep(0.5)


def _print_examples(supervisor: Supervisor) -> None:
    console.print("Try, while the year goes by:")
    for path in examples(supervisor):
        console.print(f"  curl -s '{supervisor.router}{path}'", highlight=False, soft_wrap=True)


def _print_findings(findings: list[Finding], elapsed_s: float) -> None:
    table = Table(title=f"checked in {elapsed_s:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("found", overflow="fold")
    table.add_column("")
    for finding in findings:
        table.add_row(finding.what, finding.found, "[green]ok[/]" if finding.passed else "[bold red]WRONG[/]")
    console.print(table)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _speed(text: str) -> float | None:
    return None if text == "max" else float(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Flights of 2013, streamed and served.")
    parser.add_argument("--speed", type=_speed, default=2.0, help="days of 2013 a second, or 'max' (default 2)")
    parser.add_argument("--days", type=int, default=365, help="days of 2013 from its first one (default 365)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="the router's port (default 8080)")
    parser.add_argument("--kafka", action="store_true", help="log and group on a Kafka broker of its own")
    parser.add_argument("--tap", action="store_true", help="serve what the job without forebay keeps itself")
    parser.add_argument("--check", action="store_true", help="run to the end at full speed, assert, and exit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
