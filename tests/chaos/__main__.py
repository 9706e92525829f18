"""``scripts/chaos``: run, judge, and say what was found."""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.checker import Violation, check
from tests.chaos.history import History
from tests.chaos.run import Run
from tests.chaos.schedule import kinds_for
from tests.chaos.sometimes import SHARE, possible, unreached

_SHOWN = 5
"""Violations of a kind."""


def main() -> int:
    """The command."""
    options = _parser().parse_args()
    if options.again is not None:
        return judge(History.load(options.again))
    directory = Path(tempfile.mkdtemp(prefix="forebay-chaos-"))
    run = Run(directory, options)
    began = time.monotonic()
    try:
        run.go()
    finally:
        run.history.save(directory / "history.jsonl")
    print(f"{time.monotonic() - began:.0f} s, seed {options.seed}, {options.log}; kept in {directory}")
    status = judge(run.history)
    if status == 0 and not options.keep:
        shutil.rmtree(directory)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults are injected (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of schedule, writer and readers (default 1)")
    parser.add_argument(
        "--log", choices=("sqlite", "kafka"), default="sqlite", help="kind of log (default sqlite)"
    )
    known = sorted({*kinds_for("sqlite"), *kinds_for("kafka")})
    parser.add_argument(
        "--faults", nargs="*", choices=known, default=[], metavar="KIND", help=f"only these of {', '.join(known)}"
    )
    parser.add_argument("--keep", action="store_true", help="keep history and logs though nothing is wrong")
    parser.add_argument("--again", type=Path, metavar="HISTORY", help="judge a kept history.jsonl again")
    return parser


def judge(history: History) -> int:
    """Print what a history shows; returns the exit status."""
    violations = check(history)
    _print_reads(history)
    _print_violations(violations)
    missed = unreached(history)
    for sometimes in missed:
        print(f"not reached: {sometimes.name}")
    count = len(list(possible(history)))
    reached = count - len(missed)
    print(f"{len(violations)} violations; {reached} of {count} situations reached")
    return int(bool(violations) or reached < SHARE * count)


def _print_reads(history: History) -> None:
    statuses = collections.Counter((read.kind, read.status, read.problem) for read in history.reads)
    for (kind, status, problem), count in sorted(statuses.items()):
        print(f"{count:8} {kind} {status} {problem}")
    print(f"{len(history.reads)} reads of {len(history.records)} records; {len(history.faults)} faults")


def _print_violations(violations: list[Violation]) -> None:
    for kind, count in collections.Counter(violation.kind for violation in violations).items():
        print(f"VIOLATED {kind}: {count} times")
        for violation in [violation for violation in violations if violation.kind == kind][:_SHOWN]:
            print(f"    {violation.detail}\n        {violation.read}")


if __name__ == "__main__":
    sys.exit(main())
