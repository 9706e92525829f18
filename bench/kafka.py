"""On a Kafka broker of its own: a full restore, and how long a committed record takes to be readable."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import signal
import time
from dataclasses import dataclass

from bench.comparison import Effort
from bench.deployment import OPTIONS, STORE, ask, deployment, topology
from bench.figures import Row, Target, percentile
from bench.process import Family, processor_s
from bench.records import records

from examples.broker import Broker
from tests.support.cluster import Cluster, free_port, wait_until

RECORDS = 4_000_000
PARTITIONS = 4
WRITES = 200


def kafka(effort: Effort) -> list[Row]:
    with Broker(effort.directory / "kafka") as broker:
        return [*_restoration(effort, broker), *_freshness(effort, broker)]


def application(name: str, partitions: int = PARTITIONS) -> str:
    """The topology of an application of its own on the common broker."""
    return topology(partitions).replace('application_id = "bench"', f'application_id = "{name}"')


def _restoration(effort: Effort, broker: Broker) -> list[Row]:
    directory = effort.directory / "restoration"
    directory.mkdir()
    with deployment(directory, kafka=broker.url, topology_text=application("restoration")) as cluster:
        cluster.put(STORE, small_records())
        rounds = [[restore(cluster, processes) for processes in (1, 2)] for _ in range(effort.rounds)]
    one, two = zip(*rounds, strict=True)
    return [
        Row(
            f"full restore of {RECORDS:,} small records from Kafka, 2 processes, their start included",
            "records/s",
            tuple(restored.records_per_second for restored in two),
            "1 process",
            tuple(restored.records_per_second for restored in one),
            Target(800_000, of_ratio=False),
        ),
        Row(
            "processor time of the serving process meanwhile, 2 processes",
            "s",
            tuple(restored.serving_processor_s for restored in two),
        ),
    ]


@dataclass(frozen=True)
class Restored:
    """A worker's full restore: its speed, and what it used, its restore processes included."""

    records_per_second: float
    serving_processor_s: float
    processor_s: float
    max_resident_mb: float


def small_records() -> dict[bytes, bytes]:
    """Keys of 16 bytes in random order, numbers of 8 digits."""
    rng = random.Random(1)
    return {b"%016x" % rng.getrandbits(64): b"%d" % rng.randrange(10**7, 10**8) for _ in range(RECORDS)}


def restore(cluster: Cluster, processes: int) -> Restored:
    """Start a worker with nothing on disk, and measure until it has everything."""
    address = f"127.0.0.1:{free_port()}"
    cluster.start_worker(address, "--restore-processes", str(processes), ready=False)
    pid = cluster.workers[address].pid
    try:
        wait_until(lambda: _complete(address) is not None, "a restore")
        begun, used, family = time.monotonic(), processor_s(pid), Family(pid)
        wait_until(lambda: family.sample() or _complete(address) == PARTITIONS, "the end of a restore", 120)
        took = time.monotonic() - begun
        return Restored(RECORDS / took, processor_s(pid) - used, family.processor_s, family.max_resident_mb)
    finally:
        cluster.kill(address, signal.SIGTERM)
        shutil.rmtree(cluster._state_dirs[address], ignore_errors=True)


def _complete(address: str) -> int | None:
    """How many partitions are restored; None before the worker holds all."""
    status, body = ask(address, "/v1/lags")
    rows = json.loads(body)["lags"] if status == 200 else []
    return sum(row["restored"] for row in rows) if len(rows) == PARTITIONS else None


def _freshness(effort: Effort, broker: Broker) -> list[Row]:
    directory = effort.directory / "freshness"
    directory.mkdir()
    with deployment(directory, kafka=broker.url, topology_text=application("freshness")) as cluster:
        cluster.put(STORE, records(1_000))
        cluster.start_workers(2)
        router = cluster.start_router(*OPTIONS)
        cluster.wait_settled(router)
        rounds = [[readable_after_ms(cluster, router, n) for n in range(WRITES)] for _ in range(effort.rounds)]
    what = "a record committed to Kafka, until the router answers with it"
    return [
        Row(f"{what}: p50", "ms", tuple(percentile(r, 50) for r in rounds), target=Target(20, False, False)),
        Row(f"{what}: p99", "ms", tuple(percentile(r, 99) for r in rounds)),
    ]


def readable_after_ms(cluster: Cluster, router: str, number: int) -> float:
    """How long after its commit a record is what the router answers with."""
    value = b"%d" % time.monotonic_ns()
    spec = cluster.topology.stores[STORE]
    key = b"fresh-%d" % (number % 10)
    rows = {cluster.partition(spec, key): [(key, value, int(time.time() * 1000))]}
    connection = http.client.HTTPConnection(router)
    cluster.log.append_rows(spec, rows)  # type: ignore[attr-defined]
    begun = time.perf_counter()
    while True:
        connection.request("GET", f"/v1/stores/{STORE}/keys/{key.decode()}")
        body = connection.getresponse().read()
        if value in body:
            connection.close()
            return (time.perf_counter() - begun) * 1000
