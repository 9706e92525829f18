"""The processes of the flights demo: three workers, a router, a Spark job; started and stopped together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from examples.broker import Broker
from examples.jvm import spark_options
from examples.ports import free_ports
from examples.spark_connector import spark_connector
from forebay.topology_file import load_topology

_WITH_SINK, _TAPPED = (Path(__file__).with_name(name) for name in ("topology.toml", "tapped.toml"))
ROOT = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 20.0


class DemoFailed(Exception):
    """A process of the demo ended, or was not ready in time."""


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Wait for a condition; raises ``DemoFailed`` naming what did not happen."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise DemoFailed(f"{what} did not happen within {deadline_s:.0f} s")
        time.sleep(0.05)


@dataclass
class Supervisor:
    """Starts the demo's processes under one directory, and stops them all.

    ``worker_options`` are further flags of every worker. With a ``broker``, log and group are on Kafka. ``tapped``
    runs the job without forebay, and beside it a tap for each of its queries.
    """

    directory: Path
    router_port: int
    worker_options: tuple[str, ...] = ()
    broker: Broker | None = None
    tapped: bool = False
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Worker process by its address."""
    batches: Counter[str] = field(default_factory=Counter)
    """Micro-batches with rows, by query."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows taken from the source, by query."""
    _state_dirs: dict[str, Path] = field(default_factory=dict)
    _others: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.router, timeout=30)
        """Asks the router."""
        self.topology = _TAPPED if self.tapped else _WITH_SINK
        specs = load_topology(self.topology).stores
        self.stores = tuple(specs)
        """The stores, each written by a query of its name."""
        self.partitions = sum(spec.partitions for spec in specs.values())

    @property
    def router(self) -> str:
        """The router's URL."""
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def changelog(self) -> str:
        """The changelog's URL."""
        return f"sqlite://{self.directory / 'changelog'}" if self.broker is None else self.broker.url

    @property
    def source(self) -> Path:
        """Where the flights are replayed to."""
        return self.directory / "flights"

    def start(self, worker_count: int = 3) -> None:
        """Start the workers, the router and the Spark job, and wait until reads are answered."""
        if self.broker is not None:
            self.broker.start()
        for number, port in enumerate(free_ports(worker_count)):
            address = f"127.0.0.1:{port}"
            self._state_dirs[address] = self.directory / f"worker-{number}"
            self.start_worker(address)
        self._others["router"] = self._launch(
            "router",
            [
                *_FOREBAY,
                "router",
                "--seeds",
                ",".join(self.workers),
                "--listen",
                f"127.0.0.1:{self.router_port}",
                "--drain-ms",
                "0",
            ],
        )
        self.source.mkdir(exist_ok=True)
        wait_until(self._ready, "the router's readiness", 180)
        job = self._launch("spark", [sys.executable, "-m", *self._job()], stdout=subprocess.PIPE)
        self._others["spark"] = job
        threading.Thread(target=self._follow, args=(job,), daemon=True).start()
        if self.tapped:
            for store in self.stores:
                self.start_tap(store)

    def start_tap(self, store: str) -> None:
        """Start the tap of a store's query, or restart it."""
        arguments = ["spark", "follow", "--topology", str(self.topology), "--changelog", self.changelog]
        arguments += ["--checkpoint", str(self.directory / "checkpoints" / store), "--store", store]
        self._others[f"tap-{store}"] = self._launch(f"tap-{store}", [*_FOREBAY, *arguments])

    def kill_tap(self, store: str) -> None:
        """Kill the tap of a store's query, without warning."""
        tap = self._others.pop(f"tap-{store}")
        tap.kill()
        tap.wait()

    def _job(self) -> list[str]:
        """The module of the Spark job and its arguments."""
        options = ["--source", str(self.source), "--checkpoints", str(self.directory / "checkpoints")]
        if self.tapped:
            return ["examples.flights.plain_job", *options]
        jars = [] if self.broker is None else ["--jars", spark_connector()]
        return ["examples.flights.job", *options, "--changelog", self.changelog, *jars]

    def start_worker(self, address: str) -> None:
        """Start a worker, or restart it with its state."""
        state_dir = self._state_dirs[address]
        arguments = ["worker", "--topology", str(self.topology), "--changelog", self.changelog]
        arguments += ["--state-dir", str(state_dir), "--listen", address, "--num-standby-replicas", "1"]
        arguments += ["--session-timeout-ms", "2000", "--initial-rebalance-delay-ms", "1000", "--drain-ms", "0"]
        name = state_dir.name
        self.workers[address] = self._launch(name, [*_FOREBAY, *arguments, *self.worker_options])

    def has_read(self, rows: int) -> bool:
        """Whether every query has read so many rows."""
        return all(self.rows[query] >= rows for query in self.stores)

    def check_alive(self) -> None:
        """Raise ``DemoFailed`` with the ends of the logs if any process ended by itself."""
        ended = [name for name, process in {**self._others, **self.workers}.items() if process.poll() is not None]
        if ended:
            raise DemoFailed(f"{', '.join(ended)} ended by itself:{self._last_log_lines()}")

    def stop(self) -> None:
        """Stop everything: a signal to each process group, then force for what is left."""
        processes = [*self._others.values(), *self.workers.values()]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_TIMEOUT_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
        for process in processes:
            # The Spark job's JVM is in its group and may outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.broker is not None:
            self.broker.kill()
        self.http.close()

    def _launch(self, name: str, arguments: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                arguments,
                cwd=ROOT,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )

    def _follow(self, job: subprocess.Popen[bytes]) -> None:
        assert job.stdout is not None
        for line in job.stdout:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            self.batches[document["query"]] += 1
            self.rows[document["query"]] += document["rows"]

    def _ready(self) -> bool:
        self.check_alive()
        try:
            if self.http.get("/readyz").status_code != 200:
                return False
            lags = self.http.get("/v1/lags").json()["lags"]
        except httpx.TransportError:
            return False
        return sum(row["role"] == "active" for row in lags) == self.partitions

    def _last_log_lines(self) -> str:
        lines = []
        for path in sorted(self.directory.glob("*.log")):
            lines += [f"{path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-3:]]
        return "\n  " + "\n  ".join(lines)


_FOREBAY = [sys.executable, "-m", "forebay"]
_ENVIRONMENT = {"JDK_JAVA_OPTIONS": spark_options(), **os.environ}
