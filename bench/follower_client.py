"""Follows by the thousand and only counts: a process of its own, with one connection for each follower.

``python -m bench.follower_client`` reads ``Followed`` as JSON from standard input. It writes a line once all
follow, and a line with what they received for each line that it reads then, until its input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.descriptors import allow_open_files

_OPENED_AT_ONCE = 64
_DEADLINE_S = 300.0
_NICENESS = 5
"""What receiving takes of the machine is not the server's doing."""
_FIRST = (b"event: lag\n", b"event: value\n")
"""Events of which the first says that the state was sent: of a store, and of a key."""


@dataclass(frozen=True)
class Followed:
    """Where so many followers connect, and the paths that they follow in turn."""

    address: str
    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Received:
    """What all followers received since they were opened, and how many are still connected."""

    events: int
    received_bytes: int
    connected: int


class Following:
    """A process of followers that have all received the state."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def received(self) -> Received:
        """What was received up to now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Received(**json.loads(self.line()))

    def line(self) -> str:
        """The next line of the process."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def following(followed: Followed) -> Iterator[Following]:
    """Followers that stay connected meanwhile."""
    command = [sys.executable, "-m", "bench.follower_client"]
    root = Path(__file__).parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(followed)) + "\n")
        process.stdin.flush()
        clients = Following(process)
        assert clients.line() == "all follow\n", f"not all of {followed.count} followers were served"
        try:
            yield clients
        finally:
            process.stdin.close()
            process.wait(60)


class _Follower(asyncio.Protocol):
    def __init__(self, total: _Total, request: bytes) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._total = total
        self._request = request
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._total.connected += 1
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._total.received_bytes += len(data)
        self._total.events += data.count(b"event: ")
        if not self.begun.done():
            seen = self._last + data
            if any(event in seen for event in _FIRST):
                self.begun.set_result(None)
            self._last = seen[-16:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._total.connected -= 1
        if not self.begun.done():
            self.begun.set_exception(exc or ConnectionError(f"refused: {self._last!r}"))


class _Total:
    def __init__(self) -> None:
        self.events = self.received_bytes = self.connected = 0


async def _follow(followed: Followed) -> None:
    total, turns = _Total(), asyncio.Semaphore(_OPENED_AT_ONCE)
    host, _, port = followed.address.rpartition(":")
    loop = asyncio.get_running_loop()

    async def open_one(path: str) -> None:
        request = f"GET {path} HTTP/1.1\r\nhost: {followed.address}\r\naccept: text/event-stream\r\n\r\n".encode()
        async with turns:
            _, follower = await loop.create_connection(lambda: _Follower(total, request), host, int(port))
            await follower.begun

    paths = itertools.islice(itertools.cycle(followed.paths), followed.count)
    async with asyncio.timeout(_DEADLINE_S):
        await asyncio.gather(*map(open_one, paths))
    print("all follow", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(asdict(Received(total.events, total.received_bytes, total.connected))), flush=True)


def main() -> None:
    """Follow until standard input ends."""
    allow_open_files()
    os.nice(_NICENESS)
    document = json.loads(sys.stdin.readline())
    asyncio.run(_follow(Followed(document["address"], document["count"], tuple(document["paths"]))))


if __name__ == "__main__":
    main()
