"""A worker of two processes beside one of one: what a read and a process cost, and when a record can be read.

The loader has the same two processors, so that rates would say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Effort
from bench.deployment import KEYS, OPTIONS, STORE, deployment, wait_caught_up
from bench.figures import Row, Target, percentile
from bench.kafka import WRITES, application, readable_after_ms
from bench.process import Family
from bench.records import records
from bench.wrk import Requests, load

from examples.broker import Broker
from examples.ports import free_ports
from tests.support.cluster import Cluster

PROCESSES = 2
_CONNECTIONS = 32
_WARM_UP_S = 1
_MAX_RATIO = 1.1
_MAX_ADDED_MB = 150
_MAX_READABLE_MS = {50: 10.0, 99: 25.0}
_PARTITIONS = (4, 64, 1_024)
_ALONE = ("--num-standby-replicas", "0", "--session-timeout-ms", "30000")


@dataclass(frozen=True)
class Worker:
    """One that has caught up: its process or parent, and for each address the requests that it answers."""

    pid: int
    requests: dict[str, Requests]


def worker_processes(effort: Effort) -> list[Row]:
    """Two processes beside one from SQLite, then how fresh reads through two are from Kafka."""
    return [*_costs(effort), *_freshness(effort)]


def _costs(effort: Effort) -> list[Row]:
    with _served(effort.directory / "one", 1) as one, _served(effort.directory / "two", PROCESSES) as two:
        rounds = [(_read_us(one, effort.seconds), _read_us(two, effort.seconds)) for _ in range(effort.rounds)]
        added_mb = _resident_mb(two) - _resident_mb(one)
    ones, twos = zip(*rounds, strict=True)
    return [
        Row(
            f"processor time of a read, worker of {PROCESSES} processes, together",
            "µs",
            tuple(twos),
            "1 process",
            tuple(ones),
            Target(_MAX_RATIO, at_least=False),
        ),
        Row(
            "memory that the second process takes, its parent included",
            "MB",
            (added_mb,),
            target=Target(_MAX_ADDED_MB, at_least=False, of_ratio=False),
        ),
    ]


@contextmanager
def _served(directory: Path, processes: int) -> Iterator[Worker]:
    directory.mkdir()
    with deployment(directory, headers={}) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        addresses = _successive(processes)
        cluster.start_worker(addresses[0], *_ALONE, "--processes", str(processes), ready=False)
        for address in addresses:
            wait_caught_up(address)
        worker = Worker(cluster.workers[addresses[0]].pid, _requests(cluster, directory, addresses, rows))
        _read_us(worker, _WARM_UP_S)
        yield worker


def _successive(count: int) -> list[str]:
    """Addresses at free ports, one after the other."""
    ports = free_ports(count)
    while ports[-1] - ports[0] != count - 1:
        ports = [*ports[1:], *free_ports(1)]
    return [f"127.0.0.1:{port}" for port in ports]


def _requests(
    cluster: Cluster, directory: Path, addresses: Sequence[str], rows: dict[bytes, bytes]
) -> dict[str, Requests]:
    """Of each process, those of the keys that it holds."""
    spec = cluster.topology.stores[STORE]
    found = {}
    for address in addresses:
        held = set(cluster.roles(address, STORE))
        keys = [key.decode() for key in rows if cluster.partition(spec, key) in held]
        found[address] = Requests.of(directory / address, f"/v1/stores/{STORE}/keys/", keys)
    return found


def _read_us(worker: Worker, seconds: int) -> float:
    """Processor time of a read, while all processes are asked for as many as they answer."""
    family = Family(worker.pid)
    with ThreadPoolExecutor() as pool:
        loads = [
            pool.submit(load, address, requests, connections=_CONNECTIONS, seconds=seconds)
            for address, requests in worker.requests.items()
        ]
        reads = sum(submitted.result().requests_per_second for submitted in loads) * seconds
    return family.processor_s / reads * 1e6


def _resident_mb(worker: Worker) -> float:
    return Family(worker.pid).max_resident_mb


def _freshness(effort: Effort) -> list[Row]:
    with Broker(effort.directory / "kafka") as broker:
        return [row for partitions in _PARTITIONS for row in _fresh(effort, broker, partitions)]


def _fresh(effort: Effort, broker: Broker, partitions: int) -> list[Row]:
    directory = effort.directory / f"fresh-{partitions}"
    directory.mkdir()
    text = application(f"fresh-{partitions}", partitions)
    with deployment(directory, kafka=broker.url, topology_text=text) as cluster:
        cluster.put(STORE, records(1_000))
        worker = cluster.start_worker(None, *_ALONE, "--processes", str(PROCESSES), ready=False)
        wait_caught_up(worker)
        router = cluster.start_router(*OPTIONS)
        cluster.wait_settled(router, replicas=1)
        rounds = [[readable_after_ms(cluster, router, n) for n in range(WRITES)] for _ in range(effort.rounds)]
    what = f"a record committed to Kafka, {partitions:,} partitions, until 2 processes and a router answer with it"
    return [
        Row(
            f"{what}: p{part}",
            "ms",
            tuple(percentile(some, part) for some in rounds),
            target=Target(max_ms, False, False) if partitions == _PARTITIONS[0] else None,
        )
        for part, max_ms in _MAX_READABLE_MS.items()
    ]
