"""Readers that follow a key: by plain HTTP, and by forebay's client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any

import httpx

from forebay.client import AsyncClient
from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.position import decode_position
from forebay.wire.answers import ReplicaInfo
from forebay.wire.server_sent_events import EventReader
from tests.chaos import answers
from tests.chaos.history import BOTH_ROUTERS, Item, Portion, Read
from tests.chaos.reading import Reading


class StreamReader:
    """Follows a key by plain HTTP for a while, then another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = 0

    async def __call__(self, reading: Reading) -> None:
        """One stream, until it breaks or its time is over."""
        self._begun += 1
        (tier, node), key = reading.node(), reading.key("counts")
        options: dict[str, Any] = {"lag_interval_ms": 1_000}
        if reading.chooser.random() < 0.5:
            options["max_time_lag_ms"] = 2_000
        read = reading.started("streams", "change", "counts", tier, node.address, options)
        read = replace(read, session=f"{self._name}-{self._begun}")
        try:
            async with asyncio.timeout(reading.chooser.uniform(5, 40)):
                await self._follow(reading, read, key, options)
        except (httpx.HTTPError, TimeoutError) as error:
            reading.note(replace(read, received_ms=boot_ms(), problem=type(error).__name__))

    async def _follow(self, reading: Reading, read: Read, key: str, options: dict[str, Any]) -> None:
        url = f"http://{read.target}/v1/stores/counts/keys/{key}/changes"
        events = EventReader()
        async with reading.http.stream("GET", url, params=options, timeout=httpx.Timeout(5, read=None)) as answer:
            if answer.status_code != 200:
                document = json.loads(await answer.aread())
                name = answers.problem_name(document)
                reading.note(replace(read, received_ms=boot_ms(), status=answer.status_code, problem=name))
                return
            async for piece in answer.aiter_raw():
                for event in events.feed(piece):
                    timed = replace(read, received_ms=boot_ms())
                    reading.note(_of_event(timed, event.name, {"key": key, **json.loads(event.data)}))
        reading.note(replace(read, received_ms=boot_ms(), problem="ended"))


def _of_event(read: Read, name: str, document: dict[str, Any]) -> Read:
    if name == "lag":
        return replace(read, status=200, portions=answers.portions_of(document))
    if name == "absent":
        document = {"type": "urn:forebay:problem:unknown-key", **document}
    return answers.of_key(read, document.get("status", 200), document)


class ClientStreamReader:
    """Follows a key by forebay's client, which reconnects by itself, for a while, then another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = 0

    async def __call__(self, reading: Reading) -> None:
        """One key."""
        self._begun += 1
        routers = [f"http://{node.address}" for node in reading.deployment.routers.values()]
        item: Item = (reading.key("counts"),)
        read = reading.started("client-streams", "change", "counts", "router", BOTH_ROUTERS, {})
        read = replace(read, session=f"{self._name}-{self._begun}")
        async with AsyncClient(routers) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(reading.chooser.uniform(10, 40)):
                    await self._follow(reading, client, read, item)
        reading.note(replace(read, received_ms=boot_ms(), problem="ended"))

    async def _follow(self, reading: Reading, client: AsyncClient, read: Read, item: Item) -> None:
        try:
            async for change in client.changes("counts", item[0], lag_interval_ms=1_000):
                timed = replace(read, received_ms=boot_ms())
                if isinstance(change, ReplicaInfo):
                    offset = decode_position(change.position).offsets[change.partition]
                    portion = Portion(offset, change.role, change.host, *change.lag)
                    reading.note(replace(timed, status=200, portions={change.partition: portion}))
                else:
                    reading.note(answers.of_client(timed, item, change))
        except Problem as problem:
            reading.note(answers.of_client(replace(read, received_ms=boot_ms()), item, problem))
