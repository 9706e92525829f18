"""How cost grows: single-key reads of one worker as one thing grows and all else stays the same."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Effort
from bench.deployment import KEYS, OPTIONS, deployment, meanwhile, topology, wait_caught_up
from bench.figures import Point, Series, percentile
from bench.open_loop import for_seconds, read_steadily
from bench.records import VALUE_BYTES, records
from bench.wrk import Load, Requests, load

from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite import batches as sqlite_batches
from tests.support.cluster import Cluster

CONNECTIONS = 32
SMALL_CACHE_BYTES = 4 << 20
WRITES_PER_SECOND = 10
_RECORD_BYTES = 16 + VALUE_BYTES
_MAX_STATE_BYTES = 64 << 20
_MAX_KEYS_READ = 50_000
_WARM_UP_S = 1


@dataclass(frozen=True)
class Setup:
    """A worker's content; the defaults apply while something else grows."""

    stores: int = 1
    partitions: int = 4
    keys: int = KEYS
    """Of all stores together."""
    value_bytes: int = VALUE_BYTES
    block_cache_bytes: int = 256 << 20
    restarted: bool = False
    """Whether to restart the worker once it has everything, which flushes its write buffers before it is read."""


@dataclass(frozen=True)
class Growth:
    """One thing that grows: its sizes, and what a size means for the worker and its clients."""

    what: str
    unit: str
    sizes: tuple[float, ...]
    setup: Callable[[float], Setup] = lambda _: Setup()
    connections: Callable[[float], int] = lambda _: CONNECTIONS
    reads_per_second: int | None = 1_000
    """The open loop's rate; without one, latency is wrk's own, for as many requests as the connections
    complete."""


GROWTHS = (
    Growth("stores", "", (1, 10, 50, 200), lambda size: Setup(stores=int(size))),
    Growth("partitions of a store", "", (4, 64, 256, 1024), lambda size: Setup(partitions=int(size))),
    Growth(
        "value size",
        "B",
        (100, 1_000, 10_000, 100_000, 1_000_000),
        lambda size: Setup(value_bytes=int(size), keys=min(KEYS, _MAX_STATE_BYTES // int(size))),
        # At a hundred megabytes a second the loop itself takes a third of its processor.
        reads_per_second=100,
    ),
    Growth(
        "connections", "", (1, 8, 32, 128, 500, 2000), connections=lambda size: int(size), reads_per_second=None
    ),
    Growth(
        f"state, by a block cache of {SMALL_CACHE_BYTES >> 20} MiB",
        "×",
        (0.25, 1, 4, 16),
        lambda size: Setup(
            keys=int(size * SMALL_CACHE_BYTES / _RECORD_BYTES), block_cache_bytes=SMALL_CACHE_BYTES, restarted=True
        ),
    ),
)


def growth(effort: Effort) -> list[Series]:
    return [_series(effort, grown) for grown in GROWTHS]


def _series(effort: Effort, growth: Growth) -> Series:
    points: list[Point] = []
    for setup, sizes in itertools.groupby(growth.sizes, growth.setup):
        directory = effort.directory / f"{growth.what}-{len(points)}"
        directory.mkdir()
        with _served(directory, setup) as (worker, paths):
            requests = Requests.of(directory / "paths", "", paths)
            load(worker, requests, connections=CONNECTIONS, seconds=_WARM_UP_S)
            points += [_point(effort, growth, size, worker, requests, paths) for size in sizes]
    rate = growth.reads_per_second
    by = "of wrk's requests" if rate is None else f"at {rate:,} reads/s"
    return Series(growth.what, growth.unit, by, tuple(points))


def _point(
    effort: Effort, growth: Growth, size: float, worker: str, requests: Requests, paths: list[str]
) -> Point:
    loads: list[Load] = []
    p99s_ms: list[float] = []
    for _ in range(effort.rounds):
        loads.append(load(worker, requests, connections=growth.connections(size), seconds=effort.seconds))
        p99s_ms.append(
            loads[-1].p99_ms
            if growth.reads_per_second is None
            else _steady_p99_ms(worker, paths, growth.reads_per_second, effort.seconds)
        )
    return Point(size, tuple(seen.requests_per_second for seen in loads), tuple(p99s_ms))


def _steady_p99_ms(worker: str, paths: list[str], per_second: int, seconds: int) -> float:
    reads = read_steadily(worker, paths, per_second=per_second, going_on=for_seconds(seconds))
    assert all(read.status == 200 for read in reads)
    return percentile([read.took_ms for read in reads], 99)


@contextlib.contextmanager
def _served(directory: Path, setup: Setup) -> Iterator[tuple[str, list[str]]]:
    """A worker that has caught up and is written to: its address, and paths of random keys in all its stores."""
    stores = [f"s{n}" for n in range(setup.stores)]
    options = (
        *OPTIONS,
        # The tests' short session expires before the leader has asked for the ends of this many logs.
        *("--session-timeout-ms", "30000"),
        *("--rocksdb-block-cache-bytes", str(setup.block_cache_bytes)),
    )
    text = topology(setup.partitions, stores)
    with deployment(directory, topology_text=text, worker_options=options) as cluster:
        rows = records(setup.keys, value_bytes=setup.value_bytes)
        split = {
            store: dict(itertools.islice(rows.items(), n, None, len(stores))) for n, store in enumerate(stores)
        }
        for store, some in split.items():
            cluster.put(store, some)
        worker = cluster.start_worker(ready=False)
        wait_caught_up(worker)
        if setup.restarted:
            cluster.kill(worker, signal.SIGTERM)
            cluster.start_worker(worker, ready=False)
            wait_caught_up(worker)
        paths = [f"/v1/stores/{store}/keys/{key.decode()}" for store, some in split.items() for key in some]
        with _written_to(cluster, stores[0], split[stores[0]]):
            yield worker, random.Random(1).sample(paths, min(len(paths), _MAX_KEYS_READ))


@contextlib.contextmanager
def _written_to(cluster: Cluster, store: str, rows: Mapping[bytes, bytes]) -> Iterator[None]:
    """Rows are written again meanwhile, singly and without heartbeats: those would grow with the partitions."""
    spec = cluster.topology.stores[store]
    batches = enumerate(itertools.cycle(rows.items()))

    def write() -> None:
        batch, (key, value) = next(batches)
        sqlite_batches.append_batch(
            cluster.changelog.path(TopicPartition(spec.topic, cluster.partition(spec, key))),
            [(key, value, int(time.time() * 1000))],
            writer=store,
            query_id="q",
            batch_id=batch,
            write_name="again",
        )

    with meanwhile(write, 1 / WRITES_PER_SECOND):
        yield
