"""What checkpoints cost, by how often they are written, and what a kill costs (the test plan of KIP-116).

One worker applies a log from its beginning, follows a stream, and is killed (-9) in the middle of it. Its store is
one of three: a RocksDB that does not manage its offsets, whose checkpoint is written by an interval or after a
number of records, forebay's own (KIP-1035), or one in memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import legacy_store
from bench.comparison import Effort
from bench.deployment import STORE, ask, deployment, topology, wait_caught_up
from bench.figures import Row
from bench.process import processor_s
from bench.records import records
from bench.stream_writer import Stream, streaming

from forebay_worker.state.checkpointed_store import RECORDS_PER_CHECKPOINT
from tests.support.cluster import Cluster

RECORDS = 200_000
PARTITIONS = 4
RECORDS_PER_SECOND = 5_000
_STREAMED_S = 11.0
_KEYS_OF_THE_STREAM = 20_000
_UNBOUNDED = 10**9
_LARGEST_MS = 300_000
"""The setting's default."""
_APPLIED = re.compile(rb"^forebay_records_applied_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Setup:
    """A store, and when its checkpoint is written."""

    name: str
    supplier: str = legacy_store.SUPPLIER
    interval_ms: int = _LARGEST_MS
    records: int = _UNBOUNDED

    @property
    def options(self) -> tuple[str, ...]:
        """A worker's options, which itself applies all records, so that all suppliers are on a par."""
        interval = ("--statestore-checkpoint-interval-ms", str(self.interval_ms))
        return (*interval, "--restore-processes", "0", "--session-timeout-ms", "10000")


LARGEST = Setup(f"checkpoint every {_LARGEST_MS // 1000} s")
SETUPS = (
    Setup("checkpoint every 0.1 s", interval_ms=100),
    Setup("checkpoint every 1 s", interval_ms=1_000),
    Setup("checkpoint every 10 s", interval_ms=10_000),
    Setup("checkpoint after 1,000 records", records=1_000),
    Setup(f"checkpoint after {RECORDS_PER_CHECKPOINT:,} records, as by default", records=RECORDS_PER_CHECKPOINT),
    Setup("checkpoint after 100,000 records", records=100_000),
    Setup("offsets with their records in RocksDB", "rocksdb"),
    Setup("in memory", "memory"),
)


@dataclass(frozen=True)
class Figures:
    """One round of a setup."""

    records_per_second: float
    processor_share: float
    """Processors that the worker used beside the stream."""
    replayed: float
    """Records of all partitions that the log had after the offsets that the kill left."""


def checkpointing(effort: Effort) -> list[Row]:
    """Each setup beside the largest interval."""
    with legacy_store.installed(effort.directory):
        rounds = [
            [_measured(effort.directory / f"{number}-{at}", setup) for at, setup in enumerate((LARGEST, *SETUPS))]
            for number in range(effort.rounds)
        ]
    largest, *others = (tuple(of_one) for of_one in zip(*rounds, strict=True))
    return [row for setup, figures in zip(SETUPS, others, strict=True) for row in _rows(setup, figures, largest)]


def _measured(directory: Path, setup: Setup) -> Figures:
    directory.mkdir()
    text = f'{topology(PARTITIONS)}supplier = "{setup.supplier}"\n'
    start = partial(_start, setup.records)
    with deployment(directory, topology_text=text, headers={}, start_process=start) as cluster:
        cluster.put(STORE, records(RECORDS, seed=2))
        begun = time.monotonic()
        worker = cluster.start_worker(None, *setup.options, ready=False)
        wait_caught_up(worker)
        rate = RECORDS / (time.monotonic() - begun)
        share = _share_until_killed(cluster, worker)
        cluster.start_worker(worker, *setup.options, ready=False)
        wait_caught_up(worker)
        return Figures(rate, share, _applied(worker))


def _start(
    records_per_checkpoint: int, arguments: list[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.checkpointed_worker", str(records_per_checkpoint), *arguments]
    with log.open("ab") as written:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=dict(environment)
        )


def _share_until_killed(cluster: Cluster, worker: str) -> float:
    """Processors that a worker uses beside a stream, in the middle of which it is killed."""
    pid = cluster.workers[worker].pid
    url, path = cluster.changelog.url, str(cluster.topology_path)
    with streaming(Stream(url, path, STORE, _KEYS_OF_THE_STREAM, RECORDS_PER_SECOND)):
        used_s, begun = processor_s(pid), time.monotonic()
        time.sleep(_STREAMED_S)
        share = (processor_s(pid) - used_s) / (time.monotonic() - begun)
        cluster.kill(worker)
    return share


def _applied(worker: str) -> float:
    """Records that a worker has applied since its start."""
    return sum(map(float, _APPLIED.findall(ask(worker, "/metrics")[1])))


def _rows(setup: Setup, ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[Row]:
    def row(what: str, unit: str, figure: Callable[[Figures], float]) -> Row:
        return Row(
            f"{setup.name}: {what}", unit, tuple(map(figure, ours)), LARGEST.name, tuple(map(figure, theirs))
        )

    return [
        row(f"applying {RECORDS:,} records, the start included", "records/s", lambda one: one.records_per_second),
        row(f"processors used beside {RECORDS_PER_SECOND:,} records/s", "", lambda one: one.processor_share),
        row("replayed after a kill (-9)", "records", lambda one: one.replayed),
    ]
