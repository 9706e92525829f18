"""State of 8 GB under a memory limit of 1 GiB, beside Kafka Streams and ``rocksdict`` alone under the same.

One of them at a time has its files on the disk, of which the system has forgotten all pages when it starts. Its
restores, by replay and from a peer, are measured without the limit: they write what is larger than it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.comparison import Effort
from bench.credentials import copying_options, worker_options
from bench.deployment import STORE, ask, deployment, started, wait_caught_up
from bench.figures import Row, Target, percentile
from bench.kafka import application
from bench.kafka_streams import answers
from bench.large_records import large_key, uniform, write_large, zipf
from bench.memory_limit import MemoryLimit, drop_file_pages, memory_limit
from bench.open_loop import for_seconds, read_steadily
from bench.process import Family
from bench.rocksdict_reads import THREADS
from bench.single_key import CONNECTIONS
from bench.stream_writer import Stream, streaming
from bench.table_service import TableService, compiled
from bench.wrk import Requests, load

from examples.broker import Broker
from forebay.task_ids import TaskId
from forebay_worker.state.directory import StateDirectory
from tests.support.cluster import Cluster, free_port, wait_until

RECORDS = 20_000_000
VALUE_BYTES = 380
LIMIT_BYTES = 1 << 30
PARTITIONS = 4
_CACHE_BYTES = 256 << 20
_SECONDS = 10
"""Of each measurement at least: a cache has to fill."""
_SAMPLES = 400_000
_HOT_KEYS = 200
_READS_PER_SECOND = 1_000
_RECORDS_PER_SECOND = 50_000
_KEYS_WRITTEN = 20_000
_DEADLINE_S = 900
_OPTIONS = ("--session-timeout-ms", "6000", "--restore-processes", "2", "--standby-rebuild-delay-ms", "0")
_KAFKA_STREAMS = f"Kafka Streams + Undertow, {THREADS} readers"
_ROCKSDICT = f"rocksdict in process, {THREADS} threads"
_PATH = f"/v1/stores/{STORE}/keys/"


@dataclass
class Reads:
    """What one service reached in each round."""

    uniform: list[float] = field(default_factory=list)
    zipf: list[float] = field(default_factory=list)
    beside_writes_ms: list[float] = field(default_factory=list)
    hot_idle_ms: list[float] = field(default_factory=list)
    hot_beside_cold_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Restore:
    """How long a replica's restore took, and the processor time of all who took part."""

    seconds: float
    processor_s: float


@dataclass(frozen=True)
class Size:
    """How much state, within how much memory."""

    records: int = RECORDS
    limit_bytes: int = LIMIT_BYTES


def large_state(effort: Effort, size: Size = Size()) -> list[Row]:
    classes = compiled(effort.directory)
    directory = effort.directory / "cluster"
    directory.mkdir()
    with (
        memory_limit(size.limit_bytes) as limit,
        Broker(effort.directory / "kafka") as broker,
        deployment(directory, kafka=broker.url, topology_text=application("large", PARTITIONS)) as cluster,
    ):
        [spec] = cluster.topology.stores.values()
        write_large(cluster.changelog, spec, size.records, VALUE_BYTES)
        cluster.log.append(spec, {}, STORE, 1)
        run = _Run(effort, size, cluster, limit)
        restores = run.restores()
        ours = run.worker()
        alone = run.rocksdict()
        run.remove_state()
        table = TableService(classes, directory / "table", broker.address, spec.topic, PARTITIONS, readers=THREADS)
        theirs = run.kafka_streams(table)
    return [*_read_rows(size, ours, alone, theirs), *restores]


class _Run:
    def __init__(self, effort: Effort, size: Size, cluster: Cluster, limit: MemoryLimit) -> None:
        self._effort = effort
        self._size = size
        self._cluster = cluster
        self._limit = limit
        self._seconds = max(effort.seconds, _SECONDS)
        self._worker = f"127.0.0.1:{free_port()}"
        [self._spec] = cluster.topology.stores.values()
        self._options = (*worker_options(effort.directory), *copying_options(effort.directory), *_OPTIONS)

    def restores(self) -> list[Row]:
        """By replay, and then another worker's from its peer, which is read meanwhile."""
        replay = self._restored(self._worker)
        wait_caught_up(self._worker)
        keys = uniform(self._size.records, _SAMPLES, seed=0)[:_KEYS_WRITTEN]
        # What the giver's answers come from is in memory before and during: it is the copying that is measured.
        self._p99_ms(keys, for_seconds(self._seconds))
        idle_ms = self._p99_ms(keys, for_seconds(self._seconds))
        quiet = self._copied(lambda: None)
        during_ms: list[float] = []
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._p99_ms, keys, lambda: not ended.is_set())
            self._copied(ended.set)
            during_ms.append(reading.result())
        self._cluster.kill(self._worker, signal.SIGTERM)
        what = f"restore of {self._size.records:,} records"
        return [
            Row(f"{what} from a peer", "s", (quiet.seconds,), "from Kafka", (replay.seconds,), Target(0.2, False)),
            Row(
                f"processor time of a {what} from a peer, both workers",
                "s",
                (quiet.processor_s,),
                "from Kafka",
                (replay.processor_s,),
                Target(0.1, False),
            ),
            Row(
                f"p99 of the giver of a copy at {_READS_PER_SECOND:,} reads/s",
                "ms",
                tuple(during_ms),
                "idle",
                (idle_ms,),
                Target(1.5, False),
            ),
        ]

    def worker(self) -> Reads:
        """The worker's reads within the limit."""
        drop_file_pages()
        self._cluster.start_process = lambda arguments, log, environment: started(
            arguments, log, environment, self._limit.command
        )
        self._cluster.start_worker(self._worker, *self._options, ready=False)
        wait_caught_up(self._worker)
        found = self._measured(self._worker, _PATH)
        hot = uniform(self._size.records, _SAMPLES, seed=99)[:_HOT_KEYS]
        for _ in range(self._effort.rounds):
            self._p99_ms(hot, for_seconds(1))
            found.hot_idle_ms.append(self._p99_ms(hot, for_seconds(self._seconds)))
            found.hot_beside_cold_ms.append(self._hot_beside_cold_ms(hot))
        self._cluster.kill(self._worker, signal.SIGTERM)
        return found

    def rocksdict(self) -> Reads:
        """The same files, read by threads without a worker."""
        drop_file_pages()
        stores = [str(path) for path in store_paths(self._cluster, self._worker, PARTITIONS)]
        given = {"stores": stores, "cache_bytes": _CACHE_BYTES, "seconds": self._seconds}
        command = self._limit.command([sys.executable, "-m", "bench.rocksdict_reads"])
        found = Reads()
        root = Path(__file__).parents[1]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(given) + "\n")
            for rates, sample in ((found.uniform, uniform), (found.zipf, zipf)):
                for number in range(self._effort.rounds):
                    keys = sample(self._size.records, _SAMPLES, seed=number)
                    process.stdin.write(f"{self._file_by_store(keys)}\n")
                    process.stdin.flush()
                    rates.append(float(process.stdout.readline()))
        return found

    def remove_state(self) -> None:
        """Remove what the worker had."""
        shutil.rmtree(self._state_dir(self._worker))

    def kafka_streams(self, table: TableService) -> Reads:
        """Kafka Streams restores without the limit, and is read within it."""
        sample = [large_key(number).decode() for number in range(_HOT_KEYS)]
        with table:
            table.start()
            table.restored(deadline_s=_DEADLINE_S)
            table.end(signal.SIGTERM)
            drop_file_pages()
            table.start(self._limit.command)
            table.restored(deadline_s=_DEADLINE_S)
            answers(table.address, [f"/keys/{key}" for key in sample])
            # The just-in-time compiler learns from some hundred thousand requests.
            self._rate(table.address, "/keys/", sample)
            return self._measured(table.address, "/keys/")

    def _measured(self, address: str, path: str) -> Reads:
        found = Reads()
        for rates, sample in ((found.uniform, uniform), (found.zipf, zipf)):
            for number in range(self._effort.rounds):
                rates.append(self._rate(address, path, sample(self._size.records, _SAMPLES, seed=number)))
        stream = Stream(
            self._cluster.changelog.url,
            str(self._cluster.topology_path),
            STORE,
            _KEYS_WRITTEN,
            _RECORDS_PER_SECOND,
        )
        with streaming(stream):
            time.sleep(2)
            for number in range(self._effort.rounds):
                keys = uniform(self._size.records, _SAMPLES, seed=10 + number)
                took_ms = self._steady(address, path, keys, for_seconds(self._seconds))
                found.beside_writes_ms.append(percentile(took_ms, 99.9))
        return found

    def _rate(self, address: str, path: str, keys: Sequence[str]) -> float:
        requests = Requests.of(self._effort.directory / "keys", path, keys)
        return load(address, requests, connections=CONNECTIONS, seconds=self._seconds).requests_per_second

    def _hot_beside_cold_ms(self, hot: Sequence[str]) -> float:
        """While as many cold keys are read as the disk and the processors allow."""
        cold = uniform(self._size.records, _SAMPLES, seed=50)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._rate, self._worker, _PATH, cold)
            p99_ms = self._p99_ms(hot, lambda: not reading.done())
            reading.result()
            return p99_ms

    def _p99_ms(self, keys: Sequence[str], going_on: Callable[[], bool]) -> float:
        return percentile(self._steady(self._worker, _PATH, keys, going_on), 99)

    def _steady(self, address: str, path: str, keys: Sequence[str], going_on: Callable[[], bool]) -> list[float]:
        paths = [path + key for key in keys]
        reads = read_steadily(address, paths, per_second=_READS_PER_SECOND, going_on=going_on)
        assert all(read.status == 200 for read in reads), {read.status for read in reads}
        return [read.took_ms for read in reads]

    def _copied(self, then: Callable[[], object]) -> Restore:
        """A second worker, which finds the first; its state is removed again."""
        address = f"127.0.0.1:{free_port()}"
        try:
            return self._restored(address, beside=(self._worker,))
        finally:
            then()
            self._cluster.kill(address, signal.SIGTERM)
            shutil.rmtree(self._state_dir(address))
            wait_until(lambda: self._held(self._worker) == PARTITIONS, "the first worker's return", _DEADLINE_S)

    def _restored(self, address: str, beside: Sequence[str] = ()) -> Restore:
        giving = [Family(self._cluster.workers[other].pid) for other in beside]
        begun = time.monotonic()
        self._cluster.start_worker(address, *self._options, ready=False)
        family = Family(self._cluster.workers[address].pid)
        wait_until(lambda: _pause() and self._held(address) == PARTITIONS, "a restore", _DEADLINE_S)
        seconds = time.monotonic() - begun
        return Restore(seconds, family.processor_s + sum(other.processor_s for other in giving))

    def _held(self, address: str) -> int:
        """How many partitions are restored there."""
        status, body = ask(address, "/v1/lags")
        rows: list[Mapping[str, bool]] = json.loads(body)["lags"] if status == 200 else []
        return sum(row["restored"] for row in rows)

    def _file_by_store(self, keys: Sequence[str]) -> Path:
        path = self._effort.directory / "keys-by-store"
        lines = [f"{self._cluster.partition(self._spec, key.encode())} {key}" for key in keys]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _state_dir(self, address: str) -> Path:
        return self._cluster._state_dirs[address]


def store_paths(cluster: Cluster, worker: str, partitions: int) -> list[Path]:
    """Where a worker that has ended keeps the partitions of the store."""
    directory = StateDirectory(cluster._state_dirs[worker], cluster.topology.application_id)
    try:
        return [directory.store_path(TaskId(0, partition), STORE) for partition in range(partitions)]
    finally:
        directory.close()


def _read_rows(size: Size, ours: Reads, alone: Reads, theirs: Reads) -> list[Row]:
    state = f"{size.records * (16 + VALUE_BYTES) / 1e9:.0f} GB in {size.limit_bytes >> 20:,} MiB"
    beside = f"beside {_RECORDS_PER_SECOND:,} records/s"
    rows = []
    for keys, rates in (("random keys", "uniform"), ("keys by Zipf's law", "zipf")):
        found: tuple[float, ...] = tuple(getattr(ours, rates))
        for against, others, bound in ((_ROCKSDICT, alone, 0.7), (_KAFKA_STREAMS, theirs, 1.0)):
            what = f"worker, {keys} of {state}"
            rows.append(Row(what, "requests/s", found, against, tuple(getattr(others, rates)), Target(bound)))
    return [
        *rows,
        Row(
            f"p99.9 at {_READS_PER_SECOND:,} reads/s of {state}, {beside}",
            "ms",
            tuple(ours.beside_writes_ms),
            _KAFKA_STREAMS,
            tuple(theirs.beside_writes_ms),
            Target(1, at_least=False),
        ),
        Row(
            f"p99 at {_READS_PER_SECOND:,} reads/s of {_HOT_KEYS} keys of {state}, beside saturating others",
            "ms",
            tuple(ours.hot_beside_cold_ms),
            "idle",
            tuple(ours.hot_idle_ms),
            Target(3, at_least=False),
        ),
    ]


def _pause() -> bool:
    time.sleep(0.1)
    return True
