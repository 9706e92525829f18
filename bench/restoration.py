"""A full restore by one and by two processes, and what it does to reads in the same worker."""

from __future__ import annotations

import json
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.comparison import Effort
from bench.deployment import ask, deployment
from bench.figures import Row, Target, percentile
from bench.open_loop import for_seconds, read_steadily
from bench.records import records

from tests.cluster import Cluster, free_port, wait_until

RECORDS = 2_000_000
PARTITIONS = 4
READS_PER_SECOND = 1_000
_SMALL_KEYS = 1_000
_OPTIONS = ("--standby-rebuild-delay-ms", "0")
_TOPOLOGY = f"""
application_id = "bench"

[[subtopology]]
name = "small"
partitions = 1

[[subtopology.store]]
name = "small"

[[subtopology]]
name = "large"
partitions = {PARTITIONS}

[[subtopology.store]]
name = "large"
"""


@dataclass(frozen=True)
class _Restore:
    """What one worker did that began with nothing on disk."""

    records_per_second: float
    p99_ms_during: float
    p99_ms_idle: float


def restoration(effort: Effort) -> list[Row]:
    with deployment(effort.directory, topology_text=_TOPOLOGY) as cluster:
        small = records(_SMALL_KEYS)
        cluster.put("small", small)
        cluster.put("large", records(RECORDS, seed=2))
        paths = [f"/v1/stores/small/keys/{key.decode()}" for key in small]
        rounds = [
            [_measure(effort, cluster, paths, processes) for processes in (1, 2)] for _ in range(effort.rounds)
        ]
    one, two = zip(*rounds, strict=True)
    during = f"reads at {READS_PER_SECOND:,}/s in the same worker, p99"
    bound = Target(3, at_least=False)
    return [
        Row(
            f"full restore of {RECORDS:,} records, 2 processes, their start included",
            "records/s",
            tuple(restore.records_per_second for restore in two),
            "1 process",
            tuple(restore.records_per_second for restore in one),
        ),
        *(
            Row(
                f"{during}, during a full restore by {name}",
                "ms",
                tuple(restore.p99_ms_during for restore in restores),
                "idle",
                tuple(restore.p99_ms_idle for restore in restores),
                bound,
            )
            for name, restores in (("1 process", one), ("2 processes", two))
        ),
    ]


def _measure(effort: Effort, cluster: Cluster, paths: list[str], processes: int) -> _Restore:
    address = f"127.0.0.1:{free_port()}"
    cluster.start_worker(address, *_OPTIONS, "--restore-processes", str(processes), ready=False)
    restoring: dict[str, float] = {}

    def going_on() -> bool:
        return "ended" not in restoring

    try:
        wait_until(lambda: _progress(address) is not None, "a restore")
        restoring["begun"] = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read_steadily, address, paths, per_second=READS_PER_SECOND, going_on=going_on)
            try:
                wait_until(lambda: _pause() and _progress(address) == PARTITIONS, "the end of a restore", 120)
            finally:
                restoring["ended"] = time.monotonic()
            during = [read.took_ms for read in reading.result() if read.status == 200]
        cluster.wait_ready(address)
        idle = read_steadily(address, paths, per_second=READS_PER_SECOND, going_on=for_seconds(effort.seconds))
    finally:
        cluster.kill(address, signal.SIGTERM)
        shutil.rmtree(cluster._state_dirs[address], ignore_errors=True)
    return _Restore(
        RECORDS / (restoring["ended"] - restoring["begun"]),
        percentile(during, 99),
        percentile([read.took_ms for read in idle], 99),
    )


def _pause() -> bool:
    time.sleep(0.2)
    return True


def _progress(address: str) -> int | None:
    """How many partitions are restored; None before the worker holds them and can answer the reads."""
    status, body = ask(address, "/v1/lags")
    rows = json.loads(body)["lags"] if status == 200 else []
    complete = {store: [row["complete"] for row in rows if row["store"] == store] for store in ("small", "large")}
    return sum(complete["large"]) if len(complete["large"]) == PARTITIONS and any(complete["small"]) else None
