"""What each kind of fault does to a deployment, and how it is healed."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from forebay.clock import boot_ms
from tests.chaos.deployment import Deployment
from tests.chaos.disks import cool, found_below
from tests.chaos.history import Finding
from tests.chaos.log_faults import Injury, overwrite
from tests.chaos.node import Node
from tests.chaos.proxy import Mode

STORM_STARTS = 4
CLOCK_STEP_S = 3_600
_FALL_BEHIND_S = 3.0


class Faults:
    """Breaks a deployment: ``injuries[kind](target)``, where a number selects among the processes that run."""

    def __init__(self, deployment: Deployment, log_injuries: Mapping[str, Callable[[int], Injury]]) -> None:
        self._deployment = deployment
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
            "change-topology": lambda _: self._change_topology(),
            "fill-disk": lambda target: self._fill_disk(worker(target)),
            "read-only-disk": lambda target: self._turn_disk_read_only(worker(target)),
            "slow-disk": lambda target: self._slow_disk(worker(target)),
            "cold-cache": lambda target: self._cool(worker(target)),
            "step-clock": lambda target: self._step_clock(worker(target), target),
            **log_injuries,
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
            for node in list(self._deployment.workers.values()):
                self._deployment.kill(node)
                self._deployment.start(node)
            time.sleep(0.5)
        yield "all workers"

    @contextlib.contextmanager
    def _change_topology(self) -> Iterator[str]:
        """Start all processes, one after the other, with a topology in which each store has another ordinal."""
        before = _places_of_stores(self._deployment)
        self._deployment.topology_file.change()
        with self._rolling_restart():
            after = _places_of_stores(self._deployment)
            moved = sum(before.get(inode, place) != place for inode, place in after.items())
            if moved:
                self._deployment.report(Finding("relocated", f"{moved} stores", boot_ms()))
            yield "all"

    @contextlib.contextmanager
    def _fill_disk(self, node: Node) -> Iterator[str]:
        assert node.disk is not None
        node.disk.fill()
        time.sleep(_FALL_BEHIND_S)
        yield node.address
        node.disk.free()

    @contextlib.contextmanager
    def _turn_disk_read_only(self, node: Node) -> Iterator[str]:
        """Until it was stopped, and its disk mended, a worker serves what it has."""
        assert node.disk is not None
        with node.lock:
            node.disk.turn_read_only()
        time.sleep(_FALL_BEHIND_S)
        yield node.address
        self._deployment.signal(node, signal.SIGCONT)
        with node.lock:
            self._deployment.stop(node)
            self._deployment.start(node)

    @contextlib.contextmanager
    def _slow_disk(self, node: Node) -> Iterator[str]:
        """Have a worker's disk pass few bytes a second, with nothing of it in memory."""
        assert node.disk is not None
        with self._cool(node):
            node.disk.slow_down()
            yield node.address
            node.disk.speed_up()

    @contextlib.contextmanager
    def _cool(self, node: Node) -> Iterator[str]:
        """Have a worker's files read from its disk again."""
        assert node.state_dir is not None
        cool(node.state_dir)
        yield node.address

    @contextlib.contextmanager
    def _step_clock(self, node: Node, target: int) -> Iterator[str]:
        """Set a worker's wall clock by an hour, and back at the end."""
        assert node.wall_clock is not None
        # Compaction of Kafka by a clock that is behind is not supported: docs/capacity.md.
        forward = self._deployment.changelog_url.startswith("kafka") or target % 2
        node.wall_clock.step(CLOCK_STEP_S if forward else -CLOCK_STEP_S)
        yield node.address
        node.wall_clock.step(0)

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
    files = [path for path in found_below(state_dir, pattern) if ".set-aside" not in path.parts]
    for path in chooser.sample(files, (len(files) + 1) // 2):
        # Its disk may be read-only meanwhile.
        with contextlib.suppress(OSError):
            overwrite(path, chooser)


def _places_of_stores(deployment: Deployment) -> dict[tuple[int, int], str]:
    """By device and inode, which a move keeps, where each worker's stores are."""
    found: dict[tuple[int, int], str] = {}
    for node in list(deployment.workers.values()):
        assert node.state_dir is not None
        for path in found_below(node.state_dir, "**/rocksdb/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found[status.st_dev, status.st_ino] = str(path)
    return found
