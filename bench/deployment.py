"""forebay as it is measured: real worker and router processes, with CORS, metrics and a live tailer on."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.records import records

from tests.cluster import Cluster, running_cluster

STORE = "bench"
KEYS = 20_000
OPTIONS = ("--cors-allow-origins", "https://example.org")
_WRITE_PAUSE_S = 0.2
_ROWS_PER_WRITE = 20


def topology(partitions: int) -> str:
    """One key-value store."""
    return f"""
application_id = "bench"

[[subtopology]]
name = "{STORE}"
partitions = {partitions}

[[subtopology.store]]
name = "{STORE}"
"""


@contextlib.contextmanager
def deployment(directory: Path, *, partitions: int = 4, **fields: Any) -> Iterator[Cluster]:
    """A cluster without processes yet; whatever is started ends with it."""
    fields = {"topology_text": topology(partitions), "worker_options": OPTIONS, **fields}
    with running_cluster(directory, **fields) as cluster:
        yield cluster


@contextlib.contextmanager
def served(
    directory: Path, *, router: bool = False, keys: int = KEYS
) -> Iterator[tuple[Cluster, str, str, list[str]]]:
    """One worker with the store, written to all the while: cluster, worker's address, router's, and keys."""
    with deployment(directory) as cluster:
        rows = records(keys)
        cluster.put(STORE, rows)
        worker = cluster.start_worker()
        front = cluster.start_router(*OPTIONS) if router else ""
        cluster.wait_settled(front or worker, replicas=1)
        with written_to(cluster, rows):
            yield cluster, worker, front, [key.decode() for key in rows]


@contextlib.contextmanager
def written_to(cluster: Cluster, rows: Mapping[bytes, bytes]) -> Iterator[None]:
    """Some of the rows are written again and again meanwhile, a hundred a second, with heartbeats."""
    some = dict(list(rows.items())[:_ROWS_PER_WRITE])
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(_WRITE_PAUSE_S):
            cluster.put(STORE, some)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopping.set()
        writer.join()


def ask(address: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET, 0 where nobody listens; unlike httpx, it hardly costs anything."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()
