"""Readers of every kind: each asks, notes what it sent and received, and pauses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from forebay.client import Answer, AsyncClient, ReadOptions
from forebay.clock import boot_ms, epoch_ms
from forebay.errors import Problem
from forebay.position import decode_position
from tests.chaos import answers
from tests.chaos.history import BOTH_ROUTERS, Scope
from tests.chaos.reading import Reading
from tests.chaos.store_streams import ClientStoreStreamReader, StoreStreamReader
from tests.chaos.streams import ClientStreamReader, StreamReader
from tests.chaos.topologies import GROWN
from tests.chaos.writer import LARGE_KEYS, key_of

MAX_PAGES = 4
"""Of a list."""
_REMEMBERED = 30
"""Positions of a partition: those of several seconds."""
OF_KEYS = ("counts", "prices", "seen", "large", "wide", GROWN)
"""Stores that are read by key."""
Reader = Callable[[Reading], Any]


async def read_key(reading: Reading) -> None:
    """A key, within some bounds, by plain HTTP."""
    store = reading.chooser.choice(("counts", "counts", *OF_KEYS))
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
    store = reading.chooser.choice(OF_KEYS)
    key, (tier, node) = reading.key(store), reading.node()
    position = reading.newest_position(store, key)
    options = {"min_position": position, "wait_ms": reading.chooser.choice((0, 500)), "timeout_ms": 1_500}
    read = reading.started("own-writes", "key", store, tier, node.address, options)
    read, document = await reading.ask(read, "GET", f"/keys/{key}", params=options)
    reading.note(read if document is None else answers.of_key(read, read.status, document))


async def read_batch(reading: Reading) -> None:
    """Many keys at once; each counts as a read."""
    store = reading.chooser.choice(OF_KEYS)
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
    store = reading.chooser.choice(("counts", "seen", "wide"))
    keys = sorted(reading.key(store) for _ in range(2))
    scope = Scope(low=keys[0], high=keys[1], reverse=reading.chooser.random() < 0.3)
    if reading.chooser.random() < 0.3:
        scope = replace(scope, low=None, high=None)
    await _list(reading, store, "/entries", "entries", scope)


async def list_windows(reading: Reading) -> None:
    """The windows of a key."""
    store = reading.chooser.choice(("hours", "moments"))
    low = 2_000 if store == "hours" else int(epoch_ms()) - 3_000
    scope = Scope(key=reading.key(store), low=low if reading.chooser.random() < 0.5 else None)
    await _list(reading, store, f"/keys/{scope.key}/windows", "windows", scope)


async def list_all_windows(reading: Reading) -> None:
    """The windows of all keys."""
    await _list(reading, reading.chooser.choice(("hours", "moments")), "/windows", "windows", Scope())


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
    for _ in range(MAX_PAGES):
        read = replace(reading.started("lists", member, store, tier, node.address, options), scope=scope)
        read, document = await reading.ask(read, "GET", path, params=options)
        if document is not None:
            read = answers.of_list(read, read.status, document, member)
        reading.note(read)
        if read.status != 200 or document["next"] is None:
            return
        options["cursor"] = document["next"]
        if read.items:
            scope = replace(scope, after=read.items[-1][0])


async def hang_up(reading: Reading) -> None:
    """A request of any kind whose client leaves, by a reset or in order, before, while or after it is answered.

    Nothing is judged of it but what it leaves behind.
    """
    chooser, (_, node) = reading.chooser, reading.node()
    store = chooser.choice(("counts", "counts", "large"))
    key = reading.key(store)
    position = reading.newest_position(store, key)
    waits = f"min_position={position}&wait_ms=5000&timeout_ms=5000"
    paths = (f"keys/{key}", f"keys/{key}?{waits}", "entries", "changes", f"keys/{key}/changes", f"entries?{waits}")
    body = json.dumps({"keys": [reading.key(store) for _ in range(20)]}).encode()
    get = f"GET /v1/stores/{store}/{chooser.choice(paths)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    post = f"POST /v1/stores/{store}/batch-get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    host, _, port = node.address.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(3):
            received, sent = await asyncio.open_connection(host, int(port))
            try:
                sent.write(chooser.choice((get, get, post.encode() + body, get[: len(get) // 2])))
                await asyncio.wait_for(
                    received.read(chooser.choice((1, 100_000))), chooser.choice((0.0, 0.02, 0.2))
                )
            finally:
                # Also at the end of the run, which cancels it.
                if chooser.random() < 0.5:
                    sent.transport.abort()
                else:
                    sent.close()


def missing_key(reading: Reading, store: str) -> str:
    """A key that nobody writes."""
    return key_of(store, LARGE_KEYS + reading.chooser.randrange(100))


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
                item = (reading.chooser.choice((*[reading.key("counts")] * 4, missing_key(reading, "counts"))),)
                options: ReadOptions = {"prefer": "any", "wait_ms": 300}
                if reading.chooser.random() < 0.2:
                    # Beside what the session has seen.
                    options["min_position"] = reading.newest_position("counts", item[0])
                read = reading.started("sessions", "key", "counts", "router", BOTH_ROUTERS, options)
                try:
                    found: Answer | Problem = await session.get("counts", item[0], **options)
                except Problem as problem:
                    found = problem
                read = replace(read, received_ms=boot_ms(), session=session_name)
                reading.note(answers.of_client(read, item, found))
                await asyncio.sleep(0.1)


class OwnAnswerReader:
    """Keys, half of them such as nobody writes, at the position of an answer of a while ago."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, int], deque[tuple[str, float | None]]] = {}

    async def __call__(self, reading: Reading) -> None:
        """One key."""
        chooser, (tier, node) = reading.chooser, reading.node()
        store = chooser.choice(OF_KEYS)
        key = chooser.choice((reading.key(store), missing_key(reading, store)))
        partition = reading.deployment.topology.stores[store].partition_of(key.encode())
        known = self._positions.setdefault((store, partition), deque(maxlen=_REMEMBERED))
        position, received_ms = chooser.choice(known or [("", None)])
        options = {"min_position": position, "wait_ms": chooser.choice((0, 500))} if position else {}
        read = reading.started("own-answers", "key", store, tier, node.address, options)
        read = replace(read, position_ms=received_ms)
        read, document = await reading.ask(read, "GET", f"/keys/{key}", params=options | {"timeout_ms": 1_500})
        reading.note(read if document is None else answers.of_key(read, read.status, document))
        if document is not None and "position" in document:
            token = document["position"]
            # Without an epoch, as of a replica that has read nothing yet, an offset is the same whatever was lost.
            known.append((token, read.received_ms if decode_position(token).epochs else None))


def store_followers() -> list[StoreStreamReader]:
    """Readers of streams that have all of the log in the end."""
    stores = enumerate(("counts", "counts", "hours", "prices"))
    return [StoreStreamReader(f"store-stream-{number}", store) for number, store in stores]


def readers(followers: Sequence[StoreStreamReader]) -> Sequence[tuple[Reader, float]]:
    """Every reader, with its pause in seconds after each read."""
    some: list[tuple[Reader, float]] = [(read_key, 0.03)] * 3
    some += [(read_own_write, 0.1), (read_batch, 0.15), (list_entries, 0.1), (list_windows, 0.15)]
    some += [(list_all_windows, 0.5), (list_versions, 0.15), (hang_up, 0.1)]
    some += [(OwnAnswerReader(), 0.1)]
    some += [(SessionReader(f"session-{number}"), 0.1) for number in range(2)]
    some += [(StreamReader(f"stream-{number}"), 0.2) for number in range(4)]
    some += [(ClientStreamReader(f"client-stream-{number}"), 0.2) for number in range(2)]
    some += [(ClientStoreStreamReader("client-store-stream"), 0.2)]
    some += [(follower, 0.2) for follower in followers]
    return some


async def read_until(stopped: asyncio.Event, reading: Reading, reader: Reader, pause_s: float) -> None:
    """Have a reader read again and again."""
    while not stopped.is_set():
        await reader(reading)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), pause_s)
