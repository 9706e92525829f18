"""Many workers in one process: they answer routers' requests with real documents, and keep no state.

``python -m bench.simulated_workers WORKERS TASKS PORT``: worker ``n`` is the ``n``-th address of 127.1.0.0/16.
Each task is a partition of the one store, active on one worker and standby on the next. A line on standard input
moves a partition to another worker, in a new generation of the map; it is answered with that generation and with
the bytes that were sent so far.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from typing import cast

import uvloop
from bench.deployment import STORE, topology

from forebay.lag import Lag
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import Generation, HostInfo, StreamsMetadataState, cluster_map
from forebay.task_ids import TopicPartition
from forebay.topology_file import load_topology
from forebay.wire.answer_schemas.members import Role
from forebay.wire.answer_schemas.status import (
    IDENTITY_PATH,
    Ceiling,
    Identity,
    MapGeneration,
    ReplicaRow,
    WorkerStatus,
)
from forebay.wire.answer_schemas.stores import map_answer, stores_answer
from forebay.wire.answers import json_body

_APPLICATION, _FINGERPRINT = "bench", "f" * 16


def _store(partitions: int) -> StoreSpec:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(topology(partitions))
        file.flush()
        return load_topology(file.name).stores[STORE]


class Workers:
    """The simulated group: which worker holds what, and how much has been sent."""

    def __init__(self, workers: int, tasks: int, port: int) -> None:
        self.hosts = [HostInfo(f"127.1.{n // 250}.{n % 250 + 1}", port) for n in range(workers)]
        self.spec = _store(tasks)
        self.active = [partition * workers // tasks for partition in range(tasks)]
        self.generation = 1
        self.sent_bytes = 0
        self._sequence = 0
        self._by_host = {host.host: n for n, host in enumerate(self.hosts)}
        self._map = b""
        self._publish()

    def move(self) -> None:
        """Make the next worker active for one partition."""
        self.generation += 1
        self.active[self.generation % self.spec.partitions] += 1
        self.active[self.generation % self.spec.partitions] %= len(self.hosts)
        self._publish()

    def answer(self, address: str, path: str) -> bytes:
        """The body of a worker's answer."""
        if path == "/v1/status":
            return json_body(self._status(self._by_host[address]))
        if path == IDENTITY_PATH:
            identity = Identity("worker", _APPLICATION, _process_id(self._by_host[address]), 1)
            return json_body(identity)
        if path == "/v1/stores":
            return json_body(stores_answer(_APPLICATION, _FINGERPRINT, [self.spec]))
        assert path == "/v1/metadata", path
        return self._map

    def _publish(self) -> None:
        self._held: list[list[tuple[int, Role]]] = [[] for _ in self.hosts]
        for partition, n in enumerate(self.active):
            self._held[n].append((partition, "active"))
            self._held[(n + 1) % len(self.hosts)].append((partition, "standby"))
        parts: dict[str, dict[HostInfo, frozenset[TopicPartition]]] = {"active": {}, "standby": {}}
        for host, held in zip(self.hosts, self._held, strict=True):
            for role, of_host in parts.items():
                mine = (TopicPartition(self.spec.topic, partition) for partition, own in held if own == role)
                of_host[host] = frozenset(mine)
        process_ids = {host: frozenset({_process_id(n)}) for n, host in enumerate(self.hosts)}
        newest = cluster_map(
            Generation(1, self.generation), [self.spec], parts["active"], parts["standby"], process_ids
        )
        state = StreamsMetadataState({self.spec.name: self.spec}, newest)
        self._map = json_body(map_answer(_APPLICATION, _FINGERPRINT, state))

    def _status(self, n: int) -> WorkerStatus:
        self._sequence += 1
        host = str(self.hosts[n])
        return WorkerStatus(
            application_id=_APPLICATION,
            topology=_FINGERPRINT,
            host=host,
            rack=host,
            process_id=_process_id(n),
            incarnation=1,
            sequence=self._sequence,
            state="member",
            generation=MapGeneration(1, self.generation),
            storage_fault=None,
            ceiling=Ceiling(None, None, None),
            acceptable_recovery_lag=10_000,
            num_standby_replicas=1,
            tasks=[self._row(host, partition, role) for partition, role in self._held[n]],
        )

    def _row(self, host: str, partition: int, role: Role) -> ReplicaRow:
        offset = 1_000_000 + self._sequence
        return ReplicaRow(
            self.spec.name,
            partition,
            role,
            *Lag(0, 12, 345),
            task=f"0_{partition}",
            host=host,
            offset=offset,
            end_offset=offset,
            high_watermark=offset,
            open_transaction_records=0,
            restored=True,
        )


def _process_id(n: int) -> str:
    return f"process-{n}"


class _Connection(asyncio.Protocol):
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, self._received = self._received.split(b"\r\n\r\n", 1)
            address = self._transport.get_extra_info("sockname")[0]
            body = self._workers.answer(address, head.split(b" ", 2)[1].decode())
            answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._workers.sent_bytes += len(answer) + len(body)
            self._transport.write(answer + body)


async def _serve(workers: Workers, port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: _Connection(workers), "0.0.0.0", port, backlog=4096)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("ready", flush=True)
    while await commands.readline():
        workers.move()
        print(workers.generation, workers.sent_bytes, flush=True)


def main() -> None:
    count, tasks, port = map(int, sys.argv[1:])
    uvloop.run(_serve(Workers(count, tasks, port), port))


if __name__ == "__main__":
    main()
