"""What each kind of fault of the log does, and how it is healed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from examples.broker import Broker
from forebay.topology import Topology
from forebay_changelog.sqlite.log_file import partition_path, transaction
from tests.chaos.proxy import Mode, Proxies, Proxy

Injury: TypeAlias = AbstractContextManager[str]
"""Begins the fault, gives its target's address or name, and heals it at the end."""
_DAMAGED_BYTES = 64


class SqliteLogFaults:
    """Breaks a log in a directory, and the group's database beside it."""

    def __init__(self, topology: Topology, log: Path) -> None:
        self._topology, self._log = topology, log
        self.breaking = threading.Lock()
        self.injuries: dict[str, Callable[[int], Injury]] = {
            "lock-log": self._lock_log,
            "damage-group": self._damage_group,
        }

    @contextlib.contextmanager
    def _lock_log(self, target: int) -> Iterator[str]:
        """Hold the write lock of a partition's log, as another writer with many rows does."""
        specs = list(self._topology.stores.values())
        spec = specs[target % len(specs)]
        path = partition_path(str(self._log), spec.topic, target % spec.partitions)
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        with self.breaking, contextlib.closing(connection), transaction(connection):
            yield f"{spec.topic} {target % spec.partitions}"

    @contextlib.contextmanager
    def _damage_group(self, target: int) -> Iterator[str]:
        """Damage the group's database, and remove it in the end, as the documentation says."""
        path = self._log / "group.db"
        overwrite(path, random.Random(target))
        yield path.name
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


@dataclass(frozen=True)
class ProxiedBroker:
    """A broker, and the proxy at the port where workers reach it."""

    broker: Broker
    proxy: Proxy


class BrokerFaults:
    """Breaks brokers, one at a time: most of them are always there, if there are several."""

    def __init__(self, brokers: Sequence[ProxiedBroker], proxies: Proxies) -> None:
        self._brokers, self._proxies = brokers, proxies
        self.breaking = threading.Lock()
        self.injuries: dict[str, Callable[[int], Injury]] = {
            "stop-broker": lambda target: self._end(target, Broker.stop),
            "kill-broker": lambda target: self._end(target, Broker.kill),
            "freeze-broker": self._freeze,
            "cut-broker": lambda target: self._network(target, "cut"),
            "delay-broker": lambda target: self._network(target, "delay"),
            "hold-broker": lambda target: self._network(target, "hold"),
        }

    def _chosen(self, target: int) -> ProxiedBroker:
        return self._brokers[target % len(self._brokers)]

    @contextlib.contextmanager
    def _end(self, target: int, end: Callable[[Broker], None]) -> Iterator[str]:
        broker = self._chosen(target).broker
        with self.breaking:
            end(broker)
            yield broker.address
            broker.start()

    @contextlib.contextmanager
    def _freeze(self, target: int) -> Iterator[str]:
        broker = self._chosen(target).broker
        with self.breaking:
            os.kill(broker.pid, signal.SIGSTOP)
            yield broker.address
            os.kill(broker.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def _network(self, target: int, mode: Mode) -> Iterator[str]:
        chosen = self._chosen(target)
        with self.breaking:
            self._proxies.switch(chosen.proxy, mode)
            yield chosen.broker.address
            self._proxies.switch(chosen.proxy, "pass")


def overwrite(path: Path, chooser: random.Random) -> None:
    """Damage some bytes of a file in place."""
    with path.open("r+b") as file:
        begin = chooser.randrange(max(1, path.stat().st_size - _DAMAGED_BYTES))
        file.seek(begin)
        before = file.read(_DAMAGED_BYTES)
        file.seek(begin)
        file.write(bytes(byte ^ 0xA5 for byte in before))
