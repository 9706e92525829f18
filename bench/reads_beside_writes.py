"""Reads of random keys while streams flow into the same worker, beside Kafka Streams on the same topic and rates.

Writer, broker and load generator have the same processors as what is measured. Only one of the services runs at a
time. The rate is that of a closed loop, the latencies those of an open one, so that pauses count in full.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.comparison import Effort
from bench.deployment import KEYS, STORE, deployment, wait_caught_up
from bench.figures import Row, Target, percentile
from bench.kafka import application
from bench.kafka_streams import answers
from bench.open_loop import for_seconds, read_steadily
from bench.process import processor_s
from bench.records import records
from bench.single_key import CONNECTIONS
from bench.stream_writer import Stream, streaming
from bench.table_service import TableService, compiled
from bench.wrk import Requests, load

from examples.broker import Broker
from tests.support.cluster import Cluster

RATES = (0, 10_000, 50_000)
"""Records a second."""
_READS_PER_SECOND = 1_000
_PARTITIONS = 4
_SETTLING_S = 2.0
_KEYS_OF_ALL_PARTITIONS = 100
_MIN_RATIO = {0: 1.0, 10_000: 1.0, 50_000: 1.0}
_MAX_P99_RATIO = 1.0


@dataclass(frozen=True)
class Figures:
    """One round of a service at one rate of records."""

    reads_per_second: float
    p99_ms: float
    longest_ms: float
    processor_share: float
    """Processors that the service used during the open loop."""


def reads_beside_writes(effort: Effort) -> list[Row]:
    """Both logs; Kafka's beside Kafka Streams."""
    return [*_on_kafka(effort), *_on_sqlite(effort)]


def _on_kafka(effort: Effort) -> list[Row]:
    directory = effort.directory / "kafka-log"
    directory.mkdir()
    classes = compiled(effort.directory)
    with (
        Broker(effort.directory / "kafka") as broker,
        deployment(
            directory, kafka=broker.url, topology_text=application("beside", _PARTITIONS), headers={}
        ) as cluster,
    ):
        rows = records(KEYS)
        cluster.put(STORE, rows)
        paths = [key.decode() for key in rows]
        [spec] = cluster.topology.stores.values()
        worker = cluster.start_worker(None)
        wait_caught_up(worker)
        table = TableService(classes, directory / "table", broker.address, spec.topic, _PARTITIONS)
        found = []
        for per_second in RATES:
            ours, theirs = [], []
            for _ in range(effort.rounds):
                with streaming(_stream(cluster, per_second)):
                    with _worker_again(cluster, worker):
                        pid = cluster.workers[worker].pid
                        ours.append(_measured(effort, worker, f"/v1/stores/{STORE}/keys/", paths, pid))
                    with table:
                        table.start()
                        table.restored()
                        answers(table.address, [f"/keys/{key}" for key in paths[:_KEYS_OF_ALL_PARTITIONS]])
                        _warm_up(effort, table.address, paths)
                        theirs.append(_measured(effort, table.address, "/keys/", paths, table.pid))
            found += _rows("Kafka", per_second, ours, "Kafka Streams + Undertow", theirs)
        return found


def _on_sqlite(effort: Effort) -> list[Row]:
    directory = effort.directory / "sqlite-log"
    directory.mkdir()
    with deployment(directory, partitions=_PARTITIONS, headers={}) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        paths = [key.decode() for key in rows]
        worker = cluster.start_worker(None)
        wait_caught_up(worker)
        found = []
        for per_second in RATES:
            ours = []
            for _ in range(effort.rounds):
                with streaming(_stream(cluster, per_second)):
                    time.sleep(_SETTLING_S)
                    pid = cluster.workers[worker].pid
                    ours.append(_measured(effort, worker, f"/v1/stores/{STORE}/keys/", paths, pid))
            found += _rows("SQLite", per_second, ours, "", [])
        return found


def _stream(cluster: Cluster, per_second: int) -> Stream:
    return Stream(cluster.changelog.url, str(cluster.topology_path), STORE, KEYS, per_second)


@contextmanager
def _worker_again(cluster: Cluster, worker: str) -> Iterator[None]:
    """The worker, started again if it is not running, and ended afterwards."""
    if cluster.workers[worker].poll() is not None:
        cluster.start_worker(worker)
    time.sleep(_SETTLING_S)
    try:
        yield
    finally:
        cluster.kill(worker, signal.SIGTERM)


def _warm_up(effort: Effort, address: str, keys: list[str]) -> None:
    """The just-in-time compiler learns from some hundred thousand requests."""
    _load(Effort(1, 8, effort.directory), address, "/keys/", keys)


def _measured(effort: Effort, address: str, path: str, keys: list[str], pid: int) -> Figures:
    rate = _load(effort, address, path, keys)
    used, begun = processor_s(pid), time.monotonic()
    reads = read_steadily(
        address,
        [path + key for key in keys],
        per_second=_READS_PER_SECOND,
        going_on=for_seconds(effort.seconds),
    )
    took_s = time.monotonic() - begun
    assert all(read.status == 200 for read in reads), {read.status for read in reads}
    took_ms = [read.took_ms for read in reads]
    return Figures(rate, percentile(took_ms, 99), max(took_ms), (processor_s(pid) - used) / took_s)


def _load(effort: Effort, address: str, path: str, keys: list[str]) -> float:
    requests = Requests.of(effort.directory / "keys", path, keys)
    return load(address, requests, connections=CONNECTIONS, seconds=effort.seconds).requests_per_second


def _rows(log: str, per_second: int, ours: list[Figures], against: str, theirs: list[Figures]) -> list[Row]:
    beside = f"{per_second:,} records/s applied from {log}"

    def row(what: str, unit: str, figure: Callable[[Figures], float], target: Target | None = None) -> Row:
        return Row(
            f"{what}, {beside}", unit, tuple(map(figure, ours)), against, tuple(map(figure, theirs)), target
        )

    streams = bool(theirs)
    return [
        row(
            "worker, random keys",
            "requests/s",
            lambda figures: figures.reads_per_second,
            Target(_MIN_RATIO[per_second]) if streams else None,
        ),
        row(
            f"p99 at {_READS_PER_SECOND:,} reads/s",
            "ms",
            lambda figures: figures.p99_ms,
            Target(_MAX_P99_RATIO, at_least=False) if streams else None,
        ),
        row(f"longest at {_READS_PER_SECOND:,} reads/s", "ms", lambda figures: figures.longest_ms),
        row(f"processors used at {_READS_PER_SECOND:,} reads/s", "", lambda figures: figures.processor_share),
    ]
