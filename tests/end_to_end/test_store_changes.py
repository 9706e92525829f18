"""Streams of many keys' changes, from workers and through routers, over real connections."""

import contextlib
import itertools
import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.client import Absent, AsyncClient, Client, Reset, StoreChange, StoreLag, Values
from forebay.errors import BadKey
from forebay.wire.server_sent_events import Event
from forebay_client.httpx_clients import shut_down
from tests.end_to_end.test_changes import PROBLEM, Follower, document
from tests.support.cluster import Cluster, running_cluster

TOPOLOGY = """
application_id = "test"
[[subtopology]]
name = "s"
partitions = 3
[[subtopology.store]]
name = "counts"
[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 100000
"""
_runs = itertools.count()


class StoreFollower(Follower):
    """Keeps what a page would show: the last value of each key, as the events of the stream leave it."""

    def __init__(self, address: str, store: str = "counts", *, seen: str = "", **parameters: Any) -> None:
        super().__init__(address, "", store, seen=seen, **{"lag_interval_ms": 100, **parameters})
        self._url = f"http://{address}/v1/stores/{store}/changes"

    @property
    def shown(self) -> dict[Any, Any]:
        shown: dict[Any, tuple[int, Any]] = {}
        for event in list(self.events):
            if event.name in ("values", "absent"):
                for item in items(event):
                    name = (item["key"], *(item[time] for time in ("start_ms", "end_ms") if time in item))
                    shown[name if len(name) > 1 else name[0]] = (document(event)["partition"], item.get("value"))
            elif event.name == "reset":
                shown = {name: one for name, one in shown.items() if one[0] not in document(event)["partitions"]}
        return {name: value for name, (_, value) in shown.items() if value is not None}

    def wait_to_show(self, shown: dict[Any, Any]) -> None:
        self.wait_for(lambda _: self.shown == shown, f"a page that shows {shown}")

    def wait_for_lag(self) -> None:
        """Until all that was known is sent."""
        before = len(self.named("lag"))
        self.wait_for(lambda f: len(f.named("lag")) > before + 1, "a lag event")

    @property
    def last_id(self) -> str:
        return next(event.id for event in reversed(self.events) if event.id)


def items(event: Event) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = next(value for value in document(event).values() if isinstance(value, list))
    return listed


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("store-changes"), topology_text=TOPOLOGY) as cluster:
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router


@pytest.fixture(params=["worker", "router"])
def address(request: pytest.FixtureRequest, served: tuple[Cluster, str]) -> str:
    return served[1] if request.param == "router" else next(iter(served[0].workers))


@pytest.fixture
def prefix() -> str:
    """Of this test's keys."""
    return f"{next(_runs)}-"


def put(served: tuple[Cluster, str], prefix: str, **values: int | None) -> None:
    rows = {f"{prefix}{key}".encode(): None if one is None else b"%d" % one for key, one in values.items()}
    served[0].put("counts", rows)


def named(prefix: str, **values: int) -> dict[str, int]:
    return {f"{prefix}{key}": value for key, value in values.items()}


def test_prefix_stream_sends_state_then_changes(served, address, prefix):
    """It needs one connection."""
    put(served, prefix, a=1, b=2, c=3)
    put(served, "other-", a=1)
    with StoreFollower(address, prefix=prefix) as stream:
        stream.wait_to_show(named(prefix, a=1, b=2, c=3))
        stream.wait_for_lag()
        put(served, prefix, a=4, b=None, d=5)
        put(served, "other-", a=2)
        stream.wait_to_show(named(prefix, a=4, c=3, d=5))
    assert stream.events[0].name == "reset"
    assert document(stream.events[0]) == {"store": "counts", "partitions": [0, 1, 2]}
    values = stream.named("values")[0]
    assert values.keys() == {"store", "entries", "partition", "position", "role", "host", "lag"}
    assert stream.named("absent")[0]["entries"] == [{"key": f"{prefix}b"}]
    assert stream.named("lag")[0].keys() == {"store", "lag"}
    assert stream.headers["content-type"] == "text/event-stream"


def test_stream_resumes_at_another_replica_or_router(served, prefix):
    """Deletions from in between are sent."""
    cluster, router = served
    put(served, prefix, a=1, b=2, c=3)
    first, second = cluster.workers
    # Both have these before the next, or a replica that applies both at once sends both again.
    for worker in (second, first):
        with StoreFollower(worker, prefix=prefix) as stream:
            stream.wait_for_lag()
            stream.wait_to_show(named(prefix, a=1, b=2, c=3))
            stream.wait_for_lag()
    put(served, prefix, b=None, c=4)
    for elsewhere in (second, router):
        with StoreFollower(elsewhere, prefix=prefix, seen=stream.last_id) as resumed:
            resumed.wait_for_lag()
            resumed.wait_to_show(named(prefix, c=4))
        # Nothing else was sent again.
        assert not resumed.named("reset")
        assert [one for event in resumed.named("absent") for one in event["entries"]] == [{"key": f"{prefix}b"}]


def test_windows_are_followed_with_their_times(served, address):
    at = (1_000_000 * (1 + next(_runs))).to_bytes(8, "big")
    start_ms = int.from_bytes(at, "big")
    window = ("k", start_ms, start_ms + 1000)
    served[0].put("hours", {b"k" + at: b"1"})
    with StoreFollower(address, "hours", keys='["k"]', **{"from": start_ms}) as stream:
        stream.wait_to_show({window: 1})
        served[0].put("hours", {b"k" + at: b"2"})
        stream.wait_to_show({window: 2})
        served[0].put("hours", {b"k" + at: None})
        stream.wait_to_show({})


def test_bounds_are_held_while_the_stream_runs(served, address, prefix):
    put(served, prefix, a=1)
    with StoreFollower(address, prefix=prefix, max_age_ms=1500, timeout_ms=200) as stream:
        stream.wait_to_show(named(prefix, a=1))
        # No heartbeat follows, so age grows past the bound.
        stream.wait_for(lambda f: f.named("problem"), "a problem")
        put(served, prefix, a=2)
        stream.wait_to_show(named(prefix, a=2))
    problem = stream.named("problem")[0]
    assert problem["type"] == PROBLEM + "lag-exceeds-tolerance"
    assert set(problem["partitions"]) <= {0, 1, 2}
    assert all(event["lag"]["age_ms"] <= 1500 for event in stream.named("values") + stream.named("lag"))


@pytest.mark.parametrize("seen", ["7", "of another service", "A" * 5_000])
def test_an_id_of_no_event_begins_anew(served, address, prefix, seen):
    """An EventSource would give up on an error, and send the same id again."""
    put(served, prefix, a=1)
    with StoreFollower(address, prefix=prefix, seen=seen) as stream:
        stream.wait_for_lag()
    assert stream.events[0].name == "reset"
    assert sorted(document(stream.events[0])["partitions"]) == [0, 1, 2]
    assert list(stream.shown.values()) == [1]


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("nope/changes", 404, "unknown-store"),
        ("counts/changes?as_of=1", 400, "bad-parameter"),
        ("counts/changes?keys=1", 400, "bad-parameter"),
        ("counts/changes?keys=[1]", 400, "bad-key"),
        ("hours/changes?from=x", 400, "bad-parameter"),
        ("hours/changes?from=2&to=1", 400, "bad-parameter"),
        ("counts/changes?from=b&to=a", 400, "bad-parameter"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_status(address, path, status, problem):
    answer = httpx.get(f"http://{address}/v1/stores/{path}")
    assert (answer.status_code, answer.json()["type"]) == (status, PROBLEM + problem)


def test_the_client_follows_a_prefix_and_goes_on_by_itself(served, prefix):
    _, router = served
    put(served, prefix, a=1, b=2)
    shown: dict[str, int] = {}
    following = {"prefix": prefix, "lag_interval_ms": 100}
    with Client(f"http://{router}") as client, client.changes("counts", **following) as changes:
        take(changes, shown, named(prefix, a=1, b=2))
        while not isinstance(next(changes), StoreLag):
            pass
        # A connection that breaks is made again, and nothing is missed.
        shut_down(changes._opened.response)
        put(served, prefix, a=None, b=3)
        take(changes, shown, named(prefix, b=3))
        with pytest.raises(BadKey):
            next(client.changes("counts", keys=[1]))
        with pytest.raises(TypeError, match="either a key"):
            client.changes("counts", "k", prefix="k")  # type: ignore[call-overload]


def take(changes: Iterator[StoreChange], shown: dict[str, int], until: dict[str, int]) -> None:
    """Take changes over until this is shown."""
    while shown != until:
        change = next(changes)
        if isinstance(change, Values):
            shown.update({item.key: item.value for item in change.items})
            assert change.lag.record_lag is not None
        elif isinstance(change, Absent):
            for item in change.items:
                shown.pop(item.key, None)
        else:
            assert isinstance(change, StoreLag) or (isinstance(change, Reset) and not shown)


async def test_the_asynchronous_client_follows_windows_and_their_lag(served):
    cluster, router = served
    at = (900_000_000 + next(_runs)).to_bytes(8, "big")
    start_ms = int.from_bytes(at, "big")
    cluster.put("hours", {b"w" + at: b"1"})
    async with AsyncClient(f"http://{router}") as client:
        found: list[StoreChange] = []
        async with client.changes("hours", keys=["w"], start=start_ms, lag_interval_ms=100) as changes:
            async for change in changes:
                found.append(change)
                if isinstance(change, StoreLag):
                    break
    reset, values, lag = found
    assert isinstance(values, Values)
    assert [(item.key, item.start_ms, item.end_ms, item.value) for item in values.items] == [
        ("w", start_ms, start_ms + 1000, 1)
    ]
    assert isinstance(lag, StoreLag)
    assert lag.lag.record_lag == 0
    assert isinstance(reset, Reset)


def test_one_followers_time_is_not_that_of_those_who_follow_the_same(tmp_path):
    """What is read for one of them is read for all, also once it has left."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        workers = cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        cluster.put("counts", {b"ann": b"1"})
        with contextlib.ExitStack() as of_others:
            with StoreFollower(router, keys='["ann"]', timeout_ms=1) as hasty:
                hasty.wait_for(lambda follower: follower.events, "any event")
                stream = StoreFollower(router, keys='["ann"]')
                of_others.enter_context(stream)
                stream.wait_to_show({"ann": 1})
            active = cluster.active_for(router, "counts", "ann")
            assert active in workers
            cluster.kill(active)
            for number in (2, 3):
                cluster.put("counts", {b"ann": b"%d" % number})
                stream.wait_to_show({"ann": number})


def test_stream_survives_a_lost_or_hung_worker(tmp_path):
    """No value goes back."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        first, _ = cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        keys = [f"k{i}" for i in range(12)]
        with StoreFollower(router) as stream:
            for number in range(1, 4):
                cluster.put("counts", {key.encode(): b"%d" % number for key in keys})
                stream.wait_to_show(dict.fromkeys(keys, number))
                if number == 1:
                    cluster.kill(first, signal.SIGSTOP)
                elif number == 2:
                    cluster.kill(first)
        assert [json.loads(event.data)["partitions"] for event in stream.events if event.name == "reset"] == [
            [0, 1, 2]
        ]
        sent: dict[str, int] = {}
        for event in stream.events:
            for item in items(event) if event.name == "values" else ():
                assert item["value"] >= sent.get(item["key"], 0)
                sent[item["key"]] = item["value"]
