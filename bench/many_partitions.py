"""What partitions cost: the same reads of a worker with more of them, idle and while a stream flows from Kafka."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from dataclasses import dataclass

from bench.comparison import Effort
from bench.deployment import KEYS, STORE, deployment, wait_caught_up
from bench.figures import Row, Target
from bench.kafka import application
from bench.records import records
from bench.stream_writer import Stream, streaming
from bench.wrk import Requests, load

from examples.broker import Broker
from forebay.errors import TopicMissing
from tests.cluster import Cluster, free_port, wait_until

_FEW = 4
_CONNECTIONS = 32
_SETTLING_S = 2.0
_PER_SECOND = 10_000
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Case:
    """So many partitions beside few, while so many records a second are applied, and the mark of the ratio."""

    partitions: int
    per_second: int
    least_ratio: float


_CASES = (Case(64, 0, 0.8), Case(1_024, 0, 0.8), Case(64, _PER_SECOND, 0.7))


def many_partitions(effort: Effort) -> list[Row]:
    """Each row's two workers are started and measured in turn."""
    with Broker(effort.directory / "kafka") as broker:
        return [_row(effort, broker, case) for case in _CASES]


def _row(effort: Effort, broker: Broker, case: Case) -> Row:
    name = f"partitions-{case.partitions}-{case.per_second}"
    directories = [effort.directory / f"{name}-{side}" for side in ("many", "few")]
    for directory in directories:
        directory.mkdir()
    texts = [application(f"{name}-many", case.partitions), application(f"{name}-few", _FEW)]
    with (
        deployment(directories[0], kafka=broker.url, topology_text=texts[0], headers={}) as many,
        deployment(directories[1], kafka=broker.url, topology_text=texts[1], headers={}) as few,
    ):
        for cluster in (many, few):
            wait_until(functools.partial(_filled, cluster), "the topics", _DEADLINE_S)
        rounds = [
            [_rate(effort, cluster, case.per_second) for cluster in (many, few)] for _ in range(effort.rounds)
        ]
    ours, theirs = zip(*rounds, strict=True)
    beside = f"{case.per_second:,} records/s applied from Kafka" if case.per_second else "nothing written"
    return Row(
        f"worker, random keys of {case.partitions:,} partitions, {beside}",
        "requests/s",
        tuple(ours),
        f"{_FEW} partitions",
        tuple(theirs),
        Target(case.least_ratio),
    )


def _filled(cluster: Cluster) -> bool:
    """Whether the rows are written: a broker that makes a thousand partitions knows the next topic late."""
    with contextlib.suppress(TopicMissing):
        cluster.put(STORE, records(KEYS))
        return True
    return False


def _rate(effort: Effort, cluster: Cluster, per_second: int) -> float:
    """Of a worker that is started for it: an idle one beside it would take its part of the processors."""
    address = next(iter(cluster.workers), f"127.0.0.1:{free_port()}")
    cluster.start_worker(address, "--session-timeout-ms", "30000", ready=False)
    wait_caught_up(address)
    stream = Stream(cluster.changelog.url, str(cluster.topology_path), STORE, KEYS, per_second)
    requests = Requests.of(
        cluster.directory / "keys", f"/v1/stores/{STORE}/keys/", [key.decode() for key in records(KEYS)]
    )
    try:
        with streaming(stream):
            time.sleep(_SETTLING_S)
            return load(address, requests, connections=_CONNECTIONS, seconds=effort.seconds).requests_per_second
    finally:
        cluster.kill(address, signal.SIGTERM)
