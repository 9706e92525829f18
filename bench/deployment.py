"""forebay as measured: real processes, with authentication, CORS, metrics and a live tailer."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import credentials
from bench.records import records

from tests.support.cluster import Cluster, running_cluster, wait_until

STORE = "bench"
KEYS = 20_000
OPTIONS = ("--cors-allow-origins", "https://example.org")
_WRITE_PAUSE_S = 0.2
_ROWS_PER_WRITE = 20
_DEADLINE_S = 180.0


def topology(partitions: int, stores: Sequence[str] = (STORE,)) -> str:
    """Key-value stores, all in one sub-topology."""
    tables = "".join(f'\n[[subtopology.store]]\nname = "{store}"\n' for store in stores)
    return f'application_id = "bench"\n\n[[subtopology]]\nname = "{STORE}"\npartitions = {partitions}\n{tables}'


@contextlib.contextmanager
def deployment(directory: Path, *, partitions: int = 4, **fields: Any) -> Iterator[Cluster]:
    """A cluster without processes yet; everything started ends with it."""
    own = {"topology_text": topology(partitions), "worker_options": OPTIONS, "start_process": started}
    with running_cluster(directory, **{**own, **fields}) as cluster:
        yield cluster


def started(
    arguments: list[str],
    log: Path,
    environment: Mapping[str, str],
    within: Callable[[Sequence[str]], list[str]] = list,
) -> subprocess.Popen[bytes]:
    """Started as users start it, since the start is measured too, by the command that ``within`` makes of that."""
    command = within([sys.executable, "-m", "forebay", *arguments])
    with log.open("ab") as written:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=dict(environment)
        )


@contextlib.contextmanager
def served(
    directory: Path, *, router: bool = False, keys: int = KEYS, options: Sequence[str] = ()
) -> Iterator[tuple[Cluster, str, str, list[str]]]:
    """One worker with the store, written to all the while: cluster, worker's address, router's, and keys.

    ``options`` are the worker's, beside those that all have.
    """
    headers = {"authorization": credentials.AUTHORIZATION}
    with deployment(directory, headers=headers) as cluster:
        rows = records(keys)
        cluster.put(STORE, rows)
        worker = cluster.start_worker(None, *credentials.worker_options(directory), *options)
        front = cluster.start_router(*OPTIONS, *credentials.router_options(directory)) if router else ""
        cluster.wait_settled(front or worker, replicas=1)
        with written_to(cluster, rows):
            yield cluster, worker, front, [key.decode() for key in rows]


@contextlib.contextmanager
def written_to(cluster: Cluster, rows: Mapping[bytes, bytes]) -> Iterator[None]:
    """Some of the rows are written repeatedly meanwhile, a hundred a second, with heartbeats."""
    some = dict(list(rows.items())[:_ROWS_PER_WRITE])
    with meanwhile(lambda: cluster.put(STORE, some), _WRITE_PAUSE_S):
        yield


@contextlib.contextmanager
def meanwhile(write: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Writes repeatedly in a thread, with this long a pause before each write."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(pause_s):
            write()

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield
    finally:
        stopping.set()
        writer.join()


def wait_caught_up(worker: str) -> None:
    """Wait until a worker, of very many stores perhaps, is ready and has read its logs to their ends."""
    wait_until(lambda: ask(worker, "/readyz")[0] == 200, "readiness", _DEADLINE_S)
    wait_until(lambda: _behind(worker) == 0, "the end of all logs", _DEADLINE_S)


def _behind(worker: str) -> int:
    rows = json.loads(ask(worker, "/v1/lags")[1])["lags"]
    return sum(row["record_lag"] != 0 for row in rows)


def ask(address: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET, 0 if nothing listens; unlike httpx, it costs hardly anything."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path, headers={"authorization": credentials.AUTHORIZATION})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()
