"""A real cluster on this machine for tests: worker and router processes over a SQLite or Kafka changelog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from examples.ports import free_ports
from forebay.store_spec import StoreSpec
from forebay.topology_file import load_topology
from forebay_changelog.kafka.changelog import KafkaChangelog
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.support.command_process import CommandProcess
from tests.support.logs import KafkaLog, Log, Row, SqliteLog

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "counts"
partitions = 4

[[subtopology.store]]
name = "counts"

[[subtopology]]
name = "rest"
partitions = 2

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 100000

[[subtopology.store]]
name = "numbers"
key = "int64"

[[subtopology.store]]
name = "pairs"
key = "json"
"""

ONE_PARTITION = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 1

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 100000000
"""

Rows = Mapping[bytes, bytes | None]


def unstamped(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A list's items without the timestamps of their records."""
    assert all(isinstance(item["timestamp_ms"], int) for item in items)
    return [{name: part for name, part in item.items() if name != "timestamp_ms"} for item in items]


def free_port() -> int:
    """A free one that nobody was given before."""
    return free_ports(1)[0]


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = 20.0) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {deadline_s} s"
        time.sleep(0.01)


async def until(condition: Callable[[], Any], deadline_s: float = 20.0) -> None:
    """The same for what happens in this event loop."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def restore_processes(worker: int) -> list[int]:
    """Those of a worker's process that have begun to run: stopped any earlier, they would stop the worker."""
    texts = [_content(path) for path in Path(f"/proc/{worker}/task").glob("*/children")]
    children = [int(child) for text in texts for child in text.split()]
    return [child for child in children if b"restore_process" in _content(Path(f"/proc/{child}/cmdline"))]


def _content(path: Path) -> bytes:
    """What the kernel says there, nothing of a thread or process that has just ended."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def heed_interrupts() -> None:
    """For ``preexec_fn``: if the tests run in the background, interrupts may be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


_LAST_SIGNAL = signal.SIGTERM if "COVERAGE_PROCESS_CONFIG" in os.environ else signal.SIGKILL
"""Why: a process that is killed cannot report which code it ran."""


@dataclass
class Cluster:
    directory: Path
    topology_text: str = TOPOLOGY
    worker_options: tuple[str, ...] = ()
    kafka: str | None = None
    """URL of the brokers; without, the log is a SQLite changelog."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The tests' credentials for processes that authenticate."""
    start_process: Callable[[list[str], Path, Mapping[str, str]], Any] = CommandProcess
    """Starts one of forebay's commands: its arguments, its log, its environment."""
    workers: dict[str, CommandProcess] = field(default_factory=dict)
    _state_dirs: dict[str, Path] = field(default_factory=dict)
    _routers: dict[str, CommandProcess] = field(default_factory=dict)
    _batches: int = 0

    def __post_init__(self) -> None:
        self.topology_path = self.directory / "topology.toml"
        if self.kafka is not None:
            # One broker serves many tests, whose topics and groups differ by application.
            own = f'application_id = "{secrets.token_hex(4)}"'
            self.topology_text = self.topology_text.replace('application_id = "test"', own)
        self.topology_path.write_text(self.topology_text)
        self.topology = load_topology(self.topology_path)
        self.log: Log = (
            SqliteLog(SqliteChangelog(self.directory / "log"))
            if self.kafka is None
            else KafkaLog(KafkaChangelog(self.kafka))
        )
        for spec in self.topology.stores.values():
            # Whoever else writes it has made it.
            self.changelog.ensure(replace(spec, external=False))

    @property
    def changelog(self) -> Any:
        """The changelog itself."""
        return self.log.changelog

    def put(
        self, store: str, rows: Rows, writer: str | None = None, timestamp_ms: int | None = None
    ) -> dict[int, int]:
        """Append rows, each to its partition, and a heartbeat; returns the end of every partition."""
        at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        spec = self.topology.stores[store]
        self._batches += 1
        split: dict[int, list[Row]] = {}
        for key, value in rows.items():
            split.setdefault(self.partition(spec, key), []).append((key, value, at_ms))
        return self.log.append(spec, split, writer or store, self._batches)

    def partition(self, spec: StoreSpec, key: bytes) -> int:
        plain = spec.stored_keys.split_changelog(key, 0).plain
        assert spec.stream_partitioner is not None
        return spec.stream_partitioner.partition(plain, spec.partitions)

    def start_worker(self, address: str | None = None, *options: str, ready: bool = True) -> str:
        address = address or f"127.0.0.1:{free_port()}"
        state_dir = self._state_dirs.setdefault(address, self.directory / f"state-{len(self._state_dirs)}")
        arguments = ["--topology", self.topology_path, "--changelog", self.changelog.url, "--state-dir", state_dir]
        arguments += ["--listen", address, "--session-timeout-ms", "1000", "--initial-rebalance-delay-ms", "300"]
        arguments += ["--drain-ms", "200", *self.worker_options, *options]
        self.workers[address] = self._launch(f"{state_dir.name}.log", "worker", arguments)
        if ready:
            self.wait_ready(address)
        return address

    def start_workers(self, count: int, *options: str) -> list[str]:
        addresses = [self.start_worker(None, *options, ready=False) for _ in range(count)]
        for address in addresses:
            self.wait_ready(address)
        return addresses

    def launch_router(self, *options: str) -> str:
        """Start a router, and wait for nothing."""
        address = f"127.0.0.1:{free_port()}"
        seeds = ",".join(self.workers) or f"127.0.0.1:{free_port()}"
        arguments = ["--seeds", seeds, "--listen", address, "--drain-ms", "200", *options]
        self._routers[address] = self._launch(f"router-{len(self._routers)}.log", "router", arguments)
        return address

    def start_router(self, *options: str, ready: bool = True) -> str:
        address = self.launch_router(*options)
        if ready:
            self.wait_ready(address)
        else:
            self.wait_alive(address)
        return address

    def router_process(self, address: str) -> CommandProcess:
        return self._routers[address]

    def wait_alive(self, address: str) -> None:
        wait_until(lambda: _status(address, "/livez") == 200, f"{address} alive")

    def wait_ready(self, address: str) -> None:
        process = {**self.workers, **self._routers}[address]

        def ready() -> bool:
            assert process.poll() is None, self.logs()
            return _status(address, "/readyz") == 200

        wait_until(ready, f"readiness of {address}", 30)

    def kill(self, address: str, sig: int = signal.SIGKILL) -> None:
        process = self.workers[address]
        process.send_signal(sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            process.wait(30)

    def get(self, address: str, path: str) -> Any:
        """The document at a path."""
        return httpx.get(f"http://{address}{path}", headers=self.headers).json()

    def roles(self, address: str, store: str) -> dict[int, dict[str, str]]:
        """Role by host and partition, as reported by the router or worker at an address."""
        found: dict[int, dict[str, str]] = {}
        for row in self.get(address, "/v1/lags")["lags"]:
            if row["store"] == store:
                found.setdefault(row["partition"], {})[row["host"]] = row["role"]
        return found

    def active_for(self, address: str, store: str, key: str) -> str | None:
        """The host that reports being the key's running active."""
        metadata = self.get(address, f"/v1/metadata/stores/{store}/keys/{key}")
        roles = self.roles(address, store).get(metadata["partition"], {})
        return next((host for host, role in roles.items() if role == "active"), None)

    def wait_settled(self, address: str, replicas: int = 2) -> None:
        """Wait until every partition has one active, enough replicas, and no lag."""

        def settled() -> bool:
            rows = self.get(address, "/v1/lags")["lags"]
            held: dict[tuple[str, int], list[str]] = {}
            for row in rows:
                held.setdefault((row["store"], row["partition"]), []).append(row["role"])
            wanted = sum(spec.partitions for spec in self.topology.stores.values())
            return (
                len(held) == wanted
                and all(roles.count("active") == 1 and len(roles) == replicas for roles in held.values())
                and all(row["record_lag"] == 0 for row in rows)
            )

        wait_until(settled, "a settled assignment", 30)

    def stop(self) -> None:
        processes = [*self._routers.values(), *self.workers.values()]
        for process in processes:
            process.send_signal(_LAST_SIGNAL)
        for process in processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                # A test has paused it.
                process.kill()
                process.wait(15)

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.directory.glob("*.log")))

    def _launch(self, log_name: str, command: str, arguments: list[Any]) -> CommandProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        return self.start_process([command, *map(str, arguments)], self.directory / log_name, environment)


@contextlib.contextmanager
def running_cluster(directory: Path, **fields: Any) -> Iterator[Cluster]:
    cluster = Cluster(directory, **fields)
    try:
        yield cluster
    finally:
        cluster.stop()


def _status(address: str, path: str) -> int:
    try:
        return httpx.get(f"http://{address}{path}").status_code
    except httpx.TransportError:
        return 0
