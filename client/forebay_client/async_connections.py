"""The connections of an asynchronous client: a set of them for each event loop.

``forebay_client.connections`` has the same for a blocking client.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import httpx

from forebay.errors import ClientUnusable
from forebay_client import fork_safety
from forebay_client.client_connections import CLOSED, NO_LOOP, OTHER_LOOP, ClientConnections
from forebay_client.exchange import Open, Opened, Send
from forebay_client.httpx_clients import built, late, with_body

T = TypeVar("T")

AsyncTurn = contextlib.nullcontext
"""Tasks that wait for the same changes take no turns."""


class AsyncConnections(ClientConnections):
    """Sends requests and reads streams, over connections of the running event loop."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    async def of_loop(self) -> LoopConnections:
        """Those of the running event loop; raises ``ClientUnusable``."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ClientUnusable(NO_LOOP) from None
        with self._lock:
            if self._unusable is not None:
                raise ClientUnusable(self._unusable)
            connections = self._loops.get(loop)
            if connections is None:
                if self._loops and self._own_transport is not None:
                    raise ClientUnusable(OTHER_LOOP)
                self._loops = {loop: one for loop, one in self._loops.items() if not loop.is_closed()}
                connections = self._loops[loop] = LoopConnections(loop, self._options(httpx.AsyncHTTPTransport))
                # Never suspends, or the lock would have to be another.
                await connections.end_with_loop()
        return connections

    def on_fork(self) -> None:
        """Leave the parent its connections, and have others made when they are needed.

        They are not closed: that would remove them from the selector, which parent and child share.
        """
        super().on_fork()
        fork_safety.leave_to_parent(self._loops)
        self._loops = {}

    async def send(self, step: Send) -> httpx.Response | Opened:
        """The response to a request, or its stream; raises ``httpx.RequestError``, or ``ClientUnusable``."""
        connections = await self.of_loop()
        response = await connections.to_its_end(_sent(connections.http, step))
        if isinstance(step, Open) and response.status_code == 200:
            return Opened(response, response.aiter_bytes(), connections)
        return response

    async def receive(self, opened: Opened) -> bytes:
        """The next piece of a stream, nothing at its end; raises ``httpx.RequestError``."""
        return await anext(opened.pieces, b"") if _is_here(opened) else b""

    async def end(self, opened: Opened) -> None:
        connections = opened.connections
        assert isinstance(connections, LoopConnections)
        if _is_here(opened):
            await connections.to_its_end(opened.response.aclose())
        elif not connections.loop.is_closed():
            asyncio.run_coroutine_threadsafe(opened.response.aclose(), connections.loop)

    def interrupt(self, opened: Opened) -> None:
        """Does nothing: to close a stream ends the wait of other tasks."""

    async def aclose(self) -> None:
        with self._lock:
            loops, self._loops = self._loops, {}
            self._unusable = CLOSED
        here = loops.pop(asyncio.get_running_loop(), None)
        for loop, connections in loops.items():
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(connections.aclose(), loop)
        if here is not None:
            await here.aclose()


class LoopConnections:
    """The connections of one event loop, which end with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: dict[str, Any]) -> None:
        self.loop = loop
        self.http = httpx.AsyncClient(**options)
        self._left: set[asyncio.Task[None]] = set()
        """What goes on after its caller was cancelled."""
        self._end = self._ended()

    async def end_with_loop(self) -> None:
        """Have the connections closed before the loop is: ``asyncio.run`` ends asynchronous generators."""
        await anext(self._end)

    async def _ended(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.http.aclose()

    async def to_its_end(self, doing: Coroutine[Any, Any, T]) -> T:
        """What ``httpx`` does, which goes on without a caller who is cancelled, until its own time-out.

        Cancelled in the middle of taking or giving back a connection, ``httpcore`` would keep it for ever.
        """
        task = asyncio.ensure_future(doing)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            left = asyncio.ensure_future(_abandon(task))
            self._left.add(left)
            left.add_done_callback(self._left.discard)
            raise

    async def aclose(self) -> None:
        await self._end.aclose()
        for left in self._left:
            left.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)


def _is_here(opened: Opened) -> bool:
    """Whether a stream belongs to the running event loop."""
    connections = opened.connections
    return isinstance(connections, LoopConnections) and connections.loop is asyncio.get_running_loop()


async def _sent(http: httpx.AsyncClient, step: Send) -> httpx.Response:
    response = await http.send(built(http, step), stream=True)
    if isinstance(step, Open) and response.status_code == 200:
        return response
    return await _received(response, step.timeout.read or math.inf)


async def _received(response: httpx.Response, within_s: float) -> httpx.Response:
    """The response with its body; raises ``httpx.ReadTimeout``."""
    pieces, until_s = [], time.monotonic() + within_s
    async with contextlib.aclosing(response):
        async for piece in response.aiter_bytes():
            if time.monotonic() > until_s:
                raise late(response)
            pieces.append(piece)
    return with_body(response, b"".join(pieces))


def _forget(task: asyncio.Task[Any]) -> None:
    """Have no fault logged of which nobody is to be told, though the client is closed before it is seen."""
    if not task.cancelled():
        task.exception()


async def _abandon(task: asyncio.Task[Any]) -> None:
    """Close the response that comes, if any; nobody is there to be told what else happens."""
    with contextlib.suppress(Exception):
        response = await task
        if isinstance(response, httpx.Response):
            await response.aclose()
