"""A worker's single-key reads against a constant answer, a static file, and FastAPI with Redis."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import credentials, opponents
from bench.comparison import Effort
from bench.deployment import KEYS, STORE, ask, deployment, served, topology
from bench.figures import Row, Target, interleaved
from bench.records import records
from bench.wrk import Requests, load

CONNECTIONS = 32
_OURS = "worker, one key, lag attached"


def constant(effort: Effort) -> list[Row]:
    with served(effort.directory) as (_, worker, _, keys):
        path = f"/v1/stores/{STORE}/keys/{keys[0]}"
        body = ask(worker, path)[1].decode()
        with opponents.asgi("constant", BENCH_BODY=body) as constant:
            return _row(effort, worker, path, "uvicorn, raw ASGI, constant answer", constant, "/", Target(4))


def static_file(effort: Effort) -> list[Row]:
    with served(effort.directory) as (_, worker, _, keys):
        path = f"/v1/stores/{STORE}/keys/{keys[0]}"
        _, body = ask(worker, path)
        with opponents.nginx(effort.directory, body) as nginx:
            return _row(
                effort,
                worker,
                path,
                "nginx, static file of the same size, one process",
                nginx,
                "/body",
                Target(0.8),
            )


def redis(effort: Effort) -> list[Row]:
    with served(effort.directory) as (_, worker, _, keys), opponents.redis(effort.directory) as server:
        path = f"/v1/stores/{STORE}/keys/{keys[0]}"
        value = json.loads(ask(worker, path)[1])["value"]["text"]
        with opponents.asgi("redis_lookup", BENCH_BODY=value, BENCH_REDIS=f"redis://{server}") as lookup:
            return _row(effort, worker, path, "FastAPI + redis-py + Redis", lookup, "/keys/key", Target(30))


def ttl(effort: Effort) -> list[Row]:
    """What the look at each value's age costs."""
    sides = []
    with contextlib.ExitStack() as stack:
        for name, field in (("without", ""), ("with", "ttl_ms = 86_400_000")):
            directory = effort.directory / name
            directory.mkdir()
            text = f"{topology(4)}{field}\n"
            worker, path = stack.enter_context(_one_key_of(directory, text))
            sides.append(rate(effort, worker, Requests(path)))
        without, with_ttl = interleaved(effort.rounds, *sides)
    return [Row(f"{_OURS}, of a store with ttl_ms", "requests/s", with_ttl, "without", without, Target(0.97))]


@contextlib.contextmanager
def _one_key_of(directory: Path, topology_text: str) -> Iterator[tuple[str, str]]:
    headers = {"authorization": credentials.AUTHORIZATION}
    with deployment(directory, topology_text=topology_text, headers=headers) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        worker = cluster.start_worker(None, *credentials.worker_options(directory))
        cluster.wait_settled(worker, replicas=1)
        yield worker, f"/v1/stores/{STORE}/keys/{next(iter(rows)).decode()}"


def _row(
    effort: Effort, worker: str, path: str, against: str, other: str, other_path: str, target: Target
) -> list[Row]:
    ours, theirs = interleaved(
        effort.rounds, rate(effort, worker, Requests(path)), rate(effort, other, Requests(other_path))
    )
    return [Row(_OURS, "requests/s", ours, against, theirs, target)]


def rate(effort: Effort, address: str, requests: Requests, connections: int = CONNECTIONS) -> Callable[[], float]:
    """Measures requests a second."""
    return lambda: load(address, requests, connections=connections, seconds=effort.seconds).requests_per_second
