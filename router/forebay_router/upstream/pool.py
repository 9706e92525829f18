"""Connections to workers: a few to each that reads share, and others for slow or large answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay.request_trace import context_of
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import HttpAnswer
from forebay_router.upstream.connection import (
    Admit,
    Connection,
    EventUpstream,
    InFlight,
    OnAnswer,
    UpstreamClosed,
    exchange,
)
from forebay_router.upstream.opener import Opener

_CONNECTIONS = 4
_MAX_IDLE = 64
_MAX_OPENING = 32
_Exchange = Callable[[Connection], Awaitable[HttpAnswer]]
"""A request and its answer, over a connection."""


class InFlightPermit:
    """A request's share of a worker's load while it is not on a shared connection."""

    def __init__(self, in_flight: InFlight) -> None:
        in_flight.count += 1
        self._in_flight: InFlight | None = in_flight

    def release(self) -> None:
        """Stop counting it; repeated calls have no effect."""
        if self._in_flight is not None:
            self._in_flight.count -= 1
            self._in_flight = None


class WorkerConnections:
    """The connections to one worker, opened when first needed and again after they were lost."""

    def __init__(self, host: HostInfo, opener: Opener) -> None:
        self.host = host
        self._opener = opener
        self._in_flight = InFlight()
        self._waiting = InFlight()
        """Those that wait at the worker for their bounds, which take it no time."""
        self._shared: list[Connection] = []
        self._opening: asyncio.Task[Connection] | None = None
        self._idle: list[Connection] = []
        """Unshared connections that were used and are free."""
        self._latest: Connection | None = None
        self._closed = False
        self.opening = asyncio.Semaphore(_MAX_OPENING)
        """The queue for opening event streams: a worker that is back gets them as fast as it accepts them."""

    @property
    def load(self) -> int:
        """How many requests are in flight, including those whose answer is no longer awaited."""
        return self._in_flight.count

    def permit(self, *, waits: bool = False) -> InFlightPermit:
        """Count a request that is about to be sent; one that ``waits`` for its bound takes no other's place."""
        return InFlightPermit(self._waiting if waits else self._in_flight)

    @property
    def waiting(self) -> int:
        """How many requests wait there for their bounds."""
        return self._waiting.count

    def send(self, request: bytes, on_answer: OnAnswer, max_load: int) -> bool:
        """Send a request over a shared connection: at once if the worker is idle.

        Other requests of the same event-loop turn go to the worker in groups, each over the least loaded
        connection. False, and nothing is sent, while some connections are missing, or ``max_load`` requests are
        in flight.
        """
        load = self._in_flight.count
        if load >= max_load:
            return False
        best = self._latest
        if best is None or not best.gathering or best.closed:
            best = self._latest = self._min_loaded()
            if best is None:
                return False
        best.send(request, on_answer, at_once=load == 0)
        return True

    def _min_loaded(self) -> Connection | None:
        """None while some connections are missing."""
        if len(self._shared) < _CONNECTIONS:
            return None
        best = self._shared[0]
        for connection in self._shared:
            if connection.closed:
                return None
            if connection.load < best.load:
                best = connection
        return best

    async def request(
        self,
        request: bytes,
        *,
        dedicated_connection: bool = False,
        permit: InFlightPermit | None = None,
        named: Callable[[HttpAnswer], bool] | None = None,
        admit: Admit | None = None,
        parts: list[bytes] | None = None,
    ) -> HttpAnswer:
        """Send a request, using the ``permit`` made for it, if any.

        ``dedicated_connection`` gives it a connection of its own, for answers that are slow or large; ``parts``
        then gets the body of one that does not arrive whole. Raises ``OSError`` if the worker cannot be reached
        or goes away, or an answer is not as ``named`` asks, and the ``Problem`` of ``admit``.
        """
        permit = permit or self.permit()
        try:
            if not dedicated_connection:
                connection = await self.connection()
                permit.release()
                try:
                    return await exchange(connection, request, named)
                except UpstreamClosed:
                    # A worker that drains closes after an answer, and loses later requests. Only a new connection
                    # shows whether this one is alive.
                    permit = self.permit()
            return await self._dedicated(lambda connection: exchange(connection, request, named, admit, parts))
        finally:
            permit.release()

    async def _dedicated(self, over: _Exchange) -> HttpAnswer:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                try:
                    return await self._lent(connection, over)
                except UpstreamClosed:
                    # It may have been closed for being idle; only a new one shows whether the worker is alive.
                    break
        # Its one request is counted by a permit.
        connection = await self._opener.connect(self.host, InFlight())
        return await self._lent(connection, over)

    async def _lent(self, connection: Connection, over: _Exchange) -> HttpAnswer:
        """Use a connection for one exchange, and keep it for the next if that was completed."""
        answer = None
        try:
            answer = await over(connection)
        finally:
            if answer is None or connection.closed or self._closed or len(self._idle) >= _MAX_IDLE:
                connection.close()
            else:
                self._idle.append(connection)
        return answer

    async def connection(self) -> Connection:
        """The least loaded shared connection; one more is opened meanwhile if some are missing."""
        self._shared[:] = [connection for connection in self._shared if not connection.closed]
        best = min(self._shared, key=lambda connection: connection.load, default=None)
        if best is not None and len(self._shared) >= _CONNECTIONS:
            return best
        if self._opening is None:
            # For everybody's requests, so in the context of none.
            connecting = self._opener.connect(self.host, self._in_flight)
            self._opening = asyncio.create_task(connecting, context=context_of(None))
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        return best if best is not None else await asyncio.shield(opening)

    async def open_events(self, request: bytes) -> EventUpstream:
        """A stream of events, over a connection of its own; raises ``OSError``."""
        return await self._opener.open_events(self.host, request)

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            if self._closed:
                task.result().close()
            else:
                self._shared.append(task.result())

    def close(self) -> None:
        """Close every connection; those still being opened or lent are closed afterwards."""
        self._closed = True
        for connection in [*self._shared, *self._idle]:
            connection.close()
        self._shared.clear()
        self._idle.clear()


class ConnectionPool(dict[HostInfo, WorkerConnections]):
    """All workers' connections, by host; created on first use."""

    def __init__(self, opener: Opener | None = None) -> None:
        super().__init__()
        self._opener = opener or Opener()

    def __missing__(self, host: HostInfo) -> WorkerConnections:
        return self.setdefault(host, WorkerConnections(host, self._opener))

    def load(self, host: HostInfo) -> int:
        """How many requests are in flight at a worker."""
        found = self.get(host)
        return 0 if found is None else found.load

    def forget(self, host: HostInfo) -> None:
        """Close the connections to a host that is no longer asked."""
        upstream = self.pop(host, None)
        if upstream is not None:
            upstream.close()

    def close(self) -> None:
        """Close every connection."""
        for upstream in self.values():
            upstream.close()
        self.clear()
