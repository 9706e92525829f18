"""One run: processes, writer, readers and faults, until the time is over and all has converged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from examples.broker import Brokers
from examples.ports import free_ports
from forebay.clock import boot_ms
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog import Changelog
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.chaos.deployment import ROUTERS, WORKERS, Deployment, Starter
from tests.chaos.disks import can_mount, can_slow_down
from tests.chaos.faults import Faults
from tests.chaos.history import Calm, Fault, Finding, History
from tests.chaos.log_cuts import KafkaLogFiles, LogCuts, LogFiles, SqliteLogFiles
from tests.chaos.log_faults import BrokerFaults, Injury, ProxiedBroker, SqliteLogFaults
from tests.chaos.machine import Machine
from tests.chaos.misplaced_keys import MisplacedKeys
from tests.chaos.planted import planted, start_elsewhere
from tests.chaos.proxy import Proxies, Proxy
from tests.chaos.readers import read_until, readers, store_followers
from tests.chaos.reading import Reading
from tests.chaos.schedule import PlannedFault, episodes, kinds_for
from tests.chaos.sweep import sweep
from tests.chaos.topologies import TopologyFile
from tests.chaos.writer import Compactor, LogWriter, SqliteWriter, Writer
from tests.support.command_process import CommandProcess

START_WITHIN_S = 60
CONVERGE_WITHIN_S = 30
"""After the faults have ended, every partition has its replicas, caught up, within this time."""
GIVEN_BACK_WITHIN_S = 10
"""After the last client has left, nothing is held for one within this time."""
CALM_S = 4.0
WARM_UP_S = 2.0
_LOGGED = {
    "rebuild": " and rebuilt",
    "tombstones-missed": "tombstones",
    "log-cut": "has lost records",
    "beginning-moved": "and began at",
    "copied": "goes on from a copy",
}
"""Words by which a log says that a store is rebuilt, after damage or since a log has changed, or copied."""
_COUNTED = {
    "router": ("forebay_router_hedges_won_total", "forebay_router_failovers_total"),
    "worker": ("forebay_disk_reads_total",),
}
_TRACES = ("Traceback (most recent call last)", "panicked at", "Fatal Python error")


class Settings(Protocol):
    """What the command line sets."""

    minutes: float
    seed: int
    log: str
    worker_processes: int
    brokers: int
    partitions: int
    faults: list[str]
    mutant: str


@dataclass
class Run:
    """Everything of a run; ``history`` is complete once ``go`` has returned."""

    directory: Path
    settings: Settings
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._topology_file = TopologyFile(self.directory / "topology.toml", self.settings.partitions)
        self.topology: Topology = load_topology(self._topology_file.path)
        self._proxies = Proxies()
        self._has_disks = can_mount()
        self._stopping = threading.Event()

    def go(self) -> None:
        """Run to the end."""
        machine = Machine(self.history.add)
        machine.start()
        try:
            (self._run_kafka if self.settings.log == "kafka" else self._run_sqlite)()
        finally:
            self._proxies.close()
            machine.stop()

    def _run_sqlite(self) -> None:
        changelog = SqliteChangelog(self.directory / "log")
        for spec in self.topology.stores.values():
            changelog.ensure(spec)
        compactor = Compactor(changelog, self.topology, self.history.add)
        compactor.start()
        try:
            log = self.directory / "log"
            faults = SqliteLogFaults(self.topology, log)
            files = SqliteLogFiles(log, faults.breaking, compactor.resting)
            self._deploy(changelog.url, changelog, SqliteWriter(changelog), faults.injuries, files)
        finally:
            compactor.stop()

    def _run_kafka(self) -> None:
        # SQLite needs no Kafka client.
        from forebay_changelog.kafka.changelog import KafkaChangelog
        from tests.chaos.kafka_writer import KafkaWriter, create_topics

        between: list[Proxy] = []

        def before(port: int) -> int:
            (own_port,) = free_ports(1)
            between.append(self._proxies.add("127.0.0.1", own_port, port))
            return own_port

        with Brokers(self.directory / "kafka", self.settings.brokers, before) as kafka:
            # The writer knows what is in the log, whatever is between workers and brokers.
            changelog = KafkaChangelog(kafka.inner_url)
            create_topics(changelog, self.topology)
            writer = KafkaWriter(changelog, self.settings.seed, self.history.add)
            proxied = list(map(ProxiedBroker, kafka.brokers, between))
            faults = BrokerFaults(proxied, self._proxies)
            directory = self.directory / "kafka" / "broker-1"
            files = KafkaLogFiles(kafka.brokers[0], directory, faults.breaking, writer.end, writer.renew)
            of_kafka = (writer.move_beginning, writer.add_partition)
            self._deploy(kafka.url, changelog, writer, faults.injuries, files, *of_kafka)

    def _deploy(
        self,
        url: str,
        changelog: Changelog,
        log: LogWriter,
        log_injuries: Mapping[str, Callable[[int], Injury]],
        files: LogFiles,
        move_beginning: Callable[[TopicPartition, int], None] | None = None,
        add_partition: Callable[[StoreSpec], None] | None = None,
    ) -> None:
        """``url`` is the log's for workers."""
        deployment = Deployment(
            self.directory,
            self._topology_file,
            url,
            self.history.add,
            self._proxies,
            self._starter(),
            worker_processes=self.settings.worker_processes,
            has_disks=self._has_disks,
        )
        writer = Writer(self.topology, changelog.identity, log, self.settings.seed, self.history.add)
        deployment.log_records = lambda: sum(end for ends in writer.ends.values() for end in ends.values())
        try:
            writer.start()
            for _ in range(WORKERS):
                deployment.start(deployment.add_worker())
            for _ in range(ROUTERS):
                deployment.start(deployment.add_router())
            cuts = LogCuts(deployment, writer, files, self.history.add, move_beginning)
            misplaced = MisplacedKeys(deployment, writer, changelog, self.history.add, add_partition)
            faults = Faults(deployment, {**log_injuries, **cuts.injuries, **misplaced.injuries})
            asyncio.run(self._read_under_faults(deployment, writer, faults))
            self._find_traces(deployment)
        finally:
            deployment.close()
            writer.stop()

    def _starter(self) -> Starter:
        """How processes are started: with the code of this repository, or of a copy with a fault planted in it."""
        if not self.settings.mutant:
            return CommandProcess
        return functools.partial(start_elsewhere, planted(self.settings.mutant, self.directory / "code"))

    async def _read_under_faults(self, deployment: Deployment, writer: Writer, faults: Faults) -> None:
        await asyncio.to_thread(self._wait_settled, deployment, START_WITHIN_S)
        stopped = asyncio.Event()
        chooser = random.Random(self.settings.seed)
        limits = httpx.Limits(max_connections=200)
        followers = store_followers()
        async with httpx.AsyncClient(timeout=6.0, limits=limits) as http:
            reading = Reading(deployment, writer, self.history.add, chooser, http)
            tasks = [asyncio.create_task(read_until(stopped, reading, *reader)) for reader in readers(followers)]
            try:
                schedule = asyncio.create_task(asyncio.to_thread(self._break_and_heal, deployment, faults))
                # A reader that fails ends the run.
                done, _ = await asyncio.wait([schedule, *tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._stopping.set()
                stopped.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            written_ms = await asyncio.to_thread(self._converge, deployment, writer)
            await asyncio.gather(*[follower.finish(reading, written_ms) for follower in followers])
        await asyncio.to_thread(self._find_held, deployment)

    def _break_and_heal(self, deployment: Deployment, faults: Faults) -> None:
        """Episode by episode: calm, then faults, then wait until all is well again."""
        end = time.monotonic() + 60 * self.settings.minutes
        settings = self.settings
        known = kinds_for(
            settings.log,
            settings.worker_processes,
            settings.brokers,
            disks=self._has_disks,
            slow_disks=can_slow_down(),
        )
        kinds = settings.faults or known
        self._rest(deployment)
        for number, planned in enumerate(episodes(self.settings.seed, kinds)):
            with ThreadPoolExecutor(len(planned)) as pool:
                for done in [pool.submit(self._inject, faults, number, fault) for fault in planned]:
                    done.result()
            deployment.heal()
            self._wait_settled(deployment, CONVERGE_WITHIN_S)
            self._rest(deployment)
            self._note_metrics(deployment)
            if time.monotonic() > end or self._stopping.is_set():
                return

    def _inject(self, faults: Faults, episode: int, planned: PlannedFault) -> None:
        time.sleep(planned.start_s)
        began_ms = boot_ms()
        with faults.injuries[planned.kind](planned.target) as target:
            time.sleep(planned.hold_s)
        self.history.add(Fault(planned.kind, target, began_ms, boot_ms(), episode))

    def _rest(self, deployment: Deployment) -> None:
        """Leave everything alone for a while."""
        time.sleep(WARM_UP_S)
        began_ms = boot_ms()
        time.sleep(CALM_S)
        if not deployment.unsettled():
            self.history.add(Calm(began_ms, boot_ms()))

    def _wait_settled(self, deployment: Deployment, within_s: float) -> None:
        end = time.monotonic() + within_s
        while missing := deployment.unsettled():
            deployment.watch()
            if time.monotonic() > end:
                self.history.add(Finding("not-converged", f"after {within_s} s {missing}", boot_ms()))
                return
            time.sleep(0.1)
        deployment.watch()

    def _note_metrics(self, deployment: Deployment) -> None:
        """What was counted; a process that is killed takes its counters with it."""
        for node in deployment.nodes:
            for name in _COUNTED[node.name.partition("-")[0]]:
                if deployment.metric(node, name):
                    self.history.add(Finding(name, node.name, boot_ms()))

    def _converge(self, deployment: Deployment, writer: Writer) -> float:
        """End the log, and compare every replica with it; returns when the last record had been written."""
        writer.stop()
        written_ms = boot_ms()
        self._wait_settled(deployment, CONVERGE_WITHIN_S)
        for entry in sweep(deployment, writer):
            self.history.add(entry)
        return written_ms

    def _find_held(self, deployment: Deployment) -> None:
        """The last client has left: nothing may be held for one."""
        end = time.monotonic() + GIVEN_BACK_WITHIN_S
        nodes = [node for node in deployment.nodes if node.meant_to_run]
        while held := {node.name: found for node in nodes if (found := deployment.held(node))}:
            if time.monotonic() > end:
                own = _own_connections(
                    {int(one.address.rpartition(":")[2]) for node in nodes for one in node.endpoints}
                )
                kind = "held" if not own else "held-by-a-reader"
                self.history.add(Finding(kind, f"after {GIVEN_BACK_WITHIN_S} s {held}", boot_ms()))
                return
            time.sleep(0.1)

    def _find_traces(self, deployment: Deployment) -> None:
        for node in deployment.nodes:
            text = node.log.read_text(errors="replace") if node.log.exists() else ""
            for trace in _TRACES:
                if trace in text:
                    excerpt = text[text.index(trace) : text.index(trace) + 2_000]
                    self.history.add(Finding("stack-trace", f"{node.name}: {excerpt}", boot_ms()))
            for line in text.splitlines():
                for kind, words in _LOGGED.items():
                    if words in line:
                        self.history.add(Finding(kind, f"{node.name}: {line}", boot_ms()))


def _own_connections(ports: set[int]) -> int:
    """How many connections this process still has to some ports of this machine."""
    mine = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(os.readlink(descriptor))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(int(row[2].rpartition(":")[2], 16) in ports and f"socket:[{row[9]}]" in mine for row in rows)
