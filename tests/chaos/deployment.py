"""The processes under test: workers behind proxies, and routers, started, ended and watched."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from examples.ports import free_ports
from forebay.clock import boot_ms
from forebay.topology_file import load_topology
from tests.chaos.clocks import WallClock
from tests.chaos.disks import Disk
from tests.chaos.history import Finding
from tests.chaos.node import Endpoint, Node, is_alive
from tests.chaos.proxy import Proxies
from tests.chaos.topologies import TopologyFile
from tests.support.command_process import CommandProcess

STOP_WITHIN_S = 30
STARTING_MS = 5_000
"""A process that is this young may not heed SIGTERM yet, and is ended by it."""
WORKERS, ROUTERS = 3, 2
_WORKER_OPTIONS = (
    *("--session-timeout-ms", "1000", "--initial-rebalance-delay-ms", "300", "--drain-ms", "300"),
    *("--standby-rebuild-delay-ms", "4000", "--state-cleanup-delay-ms", "5000"),
)
_LITTLE_MEMORY = ("--rocksdb-block-cache-bytes", f"{1 << 20}", "--rocksdb-write-buffer-bytes", f"{1 << 20}")
"""Less than the large store takes, so that one worker reads from its disk."""
_MIN_PER_SECOND, _RESTORE_S = 500, 6.0
"""At what rate, and for about how long, a slow worker restores."""


Starter: TypeAlias = Callable[[list[str], Path, Mapping[str, str]], Any]
"""Starts one of forebay's commands: its arguments, its log, its environment."""


@dataclass
class Deployment:
    """Workers and routers over one log; ``report`` takes what is found."""

    directory: Path
    topology_file: TopologyFile
    changelog_url: str
    report: Callable[[Finding], None]
    proxies: Proxies
    start_process: Starter = CommandProcess
    worker_processes: int = 1
    """Of each worker."""
    has_disks: bool = False
    """Whether each worker's state is on a disk of its own."""
    workers: dict[str, Node] = field(default_factory=dict)
    routers: dict[str, Node] = field(default_factory=dict)
    log_records: Callable[[], int] = lambda: 0
    """How many records all logs have."""
    _http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=2))

    def __post_init__(self) -> None:
        self.topology = load_topology(self.topology_file.path)
        """As it was first; what changes of it is only where stores are kept."""

    def add_worker(self) -> Node:
        """A new worker, not started yet."""
        name = f"worker-{len(self.workers)}"
        disk = Disk(self.directory / f"{name}-disk") if self.has_disks else None
        state_dir = self.directory / f"{name}-state" if disk is None else disk.path / "state"
        wall_clock = WallClock(self.directory / f"{name}-clock")
        endpoints = self._worker_endpoints()
        arguments = ["worker", "--topology", str(self.topology_file.path), *_WORKER_OPTIONS]
        arguments += ["--changelog", self.changelog_url, "--state-dir", str(state_dir)]
        arguments += ["--listen", endpoints[0].listen, "--advertise", endpoints[0].address]
        arguments += ["--processes", str(self.worker_processes)]
        if len(self.workers) % WORKERS == 0:
            arguments += _LITTLE_MEMORY
        is_slow = len(self.workers) % WORKERS == WORKERS - 1
        log = self.directory / f"{name}.log"
        self.workers[name] = Node(name, endpoints, log, arguments, state_dir, disk, wall_clock, is_slow)
        return self.workers[name]

    def _worker_endpoints(self) -> tuple[Endpoint, ...]:
        """Its processes listen, and are reached, at successive ports."""
        # Workers of several processes are machines of their own: no standby is beside its active.
        host = "127.0.0.1" if self.worker_processes == 1 else f"127.0.0.{2 + len(self.workers)}"
        ports, upstream_ports = (_successive_ports(self.worker_processes) for _ in range(2))
        proxies = [self.proxies.add(host, *pair) for pair in zip(ports, upstream_ports, strict=True)]
        return tuple(
            Endpoint(proxy.address, f"{host}:{upstream_port}", proxy)
            for proxy, upstream_port in zip(proxies, upstream_ports, strict=True)
        )

    def spare_worker(self) -> Node:
        """One beyond the first ``WORKERS`` that does not run."""
        spare = list(self.workers.values())[WORKERS:]
        return next((node for node in spare if not node.meant_to_run), None) or self.add_worker()

    @contextlib.contextmanager
    def without_workers(self) -> Iterator[None]:
        """Stop all workers in order, and start them again at the end; none is started by others meanwhile."""
        # One that is added later would be started by whoever adds it.
        self.spare_worker()
        nodes = list(self.workers.values())
        with contextlib.ExitStack() as held:
            for node in nodes:
                held.enter_context(node.lock)
            running = [node for node in nodes if node.meant_to_run]
            for node in running:
                self.signal(node, signal.SIGCONT)
                self.stop(node)
            yield
            for node in running:
                self.start(node)

    def heal(self) -> None:
        """Have everything run that ran at the beginning: faults that overlap may have undone each other's end."""
        for node in [*list(self.workers.values())[:WORKERS], *self.routers.values()]:
            self.signal(node, signal.SIGCONT)
            self.start(node)

    def add_router(self) -> Node:
        """A new router, not started yet."""
        (port,) = free_ports(1)
        name, listen = f"router-{len(self.routers)}", f"127.0.0.1:{port}"
        seeds = ",".join(worker.address for worker in list(self.workers.values()))
        # One router of a single process, one of several.
        processes = str(1 + len(self.routers) % 2)
        arguments = ["router", "--seeds", seeds, "--listen", listen, "--drain-ms", "300", "--processes", processes]
        self.routers[name] = Node(name, (Endpoint(listen, listen),), self.directory / f"{name}.log", arguments)
        return self.routers[name]

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [*list(self.workers.values()), *list(self.routers.values())]

    def start(self, node: Node) -> None:
        """Start a process unless it runs."""
        with node.lock:
            if node.process is not None and node.process.poll() is None:
                return
            if node.disk is not None:
                # As its administrator does: a worker does not start on one that is read-only.
                node.disk.mend()
            environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
            if node.wall_clock is not None:
                environment |= node.wall_clock.environment()
            node.process = self.start_process(self._arguments(node), node.log, environment)
            node.started_ms = boot_ms()
            node.meant_to_run = True

    def _arguments(self, node: Node) -> list[str]:
        if not node.is_slow:
            return node.arguments
        # However long the log has become, a restore ends soon enough.
        per_second = max(_MIN_PER_SECOND, int(self.log_records() / _RESTORE_S))
        return [*node.arguments, "--apply-records-per-second", str(per_second)]

    def signal(self, node: Node, number: int) -> None:
        """Send a signal that does not end a process, to all of a worker's."""
        with node.lock:
            if node.process is not None:
                node.process.send_signal(number)
            for pid in node.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self, node: Node) -> None:
        """End a process as a crash does."""
        with node.lock:
            node.meant_to_run = False
            if node.process is not None:
                self._report_end(node)
                members = node.members()
                node.process.kill()
                node.process.wait(STOP_WITHIN_S)
                self._wait_gone(node, members)

    def _wait_gone(self, node: Node, members: list[int]) -> None:
        """The members of a worker end with the process that started them."""
        end = time.monotonic() + STOP_WITHIN_S
        while any(map(is_alive, members)):
            if time.monotonic() > end:
                self._found(
                    "outlived", f"processes {members} of {node.name} have outlived the one that started them"
                )
                return
            time.sleep(0.01)

    def stop(self, node: Node) -> None:
        """End a process in order."""
        with node.lock:
            node.meant_to_run = False
            if node.process is None or node.process.poll() is not None:
                return
            is_young = boot_ms() - node.started_ms < STARTING_MS
            node.process.terminate()
            status = node.process.wait(STOP_WITHIN_S)
            if status != 0 and not (is_young and status == -signal.SIGTERM):
                self._found("process-ended", f"{node.name} was stopped and ended with {status}")

    def watch(self) -> None:
        """Report processes that ended by themselves."""
        for node in self.nodes:
            with node.lock:
                if node.meant_to_run:
                    self._report_end(node)

    def _report_end(self, node: Node) -> None:
        if node.process is not None and node.meant_to_run and node.process.poll() is not None:
            node.meant_to_run = False
            self._found("process-ended", f"{node.name} ended by itself with {node.process.poll()}")

    def leader(self) -> Node | None:
        """The worker that holds the leader's lease of a group over SQLite."""
        path = self.directory / "log" / "group.db"
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
            (leader,) = connection.execute("SELECT leader FROM grp").fetchone() or (None,)
            return next(
                (node for node in list(self.workers.values()) if leader and leader in node.process_ids()), None
            )
        return None

    def document(self, node: Node, path: str) -> Any:
        """The document at a path of a node, None if it does not answer; past its proxy."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            return self._http.get(f"http://{node.listen}{path}").json()
        return None

    def metric(self, node: Node, name: str) -> float:
        """The sum of a metric's series, 0 if it does not answer."""
        with contextlib.suppress(httpx.HTTPError):
            lines = self._http.get(f"http://{node.listen}/metrics").text.splitlines()
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)
        return 0.0

    def held(self, node: Node) -> dict[str, float]:
        """What a node holds for clients, without connections, which routers keep to workers."""
        with contextlib.suppress(httpx.HTTPError):
            metrics = self._http.get(f"http://{node.listen}/metrics").text
            found = re.findall(r'^forebay_held\{what="(\w+)"\} (\S+)$', metrics, re.M)
            return {what: float(used) for what, used in found if what != "connections" and float(used)}
        return {}

    def unsettled(self) -> str:
        """What is missing until all replicas are there, caught up, and every router knows; '' if nothing."""
        for node in self.nodes:
            if node.meant_to_run and self.unready(node):
                return self.unready(node)
        replicas = min(2, sum(node.meant_to_run for node in list(self.workers.values())))
        for router in self.routers.values():
            missing = self._missing_replicas(router, replicas)
            if missing:
                return f"{router.name}: {missing}"
        return ""

    def unready(self, node: Node) -> str:
        """Why a node is not ready; '' if it is."""
        with contextlib.suppress(httpx.HTTPError):
            answer = self._http.get(f"http://{node.listen}/readyz")
            return "" if answer.status_code == 200 else f"{node.name} is not ready: {answer.text}"
        return f"{node.name} does not answer"

    def _missing_replicas(self, router: Node, replicas: int) -> str:
        rows = (self.document(router, "/v1/lags") or {}).get("lags", ())
        nodes = [node for node in list(self.workers.values()) if node.meant_to_run]
        running = {endpoint.address for node in nodes for endpoint in node.endpoints}
        held: dict[tuple[str, int], list[str]] = {}
        for row in rows:
            if row["host"] in running and row["record_lag"] is not None and row["record_lag"] < 100:
                held.setdefault((row["store"], row["partition"]), []).append(row["role"])
        for spec in self.topology.stores.values():
            for partition in range(spec.partitions):
                roles = held.get((spec.name, partition), [])
                if roles.count("active") != 1 or len(roles) < replicas:
                    return f"{spec.name} {partition} is held by {roles}"
        return ""

    def close(self) -> None:
        """End everything but the proxies."""
        for node in self.nodes:
            self.signal(node, signal.SIGCONT)
            self.kill(node)
            if node.disk is not None:
                node.disk.close()
        self._http.close()

    def _found(self, kind: str, detail: str) -> None:
        self.report(Finding(kind, detail, boot_ms()))


def _successive_ports(count: int) -> list[int]:
    ports = free_ports(count)
    while ports[-1] - ports[0] != count - 1:
        ports = [*ports[1:], *free_ports(1)]
    return ports
