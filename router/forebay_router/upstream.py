"""Connections to workers: a few per worker, requests pipelined, answers matched in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from forebay.metadata import HostInfo

_CONNECTIONS_PER_WORKER = 4
_CONNECT_TIMEOUT_S = 1.0
_MOST_HEAD_BYTES = 64 << 10


class UpstreamAnswer(NamedTuple):
    """A worker's answer: its header lines as they came, without content-length, and its body."""

    status: int
    head: bytes
    body: bytes


class UpstreamClosed(ConnectionError):
    """The connection ended before the answer was whole."""


class Connection(asyncio.Protocol):
    """One connection to a worker. Requests are answered in the order in which they were sent."""

    def __init__(self) -> None:
        self._pending: deque[asyncio.Future[UpstreamAnswer]] = deque()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.closed = False

    @property
    def load(self) -> int:
        """How many answers are outstanding."""
        return len(self._pending)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> asyncio.Future[UpstreamAnswer]:
        """Send a request; the future fails with ``UpstreamClosed`` if the connection ends first.

        A cancelled request keeps its place: its answer is read and dropped.
        """
        future: asyncio.Future[UpstreamAnswer] = asyncio.get_running_loop().create_future()
        if self.closed or self._transport is None:
            future.set_exception(UpstreamClosed("the connection is closed"))
            return future
        self._pending.append(future)
        self._transport.write(request)
        return future

    def data_received(self, data: bytes) -> None:
        """Match answers to requests; anything that is not an answer to one closes the connection."""
        buffer = self._received + data if self._received else data
        at = 0
        while at < len(buffer):
            try:
                parsed = _parse(buffer, at)
            except ValueError:
                self.close()
                return
            if parsed is None:
                break
            answer, at, keep = parsed
            if not self._pending:
                self.close()
                return
            future = self._pending.popleft()
            if not future.done():
                future.set_result(answer)
            if not keep:
                self.close()
                return
        self._received = buffer[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whatever is outstanding."""
        self.closed = True
        while self._pending:
            future = self._pending.popleft()
            if not future.done():
                future.set_exception(UpstreamClosed(str(exc or "the worker closed the connection")))

    def close(self) -> None:
        """Close; what is outstanding fails with ``UpstreamClosed``."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


def _parse(buffer: bytes, at: int) -> tuple[UpstreamAnswer, int, bool] | None:
    """The answer that begins at ``at``, where it ends, and whether the connection stays; None if cut short.

    Raises ``ValueError`` for what is not a final HTTP/1.1 answer with a content-length.
    """
    end = buffer.find(b"\r\n\r\n", at)
    if end < 0:
        if len(buffer) - at > _MOST_HEAD_BYTES:
            raise ValueError("head too long")
        return None
    line, _, rest = buffer[at:end].partition(b"\r\n")
    if not line.startswith(b"HTTP/1.1 ") or line[9:10] == b"1":
        raise ValueError("not a final answer")
    status = int(line[9:12])
    length = -1
    keep = True
    kept = []
    for header in rest.split(b"\r\n"):
        name, _, value = header.partition(b": ")
        lowered = name.lower()
        if lowered == b"content-length":
            length = int(value)
        elif lowered == b"transfer-encoding":
            raise ValueError("chunked")
        elif lowered == b"connection":
            keep = value.lower() != b"close"
        else:
            kept.append(header)
    if length < 0:
        raise ValueError("no content-length")
    body_at = end + 4
    if len(buffer) < body_at + length:
        return None
    head = b"".join(header + b"\r\n" for header in kept)
    return UpstreamAnswer(status, head, buffer[body_at : body_at + length]), body_at + length, keep


@dataclass
class Upstreams:
    """The connections to all workers, opened when first needed and again after they were lost."""

    _pools: dict[HostInfo, list[Connection]] = field(default_factory=dict)
    _opening: dict[HostInfo, asyncio.Task[Connection]] = field(default_factory=dict)

    async def request(self, host: HostInfo, request: bytes, *, alone: bool = False) -> UpstreamAnswer:
        """Send a request to a worker.

        ``alone`` gives it a connection of its own, for answers that are slow or large. Raises ``OSError`` if
        the worker cannot be reached or goes away.
        """
        if alone:
            connection = await _connect(host)
            try:
                return await connection.send(request)
            finally:
                connection.close()
        connection = await self._connection(host)
        return await connection.send(request)

    def load(self, host: HostInfo) -> int:
        """How many answers of a worker are outstanding."""
        return sum(connection.load for connection in self._pools.get(host, ()))

    def close(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            for connection in pool:
                connection.close()
        self._pools.clear()

    async def _connection(self, host: HostInfo) -> Connection:
        pool = self._pools.setdefault(host, [])
        pool[:] = [connection for connection in pool if not connection.closed]
        best = min(pool, key=lambda connection: connection.load, default=None)
        if best is not None and (best.load == 0 or len(pool) >= _CONNECTIONS_PER_WORKER):
            return best
        opening = self._opening.get(host)
        if opening is None:
            opening = asyncio.ensure_future(_connect(host))
            self._opening[host] = opening
            opening.add_done_callback(lambda task: self._opened(host, task))
        if best is not None:
            return best
        return await asyncio.shield(opening)

    def _opened(self, host: HostInfo, task: asyncio.Task[Connection]) -> None:
        del self._opening[host]
        if not task.cancelled() and task.exception() is None:
            self._pools.setdefault(host, []).append(task.result())


async def _connect(host: HostInfo) -> Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        _, connection = await loop.create_connection(Connection, host.host, host.port)
    return connection
