"""Runs schedules one after another, in a process for each processor.

The exit status is 1 if a promise was broken. A schedule depends on its log and its seed only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.promises import PromiseBroken
from tests.simulation.run import LOGS, simulate


def judge(schedule: tuple[str, int]) -> tuple[Counter[str], str | None]:
    """What a schedule was good for, and the promise that it broke."""
    try:
        outcome = simulate(*schedule)
    except PromiseBroken as error:
        return Counter(), str(error)
    counts = Counter(
        generations=outcome.generations,
        failovers=outcome.failovers,
        reads=outcome.reads,
        read_failovers=outcome.read_failovers,
    )
    return counts + outcome.faults, None


def run(schedules: Iterable[tuple[str, int]]) -> int:
    """Judge schedules, and print each that breaks a promise; returns how many do."""
    total, broken, begun, count = Counter[str](), 0, time.monotonic(), 0
    with ProcessPoolExecutor() as pool:
        for counts, problem in pool.map(judge, schedules, chunksize=20):
            count += 1
            total += counts
            if problem is not None:
                broken += 1
                print(problem, flush=True)
    figures = ", ".join(f"{name} {number:,}" for name, number in sorted(total.items()))
    print(f"{count:,} schedules in {time.monotonic() - begun:.0f} s, {broken} broke a promise ({figures})")
    return broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__.partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=2_000, help="how many for each log (default 2000)")
    parser.add_argument("--seed", type=int, default=1, help="the first one's (default 1)")
    parser.add_argument("--log", choices=LOGS, help="default: both")
    options = parser.parse_args()
    logs = LOGS if options.log is None else (options.log,)
    seeds = range(options.seed, options.seed + options.schedules)
    return int(run((log, seed) for log in logs for seed in seeds) > 0)


if __name__ == "__main__":
    sys.exit(main())
