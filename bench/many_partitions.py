"""What partitions cost: the same reads of a worker with more of them, idle and while a stream flows from Kafka."""

from __future__ import annotations

import contextlib
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
from tests.support.cluster import Cluster, free_port

_FEW = 4
_CONNECTIONS = 32
_SETTLING_S = 2.0
_PER_SECOND = 10_000


@dataclass(frozen=True)
class Case:
    """So many partitions beside few, while so many records a second are applied, and the mark of the ratio."""

    partitions: int
    per_second: int
    min_ratio: float


_CASES = (Case(64, 0, 0.8), Case(1_024, 0, 0.8), Case(64, _PER_SECOND, 0.7))


def many_partitions(effort: Effort) -> list[Row]:
    """Each row's two workers are started and measured in turn. Those that nothing is written to read SQLite."""
    idle = [_row(effort, case, None) for case in _CASES if not case.per_second]
    with Broker(effort.directory / "kafka") as broker:
        return [*idle, *(_row(effort, case, broker.url) for case in _CASES if case.per_second)]


def _row(effort: Effort, case: Case, kafka: str | None) -> Row:
    name = f"partitions-{case.partitions}-{case.per_second}"
    with contextlib.ExitStack() as stack:
        clusters = []
        for side, partitions in (("few", _FEW), ("many", case.partitions)):
            directory = effort.directory / f"{name}-{side}"
            directory.mkdir()
            text = application(f"{name}-{side}", partitions)
            cluster = deployment(directory, kafka=kafka, topology_text=text, headers={})
            clusters.append(stack.enter_context(cluster))
            clusters[-1].put(STORE, records(KEYS))
        rounds = [[_rate(effort, each, case.per_second) for each in clusters] for _ in range(effort.rounds)]
    theirs, ours = zip(*rounds, strict=True)
    beside = f"{case.per_second:,} records/s applied from Kafka" if case.per_second else "nothing written"
    return Row(
        f"worker, random keys of {case.partitions:,} partitions, {beside}",
        "requests/s",
        tuple(ours),
        f"{_FEW} partitions",
        tuple(theirs),
        Target(case.min_ratio),
    )


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
