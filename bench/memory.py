"""How much memory a worker takes with very many stores, against the bound that docs/capacity.md states."""

from __future__ import annotations

from bench.comparison import Effort
from bench.deployment import ask, deployment, topology, wait_caught_up
from bench.figures import Row, Target
from bench.process import max_resident_mb
from bench.records import records

from tests.support.cluster import Cluster

STORES = 400
PARTITIONS = 4
CACHE_BYTES = 64 << 20
RECORDS_PER_STORE = 2_000
PASSES = 2
BASE_MB = 128
MB_PER_STORE_PARTITION = 0.5
BOUND_MB = BASE_MB + 2 * (CACHE_BYTES >> 20) + MB_PER_STORE_PARTITION * STORES * PARTITIONS


def memory(effort: Effort) -> list[Row]:
    text = topology(PARTITIONS, [f"s{n}" for n in range(STORES)])
    # The tests' short session expires before the leader has asked for the ends of this many logs.
    options = (
        *("--session-timeout-ms", "30000"),
        *("--rocksdb-block-cache-bytes", str(CACHE_BYTES)),
        *("--rocksdb-write-buffer-bytes", str(CACHE_BYTES)),
    )
    with deployment(effort.directory, topology_text=text, worker_options=options) as cluster:
        worker = cluster.start_worker(ready=False)
        wait_caught_up(worker)
        for _ in range(PASSES):
            _write_and_read(cluster, worker)
        taken = max_resident_mb(cluster.workers[worker].pid)
    what = f"memory of a worker with {STORES} stores of {PARTITIONS} partitions, written to and read"
    return [Row(what, "MB", (taken,), target=Target(BOUND_MB, at_least=False, of_ratio=False))]


def _write_and_read(cluster: Cluster, worker: str) -> None:
    rows = records(RECORDS_PER_STORE)
    for n in range(STORES):
        cluster.put(f"s{n}", rows)
    wait_caught_up(worker)
    for n in range(STORES):
        for key in list(rows)[:10]:
            assert ask(worker, f"/v1/stores/s{n}/keys/{key.decode()}")[0] == 200
