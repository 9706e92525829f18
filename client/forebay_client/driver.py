"""What carries out the plans of a blocking client, generated from ``forebay_client.async_driver`` by
``python -m client.generate``."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, TypeVar

import httpx

from forebay_client import fork_safety
from forebay_client.connections import Connections
from forebay_client.exchange import Close, Discard, Pause, Plan, Receive, Reply, Step
from forebay_client.httpx_clients import shut_down

T = TypeVar("T")


class Driver:
    """Takes the steps of plans, one after the other."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._lock = threading.Lock()
        self._following: weakref.WeakSet[Any] = weakref.WeakSet()
        """Changes, which the client's closing ends."""
        fork_safety.renew_on_fork(self)

    def on_fork(self) -> None:
        """A thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def run(self, plan: Plan[T]) -> T:
        """The plan's result; raises what the plan raises."""
        reply: Reply = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                reply = self._take(step)
            except httpx.RequestError as error:
                reply = error

    def _take(self, step: Step) -> Reply:
        match step:
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case Receive(opened):
                return self.connections.receive(opened)
            case Close(opened):
                self.connections.end(opened)
                return None
            case Discard(response):
                shut_down(response)
                return None
        return self.connections.send(step)

    def follow(self, changes: Any) -> None:
        """Have the client's closing end what follows keys."""
        with self._lock:
            self._following.add(changes)

    def close(self) -> None:
        """End what follows keys, then close the connections."""
        with self._lock:
            following = list(self._following)
        for changes in following:
            changes.close()
        self.connections.close()
