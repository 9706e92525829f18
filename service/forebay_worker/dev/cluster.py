"""A cluster of workers and one router in one directory, over a SQLite changelog."""

from __future__ import annotations

import socket
import time
from collections import Counter
from pathlib import Path

import httpx

from forebay.errors import ForebayError
from forebay.streams_metadata import HostInfo
from forebay.topology_file import load_topology
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.dev.processes import DevProcess
from forebay_worker.dev.sample import STORE, TOPOLOGY, SampleStream

_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"
_SESSION_TIMEOUT_MS = 2_000
"""Short enough that a worker's death can be watched."""
_JOIN_TOGETHER_MS = 1_000
"""So that the first assignment is for all workers; one alone need not wait."""


class DevCluster:
    """Starts its processes with ``start``, and ends them with ``stop``.

    ``router`` is the address that the router listens on; workers take free ports.
    """

    def __init__(self, directory: Path, router: HostInfo, workers: int) -> None:
        self.directory = directory
        self.router = router
        self.processes: list[DevProcess] = []
        self.workers = [HostInfo(_LOOPBACK, port) for port in _free_ports(workers)]
        self._topology = directory / "topology.toml"
        self._topology.write_text(TOPOLOGY)
        self._changelog = SqliteChangelog(directory / "changelog")
        spec = load_topology(self._topology).stores[STORE]
        self._partitions = spec.partitions
        self._changelog.ensure(spec)
        self.stream = SampleStream(self._changelog, spec)

    def start(self) -> None:
        """Start all processes, and wait until they serve; raises ``ForebayError`` if one ends first."""
        self.stream.begin()
        for number, address in enumerate(self.workers, 1):
            self._launch(f"worker-{number}", self._worker_arguments(number, address))
        seeds = ",".join(map(str, self.workers))
        self._launch("router", ["router", "--seeds", seeds, "--listen", str(self.router)])
        self._wait_settled()

    def _launch(self, name: str, arguments: list[str]) -> None:
        self.processes.append(DevProcess(name, arguments, self.directory))

    def _worker_arguments(self, number: int, address: HostInfo) -> list[str]:
        where = ["--topology", str(self._topology), "--changelog", self._changelog.url]
        state = ["--state-dir", str(self.directory / f"state-{number}")]
        delay_ms = _JOIN_TOGETHER_MS if len(self.workers) > 1 else 0
        group = ["--session-timeout-ms", str(_SESSION_TIMEOUT_MS), "--initial-rebalance-delay-ms", str(delay_ms)]
        standbys = ["--num-standby-replicas", str(min(1, len(self.workers) - 1))]
        return ["worker", *where, *state, "--listen", str(address), *group, *standbys]

    def _wait_settled(self) -> None:
        """Wait until each partition has its active, and a standby if there is a worker for it."""
        standbys = self._partitions if len(self.workers) > 1 else 0
        wanted = {"active": self._partitions, "standby": standbys}
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        with httpx.Client(base_url=f"http://{self.router}", trust_env=False) as http:
            while _roles(http) != Counter(wanted):
                self.check()
                if time.monotonic() > deadline_s:
                    raise ForebayError(f"The cluster is not ready; its logs are in {self.directory}.")
                time.sleep(_POLL_S)

    def check(self) -> list[DevProcess]:
        """The workers that ended since the last call; raises ``ForebayError`` if the router or all workers did."""
        ended = [process for process in self.processes if not process.running]
        self.processes = [process for process in self.processes if process.running]
        names = [process.name for process in self.processes]
        if ended and ("router" not in names or len(names) == 1):
            raise ended[-1].ended()
        return ended

    def stop(self) -> None:
        """End all processes, in order if there is time for it."""
        for process in self.processes:
            process.stop()
        for process in self.processes:
            process.wait()

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.processes:
            process.kill()


def _roles(http: httpx.Client) -> Counter[str]:
    """How many replicas have each role and are at the ends of their logs; none while no router answers."""
    try:
        rows = http.get("/v1/lags").raise_for_status().json()["lags"]
    except httpx.HTTPError:
        return Counter()
    return Counter(row["role"] for row in rows if row["time_lag_ms"] is not None)


def _free_ports(count: int) -> list[int]:
    """So many free ports, found all at once so that none is found twice."""
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(count)]
    ports: list[int] = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
