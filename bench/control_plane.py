"""The cost of many workers to a router: the workers are simulated, and send real documents over real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.comparison import Effort
from bench.deployment import ask
from bench.figures import Row, Target
from bench.process import processor_s, resident_mb

from tests.support.cluster import free_port, wait_until

WORKERS = (3, 30, 300, 1_000)
TASKS = 20_000
_SETTLE_S = 15.0


@dataclass(frozen=True)
class Cost:
    """The cost of one router."""

    share_of_core: float
    rss_mb: float
    received_kb_per_s: float
    known_after_s: float


def control_plane(effort: Effort) -> list[Row]:
    rows = []
    for count in WORKERS:
        costs = [_measure(count, max(10, effort.seconds)) for _ in range(effort.rounds)]
        what = f"a router beside {count:,} workers with {TASKS:,} tasks, each twice"
        largest = count == WORKERS[-1]
        rows += [
            Row(
                f"{what}: processor",
                "% of a core",
                tuple(100 * cost.share_of_core for cost in costs),
                target=Target(5, False, False) if largest else None,
            ),
            Row(
                f"{what}: memory",
                "MB",
                tuple(cost.rss_mb for cost in costs),
                target=Target(200, False, False) if largest else None,
            ),
            Row(f"{what}: received", "kB/s", tuple(cost.received_kb_per_s for cost in costs)),
            Row(f"{what}: a new map is known after", "s", tuple(cost.known_after_s for cost in costs)),
        ]
    return rows


def _measure(count: int, seconds: int) -> Cost:
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    workers = subprocess.Popen(
        [sys.executable, "-m", "bench.simulated_workers", str(count), str(TASKS), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert workers.stdin is not None
    assert workers.stdout is not None
    workers.stdout.readline()
    router = subprocess.Popen(
        [sys.executable, "-m", "forebay", "router", "--seeds", f"127.1.0.1:{port}", "--listen", address],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(_status(address).get("workers", ())) == count, f"{count} workers being known", 60)
        # The very first round is not the cost of staying up to date.
        time.sleep(_SETTLE_S)
        _, sent_before = _command(workers)
        begun, used_before = time.monotonic(), processor_s(router.pid)
        time.sleep(seconds)
        took, used = time.monotonic() - begun, processor_s(router.pid) - used_before
        generation, sent = _command(workers)
        begun = time.monotonic()
        wait_until(lambda: _generation(address) == generation, "the new map", 180)
        known_after_s = time.monotonic() - begun
        return Cost(used / took, resident_mb(router.pid), (sent - sent_before) / took / 1000, known_after_s)
    finally:
        for process in (router, workers):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _status(address: str) -> dict[str, Any]:
    time.sleep(0.02)
    status, body = ask(address, "/v1/status")
    return dict(json.loads(body)) if status == 200 else {}


def _generation(address: str) -> int | None:
    status = _status(address)
    return status["generation"]["generation"] if status else None


def _command(workers: subprocess.Popen[str]) -> tuple[int, int]:
    assert workers.stdin is not None
    assert workers.stdout is not None
    workers.stdin.write("\n")
    workers.stdin.flush()
    generation, sent = workers.stdout.readline().split()
    return int(generation), int(sent)
