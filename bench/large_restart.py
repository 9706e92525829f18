"""A worker with 20 GB in 64 stores that is killed and started again, beside opening the same RocksDBs.

Each begins with nothing of its files in memory; the start of its process counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.comparison import Effort
from bench.credentials import worker_options
from bench.deployment import STORE, ask, deployment, wait_caught_up
from bench.figures import Row, Target, interleaved
from bench.kafka import application
from bench.large_records import large_key, write_large
from bench.large_state import store_paths
from bench.memory_limit import drop_file_pages

from examples.broker import Broker
from tests.support.cluster import Cluster, free_port, wait_until

RECORDS = 10_000_000
VALUE_BYTES = 2_000
STORES = 64
_CACHE_BYTES = 256 << 20
_DEADLINE_S = 1_800
_OPTIONS = ("--session-timeout-ms", "6000", "--restore-processes", "2")
_BARE = "rocksdict alone, the same stores opened and one key read"


def large_restart(effort: Effort, records: int = RECORDS) -> list[Row]:
    directory = effort.directory / "cluster"
    directory.mkdir()
    with (
        Broker(effort.directory / "kafka") as broker,
        deployment(directory, kafka=broker.url, topology_text=application("restart", STORES)) as cluster,
    ):
        [spec] = cluster.topology.stores.values()
        write_large(cluster.changelog, spec, records, VALUE_BYTES)
        cluster.log.append(spec, {}, STORE, 1)
        worker = f"127.0.0.1:{free_port()}"
        options = (*worker_options(effort.directory), *_OPTIONS)
        cluster.start_worker(worker, *options, ready=False)
        wait_until(lambda: ask(worker, "/readyz")[0] == 200, "readiness", _DEADLINE_S)
        wait_caught_up(worker)
        cluster.kill(worker)
        stores = store_paths(cluster, worker, STORES)
        ready: list[float] = []

        def ours() -> float:
            """Until the first answer."""
            began = _begun(cluster, worker)
            cluster.start_worker(worker, *options, ready=False)
            path = f"/v1/stores/{STORE}/keys/{large_key(0).decode()}"
            first = _after(began, lambda: ask(worker, path)[0] == 200)
            ready.append(_after(began, lambda: ask(worker, "/readyz")[0] == 200))
            return first

        first, bare = interleaved(effort.rounds, ours, lambda: _opened(cluster, worker, stores, effort.directory))
    what = f"worker of {records * VALUE_BYTES / 1e9:.0f} GB in {STORES} stores, killed (-9) and started again"
    bound = Target(2, at_least=False)
    return [
        Row(f"{what}: first answer", "s", first, _BARE, bare, bound),
        Row(f"{what}: /readyz 200", "s", tuple(ready), _BARE, bare, bound),
    ]


def _begun(cluster: Cluster, worker: str) -> float:
    """When whatever is started next begins: the worker is gone, and so is all of its files that was in memory."""
    if cluster.workers[worker].poll() is None:
        cluster.kill(worker)
    drop_file_pages()
    return time.monotonic()


def _after(began: float, condition: Callable[[], bool]) -> float:
    wait_until(condition, "a start", _DEADLINE_S)
    return time.monotonic() - began


def _opened(cluster: Cluster, worker: str, stores: list[Path], directory: Path) -> float:
    [spec] = cluster.topology.stores.values()
    key = large_key(0)
    keys = directory / "key"
    keys.write_text(f"{cluster.partition(spec, key)} {key.decode()}\n")
    began = _begun(cluster, worker)
    command = [sys.executable, "-m", "bench.rocksdict_reads"]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given = {"stores": [*map(str, stores)], "cache_bytes": _CACHE_BYTES, "seconds": 0}
        process.stdin.write(f"{json.dumps(given)}\n{keys}\n")
        process.stdin.flush()
        assert process.stdout.readline()
        return time.monotonic() - began
