"""Single-key reads of a worker and of a router that a thousand follow, a whole store each or one key each.

The store that is followed is another one than is read, so that nothing but the process is shared.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Effort
from bench.deployment import KEYS, OPTIONS, STORE, deployment, topology, wait_caught_up
from bench.descriptors import allow_open_files
from bench.figures import Row, Target, percentile
from bench.follower_client import Followed, following
from bench.open_loop import for_seconds, read_steadily
from bench.process import processor_s, resident_mb
from bench.records import records
from bench.single_key import CONNECTIONS
from bench.stream_writer import Stream, streaming
from bench.wrk import Requests, load

from tests.support.cluster import Cluster

FOLLOWED = "followed"
FOLLOWED_KEYS = 200
RATES = (0, 1_000)
"""Records a second of the store that is followed."""
FOLLOWERS = 1_000
KINDS = ("store", "key")
TIERS = ("worker", "router")
_READS_PER_SECOND = 1_000
_MAX_STREAMS = 2_000
"""One client gets seven eighths of them."""
_SETTLING_S = 2.0
_MIN_RATIO, _MAX_P99_RATIO = 0.7, 3.0
"""Sending pauses for three times as long as it took, so that it takes a quarter."""


@dataclass(frozen=True)
class Figures:
    """One measurement of a process, with so many followers at one rate of records."""

    reads_per_second: float
    p99_ms: float
    processor_share: float
    """Processors used during the open loop."""


@dataclass(frozen=True)
class Served:
    """A process that is read and followed, and what it is asked for."""

    cluster: Cluster
    address: str
    pid: int
    requests: Requests
    paths: Sequence[str]


@dataclass(frozen=True)
class Round:
    """What was measured of one process, by the number of followers and the rate of records."""

    figures: dict[tuple[int, int], Figures]
    follower_kb: float
    """Memory of each follower."""


def followers(effort: Effort) -> list[Row]:
    """Each tier with followers of a store and of keys, beside itself without."""
    found: dict[tuple[str, str], list[Round]] = {}
    for number, tier, kind in itertools.product(range(effort.rounds), TIERS, KINDS):
        directory = effort.directory / f"{number}-{tier}-{kind}"
        directory.mkdir()
        found.setdefault((tier, kind), []).append(_round(effort, directory, tier, kind))
    reads = [row for (tier, kind), rounds in found.items() for row in _reads(tier, kind, rounds)]
    return [*reads, *(row for tier in TIERS for row in _costs(tier, found[tier, "store"], found[tier, "key"]))]


def _round(effort: Effort, directory: Path, tier: str, kind: str) -> Round:
    figures: dict[tuple[int, int], Figures] = {}
    with _served(directory, tier) as served:
        for rate in RATES:
            with _changing(served.cluster, rate):
                figures[0, rate] = _measured(effort, served)
        before_mb = resident_mb(served.pid)
        allow_open_files()
        with following(Followed(served.address, FOLLOWERS, _followed_paths(kind))) as clients:
            for rate in RATES:
                with _changing(served.cluster, rate):
                    figures[FOLLOWERS, rate] = _measured(effort, served)
            assert clients.received().connected == FOLLOWERS, "followers were dropped"
            follower_kb = (resident_mb(served.pid) - before_mb) * 1e3 / FOLLOWERS
    return Round(figures, follower_kb)


@contextmanager
def _served(directory: Path, tier: str) -> Iterator[Served]:
    options = (*OPTIONS, "--max-event-streams", str(_MAX_STREAMS))
    text = topology(4, (STORE, FOLLOWED))
    with deployment(directory, topology_text=text, headers={}, worker_options=options) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        cluster.put(FOLLOWED, records(FOLLOWED_KEYS))
        address = cluster.start_worker()
        wait_caught_up(address)
        process = cluster.workers[address]
        if tier == "router":
            address = cluster.start_router(*options)
            cluster.wait_settled(address, replicas=1)
            process = cluster.router_process(address)
        paths = [f"/v1/stores/{STORE}/keys/{key.decode()}" for key in rows]
        yield Served(cluster, address, process.pid, Requests.of(directory / "paths", "", paths), paths)


@contextmanager
def _changing(cluster: Cluster, per_second: int) -> Iterator[None]:
    """The followed store changes meanwhile."""
    stream = Stream(cluster.changelog.url, str(cluster.topology_path), FOLLOWED, FOLLOWED_KEYS, per_second)
    with streaming(stream):
        time.sleep(_SETTLING_S)
        yield


def _followed_paths(kind: str) -> tuple[str, ...]:
    path = f"/v1/stores/{FOLLOWED}"
    if kind == "store":
        return (f"{path}/changes",)
    return tuple(f"{path}/keys/{key.decode()}/changes" for key in records(FOLLOWED_KEYS))


def _measured(effort: Effort, served: Served) -> Figures:
    loaded = load(served.address, served.requests, connections=CONNECTIONS, seconds=effort.seconds)
    used_s, begun = processor_s(served.pid), time.monotonic()
    reads = read_steadily(
        served.address, served.paths, per_second=_READS_PER_SECOND, going_on=for_seconds(effort.seconds)
    )
    share = (processor_s(served.pid) - used_s) / (time.monotonic() - begun)
    # A read that is given up after five seconds counts with these.
    assert {read.status for read in reads} <= {200, 0}
    return Figures(loaded.requests_per_second, percentile([read.took_ms for read in reads], 99), share)


def _reads(tier: str, kind: str, rounds: list[Round]) -> Iterator[Row]:
    for count, rate in rounds[0].figures:
        if not count:
            continue
        ours = [one.figures[count, rate] for one in rounds]
        theirs = [one.figures[0, rate] for one in rounds]
        beside = f"beside {count:,} followers of a {kind} with {rate:,} records/s"
        yield Row(
            f"{tier}, random keys, {beside}",
            "requests/s",
            tuple(one.reads_per_second for one in ours),
            "no followers",
            tuple(one.reads_per_second for one in theirs),
            Target(_MIN_RATIO),
        )
        yield Row(
            f"{tier}, p99 at {_READS_PER_SECOND:,} reads/s, {beside}",
            "ms",
            tuple(one.p99_ms for one in ours),
            "no followers",
            tuple(one.p99_ms for one in theirs),
            Target(_MAX_P99_RATIO, at_least=False),
        )


def _costs(tier: str, of_store: list[Round], of_key: list[Round]) -> Iterator[Row]:
    """What a follower of a store takes, beside one of a key."""
    against = "a follower of a key"
    ours, theirs = (tuple(one.follower_kb for one in rounds) for rounds in (of_store, of_key))
    yield Row(f"{tier}: memory of a follower of a store", "kB", ours, against, theirs)
    for rate in RATES:
        ours, theirs = (tuple(_follower_us(one, rate) for one in rounds) for rounds in (of_store, of_key))
        what = f"{tier}: processor time of a follower of a store with {rate:,} records/s, each second"
        yield Row(what, "µs", ours, against, theirs)


def _follower_us(measured: Round, rate: int) -> float:
    more = measured.figures[FOLLOWERS, rate].processor_share - measured.figures[0, rate].processor_share
    return more / FOLLOWERS * 1e6
