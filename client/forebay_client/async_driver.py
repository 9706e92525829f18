"""What carries out the plans of an asynchronous client, of which ``forebay_client.driver`` is generated."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, TypeVar

import httpx

from forebay_client import fork_safety
from forebay_client.async_connections import AsyncConnections
from forebay_client.exchange import Close, Discard, Pause, Plan, Receive, Reply, Step
from forebay_client.httpx_clients import shut_down

T = TypeVar("T")


class AsyncDriver:
    """Takes the steps of plans, one after the other."""

    def __init__(self, connections: AsyncConnections) -> None:
        self.connections = connections
        self._lock = threading.Lock()
        self._following: weakref.WeakSet[Any] = weakref.WeakSet()
        """Changes, which the client's closing ends."""
        fork_safety.renew_on_fork(self)

    def on_fork(self) -> None:
        """A thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    async def run(self, plan: Plan[T]) -> T:
        """The plan's result; raises what the plan raises."""
        reply: Reply = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                reply = await self._take(step)
            except httpx.RequestError as error:
                reply = error

    async def _take(self, step: Step) -> Reply:
        match step:
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case Receive(opened):
                return await self.connections.receive(opened)
            case Close(opened):
                await self.connections.end(opened)
                return None
            case Discard(response):
                shut_down(response)
                return None
        return await self.connections.send(step)

    def follow(self, changes: Any) -> None:
        """Have the client's closing end what follows keys."""
        with self._lock:
            self._following.add(changes)

    async def aclose(self) -> None:
        """End what follows keys, then close the connections."""
        with self._lock:
            following = list(self._following)
        for changes in following:
            await changes.aclose()
        await self.connections.aclose()
