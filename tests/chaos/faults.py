"""What each kind of fault does to a deployment, and how it is healed."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from examples.broker import Broker
from forebay.changelog.sqlite.partition import partition_path, transaction
from tests.chaos.deployment import Deployment
from tests.chaos.node import Node
from tests.chaos.proxy import Mode

STORM_STARTS = 4
_DAMAGED_BYTES = 64
_FALL_BEHIND_S = 3.0

Injury: TypeAlias = AbstractContextManager[str]
"""Begins the fault, gives its target's address or name, and heals it at the end."""


class Faults:
    """Breaks a deployment: ``injuries[kind](target)``, where a number selects among the processes that run."""

    def __init__(self, deployment: Deployment, log: Path, broker: Broker | None = None) -> None:
        self._deployment = deployment
        self._log = log
        self._broker = broker
        self._breaking_broker = threading.Lock()
        """Held while it is broken: there is only one."""

        worker, router, leader = (functools.partial(self._choose, tier) for tier in ("worker", "router", "leader"))
        self.injuries: dict[str, Callable[[int], Injury]] = {
            "kill-worker": lambda target: self._kill(worker(target)),
            "kill-process": lambda target: self._kill_process(worker(target), target),
            "stop-worker": lambda target: self._stop(worker(target)),
            "kill-leader": lambda target: self._kill(leader(target)),
            "stop-leader": lambda target: self._stop(leader(target)),
            "kill-router": lambda target: self._kill(router(target)),
            "stop-router": lambda target: self._stop(router(target)),
            "wipe-state": lambda target: self._change_state(worker(target), _wipe),
            "damage-sst": lambda target: self._damage(worker(target), "**/*.sst", target),
            "damage-manifest": lambda target: self._damage(worker(target), "**/MANIFEST-*", target),
            "damage-offsets": lambda target: self._damage(worker(target), "**/.offsets.json", target),
            "cut-network": lambda target: self._network(worker(target), "cut"),
            "delay-network": lambda target: self._network(worker(target), "delay"),
            "hold-network": lambda target: self._network(worker(target), "hold"),
            "half-open-network": lambda target: self._network(worker(target), "half-open"),
            "refuse-writes": lambda target: self._refuse_writes(worker(target)),
            "rolling-restart": lambda _: self._rolling_restart(),
            "scale-out": lambda _: self._scale_out(),
            "scale-in": lambda target: self._scale_in(worker(target)),
            "restart-storm": lambda _: self._restart_storm(),
            "lock-log": self._lock_log,
            "damage-group": self._damage_group,
            "stop-broker": lambda _: self._end_broker(Broker.stop),
            "kill-broker": lambda _: self._end_broker(Broker.kill),
            "freeze-broker": lambda _: self._freeze_broker(),
        }
        """By kind; a number selects the target."""

    def _choose(self, tier: str, target: int) -> Node:
        if tier == "leader":
            leader = self._deployment.leader()
            if leader is not None and leader.meant_to_run:
                return leader
        nodes = self._deployment.routers if tier == "router" else self._deployment.workers
        running = [node for node in nodes.values() if node.meant_to_run] or list(nodes.values())
        return running[target % len(running)]

    @contextlib.contextmanager
    def _kill(self, node: Node) -> Iterator[str]:
        self._deployment.kill(node)
        yield node.address
        self._deployment.start(node)

    @contextlib.contextmanager
    def _kill_process(self, node: Node, target: int) -> Iterator[str]:
        """End one process of a worker, which is replaced; one that never was up would end the worker."""
        with node.lock:
            self._wait_ready(node)
            members = node.members()
            os.kill(members[target % len(members)], signal.SIGKILL)
        yield node.address

    @contextlib.contextmanager
    def _stop(self, node: Node) -> Iterator[str]:
        self._deployment.signal(node, signal.SIGSTOP)
        yield node.address
        self._deployment.signal(node, signal.SIGCONT)

    def _damage(self, node: Node, pattern: str, seed: int) -> Injury:
        return self._change_state(node, lambda path: _damage_files(path, pattern, random.Random(seed)))

    @contextlib.contextmanager
    def _change_state(self, node: Node, change: Callable[[Path], None]) -> Iterator[str]:
        """Stop a worker in order, so that its files are complete, and change them before it starts again."""
        assert node.state_dir is not None
        self._deployment.signal(node, signal.SIGCONT)
        with node.lock:
            self._deployment.stop(node)
            change(node.state_dir)
        yield node.address
        self._deployment.start(node)

    @contextlib.contextmanager
    def _refuse_writes(self, node: Node) -> Iterator[str]:
        """Let a worker write to no file, so that it falls behind while it answers, as on a full disk."""
        limit_file_size(node, 0)
        time.sleep(_FALL_BEHIND_S)
        yield node.address
        limit_file_size(node, resource.RLIM_INFINITY)

    @contextlib.contextmanager
    def _network(self, node: Node, mode: Mode) -> Iterator[str]:
        self._switch(node, mode)
        yield node.address
        self._switch(node, "pass")

    def _switch(self, node: Node, mode: Mode) -> None:
        for endpoint in node.endpoints:
            assert endpoint.proxy is not None
            self._deployment.proxies.switch(endpoint.proxy, mode)

    @contextlib.contextmanager
    def _rolling_restart(self) -> Iterator[str]:
        for node in self._deployment.nodes:
            self._deployment.signal(node, signal.SIGCONT)
            self._deployment.stop(node)
            self._deployment.start(node)
            self._wait_ready(node)
        yield "all"

    @contextlib.contextmanager
    def _scale_out(self) -> Iterator[str]:
        """A worker more, with what it still has from the last time."""
        node = self._deployment.spare_worker()
        self._deployment.start(node)
        yield node.address
        self._deployment.signal(node, signal.SIGCONT)
        self._deployment.stop(node)

    @contextlib.contextmanager
    def _scale_in(self, node: Node) -> Iterator[str]:
        """One worker less, for longer than it takes until its replicas are built elsewhere."""
        self._deployment.signal(node, signal.SIGCONT)
        self._deployment.stop(node)
        time.sleep(5)
        yield node.address
        self._deployment.start(node)

    @contextlib.contextmanager
    def _restart_storm(self) -> Iterator[str]:
        for _ in range(STORM_STARTS):
            for node in self._deployment.workers.values():
                self._deployment.kill(node)
                self._deployment.start(node)
            time.sleep(0.5)
        yield "all workers"

    @contextlib.contextmanager
    def _lock_log(self, target: int) -> Iterator[str]:
        """Hold the write lock of a partition's log, as another writer with many rows does."""
        specs = list(self._deployment.topology.stores.values())
        spec = specs[target % len(specs)]
        path = partition_path(str(self._log), spec.topic, target % spec.partitions)
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        with contextlib.closing(connection), transaction(connection):
            yield f"{spec.topic} {target % spec.partitions}"

    @contextlib.contextmanager
    def _damage_group(self, target: int) -> Iterator[str]:
        """Damage the group's database, and remove it in the end, as the documentation says."""
        path = self._log / "group.db"
        _overwrite(path, random.Random(target))
        yield path.name
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _end_broker(self, end: Callable[[Broker], None]) -> Iterator[str]:
        assert self._broker is not None
        with self._breaking_broker:
            end(self._broker)
            yield "broker"
            self._broker.start()

    @contextlib.contextmanager
    def _freeze_broker(self) -> Iterator[str]:
        assert self._broker is not None
        with self._breaking_broker:
            os.kill(self._broker.pid, signal.SIGSTOP)
            yield "broker"
            os.kill(self._broker.pid, signal.SIGCONT)

    def _wait_ready(self, node: Node) -> None:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self._deployment.unready(node):
            time.sleep(0.05)


def limit_file_size(node: Node, limit_bytes: int) -> None:
    """Limit how far a worker's processes may write into a file; one that has ended needs no limit."""
    for pid in node.members() or [node.process.pid]:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


def _wipe(state_dir: Path) -> None:
    shutil.rmtree(state_dir, ignore_errors=True)


def _damage_files(state_dir: Path, pattern: str, chooser: random.Random) -> None:
    """Overwrite a part of half of the files that match."""
    files = sorted(path for path in state_dir.glob(pattern) if ".set-aside" not in path.parts)
    for path in chooser.sample(files, (len(files) + 1) // 2):
        _overwrite(path, chooser)


def _overwrite(path: Path, chooser: random.Random) -> None:
    """Damage some bytes in place."""
    with path.open("r+b") as file:
        begin = chooser.randrange(max(1, path.stat().st_size - _DAMAGED_BYTES))
        file.seek(begin)
        before = file.read(_DAMAGED_BYTES)
        file.seek(begin)
        file.write(bytes(byte ^ 0xA5 for byte in before))
