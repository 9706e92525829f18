"""A full restore by one and by two processes, and what it does to reads in the same worker."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.comparison import Effort
from bench.deployment import ask, deployment
from bench.figures import Row, Target, percentile
from bench.open_loop import for_seconds, read_steadily
from bench.records import records

from tests.support.cluster import Cluster, free_port, wait_until

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


def restoration(effort: Effort) -> list[Row]:
    with deployment(effort.directory, topology_text=_TOPOLOGY) as cluster:
        small = records(_SMALL_KEYS)
        cluster.put("small", small)
        cluster.put("large", records(RECORDS, seed=2))
        paths = [f"/v1/stores/small/keys/{key.decode()}" for key in small]
        rates = [[_rate(cluster, processes) for processes in (1, 2)] for _ in range(effort.rounds)]
        p99s_ms = [
            [_p99s_ms(effort, cluster, paths, processes) for processes in (1, 2)] for _ in range(effort.rounds)
        ]
    one, two = zip(*rates, strict=True)
    what = f"full restore of {RECORDS:,} records from SQLite"
    during = f"reads at {READS_PER_SECOND:,}/s in the same worker, p99"
    bound = Target(3, at_least=False)
    return [
        Row(f"{what}, 1 process, its start included", "records/s", one, target=Target(400_000, of_ratio=False)),
        Row(f"{what}, 2 processes", "records/s", two, "1 process", one, Target(1.7)),
        *(
            Row(
                f"{during}, during a full restore by {name}",
                "ms",
                tuple(during_ms for during_ms, _ in p99s),
                "idle",
                tuple(idle_ms for _, idle_ms in p99s),
                bound,
            )
            for name, p99s in zip(("1 process", "2 processes"), zip(*p99s_ms, strict=True), strict=True)
        ),
    ]


def _rate(cluster: Cluster, processes: int) -> float:
    """Records a second of a worker that has nothing else to do."""
    with _restoring(cluster, processes) as address:
        begun = time.monotonic()
        wait_until(lambda: _progress(address) == PARTITIONS, "the end of a restore", 120)
        return RECORDS / (time.monotonic() - begun)


def _p99s_ms(effort: Effort, cluster: Cluster, paths: list[str], processes: int) -> tuple[float, float]:
    """During a restore and after it: of as many reads a second."""
    with _restoring(cluster, processes) as address:
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(
                read_steadily, address, paths, per_second=READS_PER_SECOND, going_on=lambda: not ended.is_set()
            )
            try:
                wait_until(lambda: _pause() and _progress(address) == PARTITIONS, "the end of a restore", 120)
            finally:
                ended.set()
            during = [read.took_ms for read in reading.result() if read.status == 200]
        cluster.wait_ready(address)
        idle = read_steadily(address, paths, per_second=READS_PER_SECOND, going_on=for_seconds(effort.seconds))
    return percentile(during, 99), percentile([read.took_ms for read in idle], 99)


@contextlib.contextmanager
def _restoring(cluster: Cluster, processes: int) -> Iterator[str]:
    """The address of a worker that began with nothing on disk, once it restores and answers."""
    address = f"127.0.0.1:{free_port()}"
    cluster.start_worker(address, *_OPTIONS, "--restore-processes", str(processes), ready=False)
    try:
        wait_until(lambda: _progress(address) is not None, "a restore")
        yield address
    finally:
        cluster.kill(address, signal.SIGTERM)
        shutil.rmtree(cluster._state_dirs[address], ignore_errors=True)


def _pause() -> bool:
    time.sleep(0.2)
    return True


def _progress(address: str) -> int | None:
    """How many partitions are restored; None before the worker holds them and can answer the reads."""
    status, body = ask(address, "/v1/lags")
    rows = json.loads(body)["lags"] if status == 200 else []
    complete = {store: [row["restored"] for row in rows if row["store"] == store] for store in ("small", "large")}
    return sum(complete["large"]) if len(complete["large"]) == PARTITIONS and any(complete["small"]) else None
