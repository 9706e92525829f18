"""Clients that are there for long: idle connections, reads at a constant rate, and connections that come and go.

``python -m bench.steady_clients`` reads ``Clients`` as JSON from standard input. It writes a line once all idle
ones are connected, and a line with what was done once its input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.descriptors import allow_open_files

_IDLE_S = 60.0
"""How long an idle connection waits: a server closes it after 75 s."""
_READERS = 8
_ABORTED = 4
"""Of so many connections that come and go, one does not wait for its answer."""
_TURN_S = 0.05
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Clients:
    """Which keys are read where, how many connections are idle, and what happens each second."""

    addresses: tuple[str, ...]
    paths: tuple[str, ...]
    idle: int
    reads_per_second: int
    churned_per_second: int


@contextlib.contextmanager
def steady(clients: Clients) -> Iterator[Counter[str]]:
    """Clients that go on meanwhile; afterwards, the counts are of what they did."""
    command, pipe = [sys.executable, "-m", "bench.steady_clients"], subprocess.PIPE
    root = Path(__file__).parents[1]
    done: Counter[str] = Counter()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(clients)) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "connected\n", "not all clients could connect"
        try:
            yield done
        finally:
            process.stdin.close()
            done.update(json.loads(process.stdout.readline()))


class _Connection:
    """One keep-alive connection, opened again if it was closed."""

    def __init__(self, address: str, done: Counter[str]) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._done = done
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def read(self, path: str, *, abort: bool = False) -> None:
        """Read one key; counts what came of it."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._done[await self._exchange(path, abort)] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self._done["failed"] += 1
            self.close()

    async def _exchange(self, path: str, abort: bool) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, int(self._port))
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        if abort:
            writer.transport.abort()
            return "aborted"
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length))
        return "answered" if head.startswith(b"HTTP/1.1 200") else "refused"

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class _Load:
    def __init__(self, clients: Clients) -> None:
        self.done: Counter[str] = Counter()
        self._clients = clients
        self._addresses = itertools.cycle(clients.addresses)
        self._paths = itertools.cycle(clients.paths)

    async def connect(self) -> list[_Connection]:
        """The idle connections, each of which has read once."""
        connections = [self._connection() for _ in range(self._clients.idle)]
        for connection in connections:
            await connection.read(next(self._paths))
        return connections

    async def idle(self, connection: _Connection) -> None:
        """Read now and then, never at the same time as the others."""
        await asyncio.sleep(random.uniform(0, _IDLE_S))
        while True:
            await connection.read(next(self._paths))
            await asyncio.sleep(_IDLE_S)

    async def read(self) -> None:
        """Read at a constant rate over a few connections."""
        connections = [self._connection() for _ in range(_READERS)]
        share = max(1, round(self._clients.reads_per_second * _TURN_S / _READERS))

        async def some(connection: _Connection) -> None:
            for _ in range(share):
                await connection.read(next(self._paths))

        async for _ in _every(share * _READERS / self._clients.reads_per_second):
            await asyncio.gather(*map(some, connections))

    async def churn(self) -> None:
        """Open connections, read once on each, and close them."""
        numbers = itertools.count()
        async for _ in _every(1 / self._clients.churned_per_second):
            connection = self._connection()
            await connection.read(next(self._paths), abort=next(numbers) % _ABORTED == 0)
            connection.close()
            self.done["churned"] += 1

    def _connection(self) -> _Connection:
        return _Connection(next(self._addresses), self.done)


async def _every(interval_s: float) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for turn in itertools.count(1):
        yield
        await asyncio.sleep(max(0.0, begun + turn * interval_s - loop.time()))


async def _run(clients: Clients) -> None:
    load = _Load(clients)
    connections = await load.connect()
    print("connected", flush=True)
    tasks = [asyncio.ensure_future(work) for work in (load.read(), load.churn(), *map(load.idle, connections))]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [one for one in outcomes if not isinstance(one, asyncio.CancelledError)]
    assert not failures, failures
    print(json.dumps(load.done), flush=True)


def main() -> None:
    """Go on until standard input ends."""
    allow_open_files()
    os.nice(5)
    document = json.loads(sys.stdin.readline())
    asyncio.run(_run(Clients(**{**document, "paths": tuple(document["paths"])})))


if __name__ == "__main__":
    main()
