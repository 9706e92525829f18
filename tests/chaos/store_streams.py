"""Readers that follow a store: by plain HTTP, resuming at one replica after the other, and by forebay's client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import msgspec

from forebay.client import Absent, AsyncClient, Reset, StoreChange, StoreLag, Values
from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.position import decode_opaque, decode_position
from forebay.wire.server_sent_events import Event, EventReader
from forebay_web.store_changes.cursors import decode_id
from tests.chaos import answers
from tests.chaos.history import BOTH_ROUTERS, Finding, Followed, Item, Portion, Reached, Read
from tests.chaos.reading import Reading

MAX_CONNECTIONS = 6
"""Of one stream; then another begins."""
AWAY = 0.3
"""The share of connections that begin after a while, in which replicas that start again forget what changed."""
LONGEST_AWAY_S = 10.0
LAG_INTERVAL_MS = 1_000
END_WITHIN_S = 20
"""A stream that is resumed after the last record has all within this time."""


def choose_followed(reading: Reading, stream: str, store: str) -> Followed:
    """Some keys of a store, those with a prefix, or all."""
    spec, chooser = reading.deployment.topology.stores[store], reading.chooser
    everything = Followed(stream, "opened", partitions=tuple(range(spec.partitions)))
    # Those who follow the same share what is read for them.
    match chooser.choice(("all", "all", "prefix", "keys")):
        case "prefix":
            return replace(everything, prefix=f"{store[0]}0{chooser.randrange(6)}")
        case "keys":
            keys = tuple(sorted({reading.key(store) for _ in range(20)}))
            partitions = sorted({spec.partition_of(key.encode()) for key in keys})
            return replace(everything, keys=keys, partitions=tuple(partitions))
    return everything


class StoreStreamReader:
    """Follows a store by plain HTTP: each connection resumes where the one before it ended, wherever that was."""

    def __init__(self, name: str, store: str) -> None:
        self._name, self._store = name, store
        self._begun = self._connections = 0
        self._last_id = ""
        self._followed: Followed | None = None

    async def __call__(self, reading: Reading) -> None:
        """One connection, until it breaks or its time is over."""
        if self._followed is None or self._connections == MAX_CONNECTIONS:
            self._begun, self._connections, self._last_id = self._begun + 1, 0, ""
            self._followed = choose_followed(reading, f"{self._name}-{self._begun}", self._store)
        self._connections += 1
        if reading.chooser.random() < AWAY:
            await asyncio.sleep(reading.chooser.uniform(1, LONGEST_AWAY_S))
        tier, node = reading.node()
        bounds = {"max_time_lag_ms": 2_000} if reading.chooser.random() < 0.3 else {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(reading.chooser.uniform(3, 15)):
                events = self._events(reading, self._followed, tier, node.address, bounds)
                async with contextlib.aclosing(events):
                    async for _ in events:
                        pass

    async def finish(self, reading: Reading, written_ms: float) -> None:
        """Resume once more, after the last record was written, and follow until all of it was received."""
        if self._followed is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_WITHIN_S):
                while not await self._reaches(reading, self._followed, written_ms):
                    pass
                return
        detail = f"{self._followed.stream} of {self._store} has not all of the log after {END_WITHIN_S} s"
        reading.note(Finding("not-converged", detail, boot_ms()))

    async def _reaches(self, reading: Reading, followed: Followed, written_ms: float) -> bool:
        """Whether a new connection's first lag says that everything was sent that was written by a time."""
        router = reading.chooser.choice(list(reading.deployment.routers.values()))
        events = self._events(reading, followed, "router", router.address, {})
        async with contextlib.aclosing(events):
            async for read in events:
                if read.followed is not None and read.followed.lag is not None:
                    time_lag_ms = read.followed.lag[1]
                    return time_lag_ms is not None and read.sent_ms - time_lag_ms >= written_ms
        await asyncio.sleep(0.2)
        return False

    async def _events(
        self, reading: Reading, followed: Followed, tier: str, target: str, bounds: dict[str, int]
    ) -> AsyncGenerator[Read]:
        """The events of a connection, which are noted, and then its end."""
        options = {"lag_interval_ms": LAG_INTERVAL_MS, **bounds}
        read = reading.started("store-streams", "store-change", self._store, tier, target, options)
        problem = "ended"
        try:
            async with self._connected(reading, read, followed, options) as answer:
                if answer.status_code != 200:
                    name = answers.problem_name(json.loads(await answer.aread()))
                    reading.note(replace(read, received_ms=boot_ms(), status=answer.status_code, problem=name))
                    return
                opened = replace(followed, reached=reached_of(self._last_id, followed))
                reading.note(replace(read, received_ms=boot_ms(), status=200, followed=opened))
                events = EventReader()
                async for piece in answer.aiter_raw():
                    for event in events.feed(piece):
                        received = of_event(replace(read, received_ms=boot_ms()), followed, event)
                        self._last_id = self._last_id if event.id is None else event.id
                        reading.note(received)
                        yield received
        except httpx.HTTPError as error:
            problem = type(error).__name__
        finally:
            ended = replace(followed, event="ended")
            reading.note(replace(read, received_ms=boot_ms(), problem=problem, followed=ended))

    def _connected(
        self, reading: Reading, read: Read, followed: Followed, options: dict[str, int]
    ) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        parameters: dict[str, Any] = dict(options)
        if followed.keys is not None:
            parameters["keys"] = json.dumps(followed.keys)
        elif followed.prefix:
            parameters["prefix"] = followed.prefix
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        url = f"http://{read.target}/v1/stores/{read.store}/changes"
        timeout = httpx.Timeout(5, read=None)
        return reading.http.stream("GET", url, params=parameters, headers=headers, timeout=timeout)


def reached_of(identity: str | None, followed: Followed) -> dict[int, Reached] | None:
    """What an event's id says of each partition; None without an id."""
    if not identity:
        return None
    selection = decode_opaque(identity, msgspec.msgpack.decode)[1]
    cursors = decode_id(identity, selection, followed.partitions)
    return {partition: Reached(cursor.since, cursor.upper) for partition, cursor in cursors.items()}


def of_event(read: Read, followed: Followed, event: Event) -> Read:
    """The read of an event of a store's stream."""
    document = json.loads(event.data)
    said = replace(followed, event=event.name, reached=reached_of(event.id, followed))
    match event.name:
        case "values" | "absent":
            listed = next(document[name] for name in ("entries", "windows") if name in document)
            items = tuple((_item(entry), entry.get("value")) for entry in listed)
            return replace(read, status=200, items=items, portions=answers.portions_of(document), followed=said)
        case "problem":
            # One that ends the stream names none.
            said = replace(said, partitions=tuple(document.get("partitions", ())))
            name = answers.problem_name(document)
            return replace(read, status=document["status"], problem=name, followed=said)
        case "reset":
            said = replace(said, partitions=tuple(document["partitions"]))
        case "lag":
            lag = document["lag"]
            said = replace(said, lag=(lag["record_lag"], lag["time_lag_ms"], lag["age_ms"]))
    return replace(read, status=200, followed=said)


def _item(entry: dict[str, Any]) -> Item:
    return (entry["key"], entry["start_ms"]) if "start_ms" in entry else (entry["key"],)


class ClientStoreStreamReader:
    """Follows keys by forebay's client, which reconnects by itself, for a while, then others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = 0

    async def __call__(self, reading: Reading) -> None:
        """One stream."""
        self._begun += 1
        followed = choose_followed(reading, f"{self._name}-{self._begun}", "counts")
        read = reading.started("client-store-streams", "store-change", "counts", "router", BOTH_ROUTERS, {})
        routers = [f"http://{node.address}" for node in reading.deployment.routers.values()]
        reading.note(replace(read, received_ms=boot_ms(), status=200, followed=followed))
        async with AsyncClient(routers) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(reading.chooser.uniform(10, 40)):
                    await self._follow(reading, client, read, followed)
        ended = replace(followed, event="ended")
        reading.note(replace(read, received_ms=boot_ms(), problem="ended", followed=ended))

    async def _follow(self, reading: Reading, client: AsyncClient, read: Read, followed: Followed) -> None:
        chosen: dict[str, Any] = {"prefix": followed.prefix or None}
        if followed.keys is not None:
            chosen = {"keys": list(followed.keys)}
        try:
            async for change in client.changes("counts", lag_interval_ms=LAG_INTERVAL_MS, **chosen):
                reading.note(of_change(replace(read, received_ms=boot_ms()), followed, change))
        except Problem as problem:
            reading.note(of_change(replace(read, received_ms=boot_ms()), followed, problem))


def of_change(read: Read, followed: Followed, change: StoreChange) -> Read:
    """The read of what forebay's client yields."""
    match change:
        case Values() | Absent():
            said = replace(followed, event="values" if isinstance(change, Values) else "absent")
            source = change.source
            offset = decode_position(source.position).offsets[source.partition]
            portion = Portion(offset, source.role, source.host, *source.lag)
            items = tuple(((item.key,), item.value) for item in change.items)
            return replace(read, status=200, items=items, portions={source.partition: portion}, followed=said)
        case Reset():
            return replace(
                read, status=200, followed=replace(followed, event="reset", partitions=change.partitions)
            )
        case StoreLag(lag=lag):
            return replace(
                read,
                status=200,
                followed=replace(followed, event="lag", lag=(lag.record_lag, lag.time_lag_ms, lag.age_ms)),
            )
        case Problem():
            said = replace(followed, event="problem", partitions=())
            return replace(read, status=change.status, problem=change.name, followed=said)
