"""A worker killed, and one stopped, under a constant rate of reads of its keys through the router."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.comparison import Effort
from bench.deployment import OPTIONS, STORE, deployment, written_to
from bench.figures import Row, Target, percentile
from bench.open_loop import Read, for_seconds, read_steadily
from bench.records import records

from tests.support.cluster import Cluster, wait_until

READS_PER_SECOND = 500
WORKERS = 3
KEYS = 2_000
_BEFORE_S = 1.0
_SETTLING_S = 1.0


def failover(effort: Effort) -> list[Row]:
    killed: list[list[float]] = []
    stopped: list[list[float]] = []
    with deployment(effort.directory) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        cluster.start_workers(WORKERS)
        router = cluster.start_router(*OPTIONS)
        with written_to(cluster, rows):
            for _ in range(effort.rounds):
                cluster.wait_settled(router)
                killed.append(_kill(effort, cluster, router, list(rows)))
                cluster.wait_settled(router)
                stopped.append(_stop(effort, cluster, router, list(rows)))
    none = Target(0, at_least=False, of_ratio=False)
    rate = f"at {READS_PER_SECOND} reads/s of its keys"
    kill_failed, kill_longest = zip(*killed, strict=True)
    stop_failed, stop_p99, stop_longest = zip(*stopped, strict=True)
    within = Target(50, at_least=False, of_ratio=False), Target(30, at_least=False, of_ratio=False)
    return [
        Row(f"worker killed (-9) {rate}: failed", "reads", kill_failed, target=none),
        Row(f"worker killed (-9) {rate}: longest", "ms", kill_longest, target=within[0]),
        Row(f"worker stopped (SIGSTOP) {rate}: failed", "reads", stop_failed, target=none),
        Row(f"worker stopped (SIGSTOP) {rate}: p99 after the first second", "ms", stop_p99, target=within[1]),
        Row(f"worker stopped (SIGSTOP) {rate}: longest of all", "ms", stop_longest),
    ]


def _kill(effort: Effort, cluster: Cluster, router: str, keys: list[bytes]) -> list[float]:
    victim, paths = _victim(cluster, router, keys)
    reads, _ = _strike(effort, router, paths, lambda: cluster.kill(victim))
    cluster.start_worker(victim)
    return [_failed(reads), max(read.took_ms for read in reads)]


def _stop(effort: Effort, cluster: Cluster, router: str, keys: list[bytes]) -> list[float]:
    victim, paths = _victim(cluster, router, keys)
    reads, struck_s = _strike(effort, router, paths, lambda: cluster.kill(victim, signal.SIGSTOP))
    cluster.kill(victim, signal.SIGCONT)
    after = [read.took_ms for read in reads if read.due_s > struck_s + _SETTLING_S]
    return [_failed(reads), percentile(after, 99), max(read.took_ms for read in reads)]


def _victim(cluster: Cluster, router: str, keys: list[bytes]) -> tuple[str, list[str]]:
    """A worker that is active for something, and the paths of its keys."""
    spec = cluster.topology.stores[STORE]
    active: dict[int, str] = {}

    def every_partition_has_one() -> bool:
        roles = cluster.roles(router, STORE).items()
        active.update(
            {partition: host for partition, by_host in roles for host in by_host if by_host[host] == "active"}
        )
        return len(active) == spec.partitions

    wait_until(every_partition_has_one, "an active for every partition")
    victim = active[0]
    chosen = [key.decode() for key in keys if active[cluster.partition(spec, key)] == victim]
    return victim, [f"/v1/stores/{STORE}/keys/{key}" for key in chosen]


def _strike(effort: Effort, router: str, paths: list[str], strike: Callable[[], None]) -> tuple[list[Read], float]:
    """Every read of a span in which a worker is struck, and the moment of that."""
    going_on = for_seconds(_BEFORE_S + _SETTLING_S + effort.seconds)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_steadily, router, paths, per_second=READS_PER_SECOND, going_on=going_on)
        time.sleep(_BEFORE_S)
        struck_s = time.monotonic()
        strike()
        return reading.result(), struck_s


def _failed(reads: list[Read]) -> float:
    return sum(read.status != 200 for read in reads)
