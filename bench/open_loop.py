"""An open loop: reads at a constant rate, whatever the answers do.

A read's time runs from the moment at which it was due, so a server that stalls is charged for every read that it
holds up (coordinated omission corrected); no read waits for another's connection, unless hundreds are held up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import re
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.credentials import AUTHORIZATION

_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 900
"""Select takes descriptors below 1,024."""
_CONTENT_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Read:
    """One read: when it was due on the monotonic clock, how long it took from then, its status (0: broken)."""

    due_s: float
    took_ms: float
    status: int


def read_steadily(
    address: str, paths: Sequence[str], *, per_second: int, going_on: Callable[[], bool]
) -> list[Read]:
    """Read the paths in turn while ``going_on()``; returns every read once all are answered."""
    # Garbage collection among millions of records would be charged to the server.
    gc.disable()
    try:
        with _ahead_of_others(), _runner() as runner:
            return runner.run(_Loop(address).run(paths, per_second, going_on))
    finally:
        gc.enable()


@contextlib.contextmanager
def _ahead_of_others() -> Iterator[None]:
    """Give this thread real-time priority, if that is allowed: what it waits for a processor is not the server's
    doing."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _runner() -> asyncio.Runner:
    # Unlike epoll's, select's time-outs are finer than a millisecond.
    return asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector()))


def for_seconds(seconds: float) -> Callable[[], bool]:
    """True for this long from now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


class _Loop:
    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[_Connection] = []
        self._free = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def run(self, paths: Sequence[str], per_second: int, going_on: Callable[[], bool]) -> list[Read]:
        lines = f"HTTP/1.1\r\nhost: localhost\r\nauthorization: {AUTHORIZATION}\r\n\r\n"
        requests = itertools.cycle([f"GET {path} {lines}".encode() for path in paths])
        start = time.monotonic()
        reads: list[asyncio.Task[Read]] = []
        while going_on():
            due = start + len(reads) / per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            reads.append(asyncio.create_task(self._read(due, next(requests))))
        done = await asyncio.gather(*reads)
        for _, writer in self._idle:
            writer.close()
        return done

    async def _read(self, due: float, request: bytes) -> Read:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._free:
                status = await self._exchange(request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            status = 0
        return Read(due, (time.monotonic() - due) * 1000, status)

    async def _exchange(self, request: bytes) -> int:
        connection = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        reader, writer = connection
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _CONTENT_LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
        except BaseException:
            writer.close()
            raise
        self._idle.append(connection)
        return int(head[9:12])
