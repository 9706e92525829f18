"""Readers of every kind: each asks, notes what it sent and received, and pauses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from forebay.client import Answer, AsyncClient
from forebay.clock import boot_ms, epoch_ms
from forebay.errors import Problem
from forebay.position import decode_position
from forebay.rest.answers import Provenance
from forebay.rest.events import EventReader
from tests.chaos import answers
from tests.chaos.deployment import Deployment, Node
from tests.chaos.history import Item, Portion, Read, Scope
from tests.chaos.writer import KEYS, Writer

PATIENCE_S = 5.0
"""Beyond any time-out that a request names."""
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
    note: Callable[[Read], None]
    chooser: random.Random
    http: httpx.AsyncClient

    def key(self, store: str) -> str:
        """A key of a store, now and then one that nobody writes."""
        return f"{store[0]}{self.chooser.randrange(KEYS + 2):03d}"

    def node(self) -> tuple[str, Node]:
        """A router, or now and then a worker, with its tier."""
        if self.chooser.random() < 0.75:
            return "router", self.chooser.choice(list(self.deployment.routers.values()))
        workers = list(self.deployment.workers.values())
        return "worker", self.chooser.choice([node for node in workers if node.meant_to_run] or workers)

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


Reader = Callable[[Reading], Any]


async def read_key(reading: Reading) -> None:
    """A key, within some bounds, by plain HTTP."""
    store = reading.chooser.choice(("counts", "counts", "prices"))
    key, (tier, node), options = reading.key(store), reading.node(), reading.options()
    as_of_ms = None
    if store == "prices" and reading.chooser.random() < 0.5:
        as_of_ms = options["as_of"] = int(epoch_ms()) - reading.chooser.randrange(10_000)
    partition = reading.deployment.topology.stores[store].partition_of(key.encode())
    read = reading.started("keys", "key", store, tier, node.address, options)
    read = replace(read, as_of_ms=as_of_ms, partition=partition)
    read, document = await reading.ask(read, "GET", f"/keys/{key}", params=options)
    reading.note(read if document is None else answers.of_key(read, read.status, document))


async def read_own_write(reading: Reading) -> None:
    """A key at the newest position that the writer has reached, now and then with time to wait."""
    store = reading.chooser.choice(("counts", "prices"))
    key, (tier, node) = reading.key(store), reading.node()
    partition = reading.deployment.topology.stores[store].partition_of(key.encode())
    position = reading.writer.position(store, partition)
    options = {"min_position": position, "wait_ms": reading.chooser.choice((0, 500)), "timeout_ms": 1_500}
    read = reading.started("own-writes", "key", store, tier, node.address, options)
    read, document = await reading.ask(read, "GET", f"/keys/{key}", params=options)
    reading.note(read if document is None else answers.of_key(read, read.status, document))


async def read_batch(reading: Reading) -> None:
    """Many keys at once; each counts as a read."""
    store = reading.chooser.choice(("counts", "prices"))
    keys = sorted({reading.key(store) for _ in range(8)})
    (tier, node), options = reading.node(), reading.options()
    read = reading.started("batches", "batch", store, tier, node.address, options)
    read, document = await reading.ask(read, "POST", "/batch-get", params=options, json={"keys": keys})
    if document is None or read.status != 200:
        reading.note(read if document is None else answers.of_key(read, read.status, document))
        return
    for key, result in zip(keys, document["results"], strict=True):
        problem = result.get("problem")
        if problem is None:
            reading.note(answers.of_key(read, 200, result))
        else:
            reading.note(answers.of_key(read, problem["status"], {**problem, "key": key}))


async def list_entries(reading: Reading) -> None:
    """A range of keys, page by page."""
    keys = sorted(reading.key("counts") for _ in range(2))
    scope = Scope(low=keys[0], high=keys[1], reverse=reading.chooser.random() < 0.3)
    if reading.chooser.random() < 0.3:
        scope = replace(scope, low=None, high=None)
    await _list(reading, "counts", "/entries", "entries", scope)


async def list_windows(reading: Reading) -> None:
    """The windows of a key."""
    scope = Scope(key=reading.key("hours"), low=2_000 if reading.chooser.random() < 0.5 else None)
    await _list(reading, "hours", f"/keys/{scope.key}/windows", "windows", scope)


async def list_all_windows(reading: Reading) -> None:
    """The windows of all keys."""
    await _list(reading, "hours", "/windows", "windows", Scope())


async def list_versions(reading: Reading) -> None:
    """A key's recent versions."""
    scope = Scope(key=reading.key("prices"), low=int(epoch_ms()) - 20_000)
    await _list(reading, "prices", f"/keys/{scope.key}/versions", "versions", scope)


async def _list(reading: Reading, store: str, path: str, member: str, scope: Scope) -> None:
    (tier, node), options = reading.node(), reading.options()
    names = {"from": scope.low, "to": scope.high, "limit": reading.chooser.choice((5, 1_000))}
    options |= {name: value for name, value in names.items() if value is not None}
    if scope.reverse:
        options["reverse"] = "true"
    while True:
        read = reading.started("lists", member, store, tier, node.address, options)
        # A worker's list is of its own partitions.
        read, document = await reading.ask(replace(read, scope=scope), "GET", path, params=options)
        if document is None:
            reading.note(read)
            return
        read = answers.of_list(read, read.status, document, member)
        reading.note(read)
        if read.status != 200 or document["next"] is None or len(read.items) > 5:
            return
        options["cursor"] = document["next"]
        if read.items:
            return


class SessionReader:
    """Keys through sessions of forebay's client, each over both routers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = 0

    async def __call__(self, reading: Reading) -> None:
        """Some reads of one session."""
        self._begun += 1
        session_name = f"{self._name}-{self._begun}"
        routers = [f"http://{node.address}" for node in reading.deployment.routers.values()]
        reading.chooser.shuffle(routers)
        async with AsyncClient(routers) as client:
            session = client.session()
            for _ in range(40):
                read = reading.started("sessions", "key", "counts", "router", "both", {})
                item = (reading.key("counts"),)
                try:
                    found: Answer | Problem = await session.get("counts", item[0], prefer="any", wait_ms=300)
                except Problem as problem:
                    found = problem
                read = replace(read, received_ms=boot_ms(), session=session_name)
                reading.note(answers.of_client(read, item, found))
                await asyncio.sleep(0.1)


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
        read = reading.started("client-streams", "change", "counts", "router", "both", {})
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
                if isinstance(change, Provenance):
                    offset = decode_position(change.position).offsets[change.partition]
                    portion = Portion(offset, change.role, change.host, *change.lag)
                    reading.note(replace(timed, status=200, portions={change.partition: portion}))
                else:
                    reading.note(answers.of_client(timed, item, change))
        except Problem as problem:
            reading.note(answers.of_client(replace(read, received_ms=boot_ms()), item, problem))


def readers() -> Sequence[tuple[Reader, float]]:
    """Every reader, with its pause in seconds after each read."""
    some: list[tuple[Reader, float]] = [(read_key, 0.03)] * 3
    some += [(read_own_write, 0.1), (read_batch, 0.15), (list_entries, 0.1), (list_windows, 0.15)]
    some += [(list_all_windows, 0.5), (list_versions, 0.15)]
    some += [(SessionReader(f"session-{number}"), 0.1) for number in range(2)]
    some += [(StreamReader(f"stream-{number}"), 0.2) for number in range(4)]
    some += [(ClientStreamReader(f"client-stream-{number}"), 0.2) for number in range(2)]
    return some


async def read_until(stopped: asyncio.Event, reading: Reading, reader: Reader, pause_s: float) -> None:
    """Have a reader read again and again."""
    while not stopped.is_set():
        await reader(reading)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), pause_s)
