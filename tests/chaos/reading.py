"""What all readers share: whom they ask, within which bounds, and what they note."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from forebay.clock import boot_ms
from forebay.position import decode_position
from tests.chaos.deployment import Deployment
from tests.chaos.history import Finding, Read
from tests.chaos.node import Endpoint
from tests.chaos.writer import KEYS, LARGE, LARGE_KEYS, Writer, key_of

BOUNDS: tuple[Mapping[str, int], ...] = (
    *({},) * 5,
    {"max_time_lag_ms": 5_000},
    {"max_time_lag_ms": 300},
    {"max_record_lag": 0},
    {"max_record_lag": 20},
    {"max_record_lag": 1_000},
    {"max_age_ms": 500},
    {"max_age_ms": 5_000},
    {"max_record_lag": 50, "max_time_lag_ms": 1_000, "max_age_ms": 2_000},
)


@dataclass
class Reading:
    """What all readers share."""

    deployment: Deployment
    writer: Writer
    note: Callable[[Read | Finding], None]
    chooser: random.Random
    http: httpx.AsyncClient

    def key(self, store: str) -> str:
        """A key of a store, now and then one that nobody writes."""
        return key_of(store, self.chooser.randrange(LARGE_KEYS if store == LARGE else KEYS + 2))

    def newest_position(self, store: str, key: str) -> str:
        """The token of the newest record of a key's partition."""
        partition = self.deployment.topology.stores[store].partition_of(key.encode())
        return self.writer.position(store, partition)

    def node(self) -> tuple[str, Endpoint]:
        """A router, or now and then a worker's process, with its tier."""
        if self.chooser.random() < 0.75:
            return "router", self.chooser.choice(list(self.deployment.routers.values())).endpoints[0]
        workers = list(self.deployment.workers.values())
        worker = self.chooser.choice([node for node in workers if node.meant_to_run] or workers)
        return "worker", self.chooser.choice(worker.endpoints)

    def options(self) -> dict[str, Any]:
        """Bounds and other parameters of a read."""
        chosen: dict[str, Any] = dict(self.chooser.choice(BOUNDS))
        if self.chooser.random() < 0.1:
            chosen["require_active"] = "true"
        if self.chooser.random() < 0.4:
            chosen["prefer"] = "any"
        if self.chooser.random() < 0.15:
            chosen["wait_ms"] = 300
        return chosen

    def started(
        self, reader: str, kind: str, store: str, tier: str, target: str, options: Mapping[str, Any]
    ) -> Read:
        """A read that is about to be sent."""
        bounds = {name: bound for name, bound in options.items() if name.startswith("max_")}
        read = Read(reader, kind, tier, target, store, boot_ms(), 0.0, 0, bounds=bounds)
        if "min_position" in options:
            read = replace(read, min_position=dict(decode_position(options["min_position"]).offsets))
        return replace(read, require_active="require_active" in options)

    async def ask(self, read: Read, method: str, path: str, **parts: Any) -> tuple[Read, Any]:
        """The read with its status and times, and the answer's document; None if there is no answer."""
        try:
            answer = await self.http.request(method, f"http://{read.target}/v1/stores/{read.store}{path}", **parts)
            document = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            return replace(read, received_ms=boot_ms(), problem=type(error).__name__), None
        return replace(read, received_ms=boot_ms(), status=answer.status_code), document
