"""``scripts/chaos``: run, judge, and say what was found."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.checker import check
from tests.chaos.history import History
from tests.chaos.planted import MUTANTS_BY_NAME
from tests.chaos.promises import Violation
from tests.chaos.report import page
from tests.chaos.result import Result, result_of
from tests.chaos.run import Run
from tests.chaos.schedule import kinds_for
from tests.chaos.sometimes import SHARE, possible, unreached
from tests.chaos.topologies import WIDE_PARTITIONS
from tests.mutants.mutant import FOLDERS

_ROOT = Path(__file__).parents[2]
_RESULTS = Path(__file__).parent / "results"
_REPORT = _ROOT / "docs" / "reliability.md"
_HISTORY, _RUN = "history.jsonl", "run.json"
_SHOWN = 5
"""Violations of a kind."""


def main() -> int:
    """The command."""
    options = _parser().parse_args()
    if options.report:
        write_report()
        return 0
    directory = options.again or Path(tempfile.mkdtemp(prefix="forebay-chaos-"))
    if options.again is None:
        try:
            run(directory, options)
        except BaseException:
            print(f"kept in {directory}")
            raise
    description = json.loads((directory / _RUN).read_text())
    status, result = judged(History.load(directory / _HISTORY), description)
    if options.publish:
        publish(result)
    if status == 0 and not options.keep and options.again is None:
        shutil.rmtree(directory)
    else:
        print(f"kept in {directory}")
    return status


def run(directory: Path, options: argparse.Namespace) -> None:
    """Run, and keep in a directory what it was and what it noted."""
    began = time.monotonic()
    running = Run(directory, options)
    try:
        running.go()
    finally:
        running.history.save(directory / _HISTORY)
        description = {
            "command": _command(options),
            "log": options.log,
            "minutes": (time.monotonic() - began) / 60,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": _commit(),
        }
        (directory / _RUN).write_text(json.dumps(description))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults are injected (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of schedule, writer and readers (default 1)")
    parser.add_argument(
        "--log", choices=("sqlite", "kafka"), default="sqlite", help="kind of log (default sqlite)"
    )
    parser.add_argument("--worker-processes", type=int, default=1, metavar="N", help="of each worker (default 1)")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="of Kafka (default 1)")
    parser.add_argument(
        "--partitions",
        type=int,
        default=WIDE_PARTITIONS,
        metavar="N",
        help=f"of the widest store (default {WIDE_PARTITIONS})",
    )
    known = sorted({*kinds_for("sqlite", 2), *kinds_for("kafka", 2)})
    listed = ", ".join(known)
    parser.add_argument(
        "--faults", nargs="*", choices=known, default=[], metavar="KIND", help=f"only some of {listed}"
    )
    parser.add_argument(
        "--mutant", choices=MUTANTS_BY_NAME, metavar="NAME", help="plant a fault of tests/mutants/table.py first"
    )
    parser.add_argument("--keep", action="store_true", help="keep history and logs though nothing is wrong")
    parser.add_argument("--again", type=Path, metavar="DIRECTORY", help="judge what was kept of a run again")
    parser.add_argument("--publish", action="store_true", help="add the result to those of docs/reliability.md")
    parser.add_argument("--report", action="store_true", help="only write docs/reliability.md from the results")
    return parser


def judged(history: History, description: Mapping[str, Any]) -> tuple[int, Result]:
    """Print what a history shows; returns the exit status and the figures."""
    log = description["log"]
    violations = check(history)
    _print_reads(history)
    _print_violations(violations)
    missed = unreached(history, log)
    for sometimes in missed:
        print(f"not reached: {sometimes.name}")
    count = len(list(possible(history, log)))
    reached = count - len(missed)
    print(f"{description['command']}: {len(violations)} violations; {reached} of {count} situations reached")
    result = result_of(history, violations, log, description)
    return int(bool(violations) or reached < SHARE * count), result


def publish(result: Result) -> None:
    """Add a run's result to those of its kind of log, and write the report."""
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{result.log}.json"
    if path.exists():
        result = Result.from_json(path.read_text()).plus(result)
    path.write_text(result.to_json())
    write_report()


def write_report() -> None:
    """Write ``docs/reliability.md`` from the results."""
    results = [Result.from_json(path.read_text()) for path in sorted(_RESULTS.glob("*.json"), reverse=True)]
    _REPORT.write_text(page(results))


def _command(options: argparse.Namespace) -> str:
    command = f"scripts/chaos --minutes {options.minutes:g} --seed {options.seed} --log {options.log}"
    command += f" --worker-processes {options.worker_processes}" if options.worker_processes > 1 else ""
    command += f" --brokers {options.brokers}" if options.brokers > 1 else ""
    command += f" --partitions {options.partitions}" if options.partitions != WIDE_PARTITIONS else ""
    faults = f" --faults {' '.join(options.faults)}" if options.faults else ""
    return command + faults + (f" --mutant {options.mutant}" if options.mutant else "")


def _commit() -> str:
    """That of the code which was judged, marked if it was changed since."""
    git = ["git", "-C", str(_ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *FOLDERS.values()], check=False).returncode
    return head.stdout.strip() + ("-dirty" if changed else "")


def _print_reads(history: History) -> None:
    statuses = collections.Counter((read.kind, read.status, read.problem) for read in history.reads)
    for (kind, status, problem), count in sorted(statuses.items()):
        print(f"{count:8} {kind} {status} {problem}")
    print(f"{len(history.reads)} reads of {len(history.records)} records; {len(history.faults)} faults")
    if history.overloads:
        print(f"for {history.overloaded_s():.0f} s the machine was overloaded: it was not judged who answers")


def _print_violations(violations: list[Violation]) -> None:
    for kind, count in collections.Counter(violation.kind for violation in violations).items():
        print(f"VIOLATED {kind}: {count} times")
        for violation in [violation for violation in violations if violation.kind == kind][:_SHOWN]:
            print(f"    {violation.detail}\n        {violation.read}")


if __name__ == "__main__":
    sys.exit(main())
