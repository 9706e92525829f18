"""A cluster of workers and one router in one directory, over a SQLite changelog."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import uuid
from collections import Counter
from pathlib import Path

import httpx

from forebay.errors import ForebayError
from forebay.linux import end_with_parent, module_command, module_environment
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay.task_ids import TopicPartition
from forebay.topology_file import load_topology
from forebay_changelog import Heartbeat
from forebay_changelog.base import Changelog, Rows
from forebay_changelog.log_reader import last_records
from forebay_changelog.sqlite.changelog import SqliteChangelog

_STOP_TIMEOUT_S = 30.0
_SETTINGS_PREFIX = "FOREBAY_"
_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"
_SESSION_TIMEOUT_MS = 2_000
"""Short enough that a worker's death can be watched."""
_JOIN_TOGETHER_MS = 1_000
"""So that the first assignment is for all workers; one alone need not wait."""


TOPOLOGY = """\
application_id = "dev"

[[subtopology]]
name = "orders"
partitions = 2

[[subtopology.store]]
name = "orders_by_customer"   # key-value; string keys, JSON values
"""
STORE = "orders_by_customer"
FIRST = {"ann": {"orders": 1}, "bob": {"orders": 7}, "zoe": {"orders": 3}}
_BUYER = "ann"
_LAST = 20
"""Each batch of a run has a record of the buyer's, and in each partition a heartbeat."""


class SampleStream:
    """Writes the sample's store as a Spark query would: one batch after another, each with a heartbeat."""

    def __init__(self, changelog: Changelog, spec: StoreSpec) -> None:
        self._changelog = changelog
        self._spec = spec
        self._query_id = str(uuid.uuid4())
        self._batches = 0
        self._orders = FIRST[_BUYER]["orders"]

    def begin(self) -> None:
        """Write a value for each customer, Ann's as an earlier run left it. Raises ``ChangelogError``."""
        self._orders = self._last_orders()
        self._append({**FIRST, _BUYER: {"orders": self._orders}})

    def order(self) -> None:
        """Write one more order of Ann's. Raises ``ChangelogError``."""
        self._orders += 1
        self._append({_BUYER: {"orders": self._orders}})

    def _last_orders(self) -> int:
        """How many orders of Ann's are in the log, as many as at first if it is new."""
        partitioner = self._spec.stream_partitioner
        assert partitioner is not None
        tp = TopicPartition(self._spec.topic, partitioner.partition(_BUYER.encode(), self._spec.partitions))
        with contextlib.closing(self._changelog.consumer()) as consumer:
            records, _ = last_records(consumer, tp, _LAST, self._changelog.end_offsets([tp]).get(tp, 0))
        values = [value for _, key, value, _, _ in records if key == _BUYER.encode() and value is not None]
        return int(json.loads(values[-1])["orders"]) if values else self._orders

    def _append(self, values: dict[str, dict[str, int]]) -> None:
        beat = Heartbeat(int(time.time() * 1000), self._query_id, self._batches)
        self._changelog.append_batch(
            self._spec.topic,
            writer=self._spec.name,
            query_id=self._query_id,
            batch_id=self._batches,
            rows=self._by_partition(values),
            heartbeat=beat.value(),
        )
        self._batches += 1

    def _by_partition(self, values: dict[str, dict[str, int]]) -> Rows:
        partitioner = self._spec.stream_partitioner
        assert partitioner is not None
        rows: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for key, value in values.items():
            record = (key.encode(), json.dumps(value, separators=(",", ":")).encode())
            rows.setdefault(partitioner.partition(record[0], self._spec.partitions), []).append(record)
        return rows


class DevProcess:
    """A worker or a router whose output goes to a file."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as output:
            # A process group of its own: Ctrl-C would interrupt it a second time, which skips the clean end.
            self._process = subprocess.Popen(
                module_command("forebay", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                process_group=0,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ended(self) -> ForebayError:
        """The error for an operator that it has ended, with the last line of its output if it failed."""
        status = self._process.returncode
        if status < 0:
            return ForebayError(f"The process {self.name} was ended by {signal.Signals(-status).name}.")
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed nothing"
        return ForebayError(f"The process {self.name} ended with status {status}: {last}")

    def stop(self) -> None:
        """Ask it to end, without draining."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait for its end; after half a minute it is killed."""
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    """This process's, without settings that are meant for other workers and routers."""
    found = module_environment().items()
    return {name: value for name, value in found if not name.startswith(_SETTINGS_PREFIX)}


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
