"""Clients of one worker that follow the same: what is sent to fast and slow ones, on a real store."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from forebay.clock import boot_ms
from forebay.wire.server_sent_events import Event, EventReader
from forebay_web.event_streams import Events
from forebay_web.limits import Held, Limit, Peer
from forebay_web.store_changes.cursors import decode_id
from forebay_web.store_changes.feed import ChangesFeeds
from forebay_web.store_changes.follower import StoreFollower
from forebay_web.store_changes.pages import ChangesPage, PagesRequest
from forebay_worker.reads.store_changes import StoreChanges
from tests.service.reads.test_changes_pages import Served


@dataclass(frozen=True)
class Source(StoreChanges):
    """Counts what is read."""

    reads: list[str] = field(default_factory=list)

    async def page(self, *arguments: Any, **named: Any) -> Any:
        self.reads.append("page")
        return await super().page(*arguments, **named)

    async def poll(self, *arguments: Any) -> Any:
        self.reads.append("poll")
        return await super().poll(*arguments)


class Clients:
    """Of one process, all of which follow all keys."""

    def __init__(self, served: Served) -> None:
        self.source = Source(served.admission, served.selection, served.parameters, [0])
        self.feeds = ChangesFeeds()

    @contextlib.asynccontextmanager
    async def client(
        self, lag_interval_ms: int = 60_000, timeout_ms: int = 1_000, last_event_id: str | None = None
    ) -> AsyncIterator[Events]:
        memory = Held(Limit("memory", 1 << 30, "full"), Peer("client"))
        selection = self.source.selection
        cursors = decode_id(last_event_id, selection.digest, selection.partitions) if last_event_id else {}
        follower = StoreFollower(self.source, cursors, memory, lag_interval_ms, timeout_ms)
        async with contextlib.aclosing(follower.events(self.feeds, "all")) as events:
            yield events
        assert memory.amount == 0


async def received(events: Events) -> list[Event]:
    """What is sent at once."""
    async with asyncio.timeout(10):
        while (sent := await anext(events)) is None:
            pass
    return EventReader().feed(sent.encode())


async def until_whole(events: Events) -> None:
    while [event.name for event in await received(events)] != ["lag"]:
        pass


def entries(events: list[Event]) -> dict[str, Any]:
    found = [entry for event in events if event.name == "values" for entry in json.loads(event.data)["entries"]]
    return {entry["key"]: entry["value"] for entry in found}


async def test_slow_follower_gets_only_the_newest_value(tmp_path):
    """Nothing is queued for it."""
    served = Served(tmp_path)
    clients = Clients(served)
    async with clients.client() as slow, clients.client() as fast:
        await until_whole(slow)
        await until_whole(fast)
        values: list[int] = []
        served.apply((b"before", b"1"))
        assert entries(await received(fast)) == {"before": 1}
        for number in range(100, 104):
            for one in range(50):
                served.apply((b"k", b"%d" % (number * 100 + one)))
            values.append(entries(await received(fast))["k"])
        # Since then, the slow one has taken nothing.
        assert entries(await received(slow)) == {"k": 10349, "before": 1}
    assert values[-1] == 10349
    # At most one value in a tick of 50 ms.
    assert values == sorted(set(values))


async def test_clients_of_equal_streams_share_reads_and_bytes(tmp_path):
    served = Served(tmp_path)
    clients = Clients(served)
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(clients.client()) for _ in range(40)]
        for events in streams:
            await until_whole(events)
        clients.source.reads.clear()
        for number in range(3):
            served.apply((b"k", b"%d" % number))
            sent = [await received(events) for events in streams]
            assert [entries(one) for one in sent] == [{"k": number}] * 40
        assert Counter(clients.source.reads)["page"] == 0
        assert Counter(clients.source.reads)["poll"] <= 12


async def test_hot_key_is_sent_twenty_times_a_second_at_most(tmp_path):
    served = Served(tmp_path)
    clients = Clients(served)
    async with clients.client() as events:
        await until_whole(events)
        begun = boot_ms()
        for number in range(6):
            served.apply((b"k", b"%d" % number))
            await received(events)
    # The first comes at once.
    assert boot_ms() - begun >= 4 * 50


async def test_a_client_that_is_cut_off_between_events_misses_nothing(tmp_path):
    """Several events are sent at once, and a connection may end after the first of them."""
    served = Served(tmp_path)
    clients = Clients(served)
    served.apply((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    async with clients.client() as events:
        await until_whole(events)
        served.apply((b"a", b"2"), (b"b", None))
        values, absent = await received(events)
        served.apply((b"a", b"3"))
        # What was deleted meanwhile is not known any more.
        served.replica.view.recent_changes.restart(served.replica.view.progress.position)
        reset, *_ = await received(events)
    assert (values.name, absent.name, reset.name) == ("values", "absent", "reset")
    async with clients.client(last_event_id=reset.id) as events:
        assert [event.name for event in await received(events)] == ["reset", "values"]
    selection = clients.source.selection
    first, last = (decode_id(one.id, selection.digest, selection.partitions)[0] for one in (values, absent))
    # No replica that is behind what was received may continue.
    assert first.since < last.since
    assert first.upper == last.upper


async def test_a_stream_ends_where_its_partition_is_no_longer_held(tmp_path):
    served = Served(tmp_path)
    async with Clients(served).client(timeout_ms=50) as events:
        await until_whole(events)
        served.admission._tasks.replicas.clear()  # type: ignore[attr-defined]
        (problem,) = await received(events)
        assert (problem.name, json.loads(problem.data)["partitions"]) == ("problem", [0])
        assert json.loads(problem.data)["type"] == "urn:forebay:problem:not-hosted-here"
        with pytest.raises(StopAsyncIteration):
            await received(events)


async def test_a_poll_is_answered_once_what_it_follows_has_changed(tmp_path):
    served = Served(tmp_path, "prefix=k")
    changes = StoreChanges(served.admission, served.selection, served.parameters)
    page = served.page()
    request = PagesRequest({0: page.cursor}, wait_ms=600_000)
    polling = asyncio.ensure_future(changes.outcomes(request))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await asyncio.to_thread(served.apply, (b"other", b"1"))
        await asyncio.to_thread(served.apply, (b"k", b"2"))
        outcomes, _ = await polling
    assert isinstance(outcomes[0], ChangesPage)
    assert outcomes[0].items == [b'{"key":"k","value":2,"timestamp_ms":0}']


async def test_pages_of_a_poll_are_limited_together(tmp_path):
    """The partitions come first that are named first."""
    served = Served(tmp_path)
    cursor = served.page().cursor
    served.apply((b"k", b"2"))
    changes = StoreChanges(served.admission, served.selection, served.parameters)
    for max_bytes, partitions in ((1, [0]), (1_000, [0, 1])):
        request = PagesRequest(dict.fromkeys([0, 1], cursor), wait_ms=1, max_bytes=max_bytes)
        outcomes, _ = await changes.outcomes(request)
        assert list(outcomes) == partitions


class Page:
    """What a client shows."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}

    def take(self, events: list[Event]) -> None:
        for event in events:
            if event.name == "reset":
                self.shown.clear()
            for entry in json.loads(event.data).get("entries", ()):
                self.shown[entry["key"]] = entry.get("value")

    @property
    def present(self) -> dict[str, Any]:
        return {key: value for key, value in self.shown.items() if value is not None}


@pytest.mark.parametrize("seed", range(2))
async def test_clients_of_any_speed_end_with_what_the_store_has(tmp_path, monkeypatch, seed):
    # Pages of a chunk each, so that states and changes take several.
    monkeypatch.setattr("forebay_worker.reads.store_changes.PAGE_BYTES", 1)
    monkeypatch.setattr("forebay_worker.reads.store_changes.POLLED_PAGE_BYTES", 1)
    choice = random.Random(seed)
    served = Served(tmp_path)
    clients = Clients(served)
    async with contextlib.AsyncExitStack() as stack:
        streams = [(await stack.enter_async_context(clients.client(20)), Page()) for _ in range(3)]
        content: dict[str, Any] = {"k": 1}
        for number in range(10):
            rows = {f"{choice.randrange(60):02}": choice.choice([number, number, None]) for _ in range(20)}
            content |= rows
            served.apply(*[(key.encode(), None if one is None else b"%d" % one) for key, one in rows.items()])
            if choice.random() < 0.1:
                served.replica.view.recent_changes.restart(served.replica.view.progress.position)
            for pace, (events, page) in enumerate(streams):
                if number % (1 + 9 * pace) == 0:
                    page.take(await received(events))
        present = {key: one for key, one in content.items() if one is not None}
        for events, page in streams:
            while page.present != present:
                page.take(await received(events))
