"""The blocking and the asynchronous client against real processes; a script gives only answers that no server
would."""

import asyncio
import contextlib
import inspect
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
import trustme

from forebay import errors
from forebay.client import (
    Answer,
    AsyncChanges,
    AsyncClient,
    AsyncItems,
    AsyncSession,
    Client,
    ReplicaInfo,
    Session,
    SessionWindow,
    Version,
    Window,
)
from forebay.errors import Problem
from forebay.lag import UNKNOWN_LAG, Lag
from forebay.position import Position, decode_position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.wire.answers import problem_of
from forebay_client.async_connections import AsyncConnections
from forebay_client.exchange import Close, Exchange, Opened, Pause, Receive, Request, Send
from forebay_client.key_changes import Following
from forebay_client.positions import Positions
from forebay_client.read_plans import ChangesRequest, ClientReads
from tests.support.answering_server import answering_server
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

TOPOLOGY = """
application_id = "client"

[[subtopology]]
name = "all"
partitions = 3

[[subtopology.store]]
name = "names"

[[subtopology.store]]
name = "numbers"
key = "int32"

[[subtopology.store]]
name = "pairs"
key = "json"

[[subtopology.store]]
name = "blobs"
key = "bytes"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "visits"
kind = "session"
gap_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000
"""
ODD_KEYS = ["", ".", "..", "/", "a/b", "%2F", "%", "a+b", "a b", "é", "日本", "?", "#", "windows", "'\"\\"]
EXACT_KEY = {"exact": 1.5}
NAMES = {f"k{i:04d}": i for i in range(2500)}


class Awaiting:
    """An ``AsyncClient``, its sessions and lists wrapped to block, so that one test covers both kinds."""

    def __init__(self, inner: AsyncClient | AsyncSession, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = getattr(self._inner, name)(*arguments, **options)
            if inspect.iscoroutine(result):
                return self._runner.run(result)
            if isinstance(result, AsyncItems | AsyncChanges):
                return AwaitingItems(result, self._runner)
            return Awaiting(result, self._runner) if isinstance(result, AsyncSession) else result

        return call

    def __enter__(self) -> "Awaiting":
        assert isinstance(self._inner, AsyncClient)
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        assert isinstance(self._inner, AsyncClient)
        self._runner.run(self._inner.__aexit__(None, None, None))
        self._runner.close()


class AwaitingItems:
    def __init__(self, inner: AsyncItems[Any] | AsyncChanges, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def following() -> Any:
            return await anext(self._inner)

        try:
            return self._runner.run(following())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> "AwaitingItems":
        return self

    def __exit__(self, *_: object) -> None:
        assert isinstance(self._inner, AsyncChanges)
        self._runner.run(self._inner.aclose())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


Connect = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["blocking", "awaiting"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Makes a client of either kind, of addresses or URLs."""

    def make(*servers: str, **options: Any) -> AbstractContextManager[Any]:
        urls = [server if "//" in server else f"http://{server}" for server in servers]
        if request.param == "blocking":
            return Client(urls, **options)
        return Awaiting(AsyncClient(urls, **options), asyncio.Runner())

    return make


def time8(time_ms: int) -> bytes:
    return time_ms.to_bytes(8, "big", signed=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("client"), topology_text=TOPOLOGY) as cluster:
        cluster.put("names", {key.encode(): b"%d" % i for key, i in NAMES.items()})
        cluster.put("names", {key.encode(): b'"odd"' for key in ODD_KEYS})
        cluster.put("numbers", {n.to_bytes(4, "big", signed=True): b"%d" % n for n in range(-50, 50)})
        cluster.put("pairs", {b'["a",1]': b'"pair"', b"null": b'"nothing"'})
        cluster.put("pairs", {b'{"exact":1.5}': b'{"sum":12345678901234567.12,"key":0.10,"n":1}'})
        cluster.put("blobs", {b"\xff\x00": b"1", b"\xff\x01": b"2", b"\x00": b"3"})
        cluster.put(
            "hours", {key + time8(1000 * i): b"%d" % i for key in (b"jfk", b"lga", b"..") for i in range(30)}
        )
        cluster.put("visits", {b"ann" + time8(end) + time8(end - 500): b"1" for end in (1000, 5000, 9000)})
        cluster.put("prices", {b"tea": b"1"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router


@pytest.fixture
def client(served: tuple[Cluster, str], connect: Connect) -> Iterator[Any]:
    with connect(served[1]) as client:
        yield client


def raised(problem: type[Problem], call: Callable[[], object]) -> Any:
    """The problem that a call raises, of exactly this class."""
    with pytest.raises(Problem) as info:
        call()
    assert type(info.value) is problem, info.value
    return info.value


# One key


def test_an_answer_has_the_value_the_lag_and_where_it_is_from(served, client):
    cluster, _ = served
    # On a busy machine a hedge may be answered by the standby, unless the active is asked for.
    answer = client.get("names", "k0007", require_active=True)
    assert isinstance(answer, Answer)
    assert (answer.store, answer.key, answer.value) == ("names", "k0007", 7)
    assert answer.role == "active"
    assert answer.host in cluster.workers
    assert 0 <= answer.partition < 3
    assert answer.partition in decode_position(answer.position).offsets
    assert isinstance(answer.lag, Lag)
    assert answer.lag.record_lag == 0
    with pytest.raises(AttributeError):
        answer.value = 8


@pytest.mark.parametrize("key", ODD_KEYS)
def test_any_key_can_be_read(client, key):
    answer = client.get("names", key)
    assert (answer.key, answer.value) == (key, "odd")


def test_keys_are_json_values_of_the_stores_codec(client):
    assert client.get("numbers", -7).value == -7
    assert client.get("pairs", ["a", 1]).value == "pair"
    assert client.get("pairs", None).value == "nothing"
    assert client.get("blobs", "_wA").value == 1
    raised(errors.BadKey, lambda: client.get("numbers", "seven"))


def test_decimals_are_exact_on_request(served, connect):
    """In every form of answer. A key is still what it is requested by."""
    _, router = served
    exact = {"sum": Decimal("12345678901234567.12"), "key": Decimal("0.10"), "n": 1}
    with connect(router, decimals=True) as client:
        found = [client.get("pairs", EXACT_KEY), *client.get_many("pairs", [EXACT_KEY])]
        found += [entry for entry in client.entries("pairs") if entry.key == EXACT_KEY]
        found += [next(client.changes("pairs", EXACT_KEY))]
        assert [(one.key, one.value) for one in found] == [(EXACT_KEY, exact)] * 4
        assert all(type(one.key["exact"]) is float and str(one.value["key"]) == "0.10" for one in found)
    with connect(router) as client:
        assert client.get("pairs", EXACT_KEY).value["sum"] == float(exact["sum"])


def test_a_worker_answers_as_a_router_does(served, connect):
    cluster, router = served
    with connect(cluster.active_for(router, "names", "k0001")) as client:
        assert client.get("names", "k0001", require_active=True, max_record_lag=0).value == 1


def test_a_versioned_store_as_of_a_time(client):
    (version,) = client.versions("prices", "tea")
    assert version == Version("tea", version.valid_from_ms, 1, version.valid_from_ms)
    assert client.get("prices", "tea", as_of=version.valid_from_ms).value == 1
    assert client.get("prices", "tea", as_of=datetime.now(UTC)).value == 1
    before = datetime(2000, 1, 1, tzinfo=UTC)
    raised(errors.UnknownKey, lambda: client.get("prices", "tea", as_of=before))
    (miss,) = client.get_many("prices", ["tea"], as_of=before)
    assert isinstance(miss, errors.UnknownKey)


def test_a_misspelt_option_is_refused_before_any_request(client):
    with pytest.raises(TypeError, match="max_lag"):
        client.get("names", "k0001", max_lag=0)
    with pytest.raises(TypeError, match="max_lag"):
        client.get_many("names", ["k0001"], max_lag=0)
    with pytest.raises(TypeError, match="max_lag"):
        client.entries("names", max_lag=0)


# Several keys


def test_more_keys_than_one_request_takes(client):
    keys = [*list(NAMES)[:598], "nobody", 7]
    results = client.get_many("names", keys, max_record_lag=0)
    assert [result.value for result in results[:598]] == list(range(598))
    assert {result.lag.record_lag for result in results[:599]} == {0}
    miss, bad = results[598:]
    assert isinstance(miss, errors.UnknownKey)
    assert miss.members["key"] == "nobody"
    assert isinstance(bad, errors.BadKey)
    assert bad.members["key"] == 7
    assert client.get_many("names", []) == []
    with pytest.raises(TypeError, match="a list of keys, and 'k0001' is one"):
        client.get_many("names", "k0001")


def test_long_keys_are_read_and_too_long_ones_refused(client):
    """A key above 4,096 bytes is refused, and one that fits no path is sent in a body."""
    long = ["€" * 1_300 + str(n) for n in range(300)]
    results = client.get_many("names", [*long, "k0001"], timeout_ms=20_000)
    assert {type(result) for result in results[:-1]} == {errors.UnknownKey}
    assert results[-1].value == 1
    with pytest.raises(errors.UnknownKey):
        client.get("names", "я" * 600)
    with pytest.raises(errors.BadKey, match="longer than 4096 bytes"):
        client.get("names", "я" * 20_000)
    with pytest.raises(errors.BadKey, match="longer than 4096 bytes"):
        client.get_many("names", ["k0001", "x" * 5_000])


def test_what_is_no_key_is_the_problem_of_that_key_only(client):
    nan, raw, good = client.get_many("names", [float("nan"), b"k0001", "k0001"])
    assert good.value == 1
    assert {type(nan), type(raw)} == {errors.BadKey}


# Lists


def test_entries_over_several_pages_each_with_its_lag(client):
    items = client.entries("names", start="k", end="l", page_size=700, max_record_lag=0)
    assert (items.lag, items.partitions, items.complete) == (UNKNOWN_LAG, (), False)
    entry = next(items)
    assert (entry.key, entry.value) == ("k0000", 0)
    assert entry.timestamp_ms == client.get("names", "k0000").timestamp_ms > 0
    first = items.partitions
    assert [source.partition for source in first] == [0, 1, 2]
    assert items.lag.record_lag == 0
    assert [(item.key, item.value) for item in items] == list(NAMES.items())[1:]
    assert items.complete
    assert items.missing == ()
    assert items.partitions is not first


def test_entries_by_range_prefix_order_and_number(client):
    def keys(**bounds: Any) -> list[Any]:
        return [item.key for item in client.entries(**bounds)]

    assert keys(store="numbers", start=-3, end=2) == [-3, -2, -1, 0, 1]
    assert keys(store="numbers", start=40, reverse=True, limit=3, page_size=2) == [49, 48, 47]
    assert keys(store="names", prefix="k00", limit=2) == ["k0000", "k0001"]
    assert keys(store="names", prefix="a") == ["a b", "a+b", "a/b"]
    assert keys(store="names", limit=0) == []
    assert keys(store="blobs", prefix=b"\xff") == ["_wA", "_wE"]
    assert keys(store="pairs", prefix="[") == [["a", 1]]


def test_windows_of_one_key_and_of_all(client):
    found = list(client.windows("hours", "jfk", start=5000, end=9000, page_size=3))
    written_ms = found[0].timestamp_ms
    assert found == [Window("jfk", 1000 * i, 1000 * i + 1000, i, written_ms) for i in range(5, 9)]
    (newest,) = client.windows("hours", "jfk", reverse=True, limit=1)
    assert newest.start_ms == 29_000
    every = list(client.windows("hours", start=datetime(1970, 1, 1, 0, 0, 28, tzinfo=UTC), page_size=1))
    assert [(item.key, item.start_ms) for item in every] == [
        (key, start) for key in ("..", "jfk", "lga") for start in (28_000, 29_000)
    ]


def test_a_key_of_dots_is_no_step_in_the_path(client):
    assert {item.key for item in client.windows("hours", "..")} == {".."}


def test_session_windows(client):
    (found,) = client.sessions("visits", "ann", start=4800, end=6000)
    assert found == SessionWindow("ann", 4500, 5000, 1, found.timestamp_ms)
    assert [item.end_ms for item in client.sessions("visits", page_size=1)] == [1000, 5000, 9000]


def test_missing_partition_is_an_error_unless_partial(tmp_path, connect):
    """With `allow_partial` the entries name the partitions that are missing."""
    options = ("--num-standby-replicas", "0", "--session-timeout-ms", "20000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options) as cluster:
        cluster.put("names", {b"k%d" % i: b"1" for i in range(100)})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        lost, kept = cluster.workers
        gone = sorted(p for p, hosts in cluster.roles(router, "names").items() if lost in hosts)
        here = next(f"k{i}" for i in range(100) if cluster.active_for(router, "names", f"k{i}") == kept)
        with connect(lost) as client:
            elsewhere = raised(errors.NotHostedHere, lambda: client.get("names", here))
            assert elsewhere.members["active_host"] == kept
        cluster.kill(lost)
        with connect(router, timeout_ms=900) as client:
            refused = raised(errors.NoReplica, lambda: list(client.entries("names")))
            assert refused.members["attempts"]
            items = client.entries("names", allow_partial=True, page_size=10)
            assert 0 < len(list(items)) < 100
            assert not items.complete
            assert list(items.missing) == gone


# Problems


def test_problems_of_a_quiet_cluster(client):
    miss = raised(errors.UnknownKey, lambda: client.get("names", "nobody", max_record_lag=0))
    assert miss.lag.record_lag == 0
    assert {"store", "key", "partition", "position", "role", "host"} <= miss.members.keys()
    assert miss.document()["status"] == 404
    late = raised(errors.LagExceedsTolerance, lambda: client.get("names", "k0001", max_age_ms=0))
    assert late.lag.age_ms > 0
    assert late.retry_after_s == 1
    assert len(late.members["attempts"]) == 2
    raised(errors.UnknownStore, lambda: client.get("nope", "a"))
    raised(errors.UnknownStore, lambda: client.get_many("nope", ["a"]))
    for never in ("orders by", "a/b", "é", "a%2Fb", ""):
        raised(errors.UnknownStore, lambda never=never: client.get(never, "a"))
    raised(errors.WrongStoreKind, lambda: client.get("hours", "jfk"))
    raised(errors.WrongStoreKind, lambda: next(client.windows("names", "k0001")))
    raised(errors.BadParameter, lambda: client.get("names", "k0001", max_record_lag=-1))
    raised(errors.BadParameter, lambda: client.get("names", "k0001", min_position="xyz"))
    raised(errors.BadParameter, lambda: next(client.entries("numbers", prefix="1")))
    naive = datetime(2013, 1, 1)
    raised(errors.BadParameter, lambda: next(client.windows("hours", "jfk", start=naive)))
    elsewhere = client.get("numbers", 1).position
    raised(errors.PositionOfAnotherLog, lambda: client.get("names", "k0001", min_position=elsewhere))


def test_problems_of_one_replica(served, connect):
    cluster, router = served
    roles = cluster.roles(router, "names")
    partition = cluster.partition(cluster.topology.stores["names"], b"k0001")
    standby = next(host for host, role in roles[partition].items() if role == "standby")
    with connect(standby) as client:
        refused = raised(errors.NotActive, lambda: client.get("names", "k0001", require_active=True))
        assert refused.members["role"] == "standby"
        log, offsets, *_ = decode_position(client.get("names", "k0001").position)
        ahead = encode_position(Position(log, {partition: offsets[partition] + 1000}))
        early = raised(errors.PositionNotReached, lambda: client.get("names", "k0001", min_position=ahead))
        assert early.lag.record_lag == 0


def test_a_path_that_is_none(served, connect):
    with connect(f"http://{served[1]}/elsewhere") as client:
        raised(errors.UnknownPath, lambda: client.get("names", "k0001"))


def test_a_key_in_the_wrong_partition(tmp_path, connect):
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        spec = cluster.topology.stores["names"]
        right = cluster.partition(spec, b"a")
        cluster.partition = lambda spec, key: (right + 1) % 3  # type: ignore[method-assign]
        cluster.put("names", {b"a": b"1"})
        worker = cluster.start_worker()
        in_wrong = next(k for k in NAMES if spec.stream_partitioner.partition(k.encode(), 3) == (right + 1) % 3)
        with connect(worker) as client:
            raised(errors.PartitionerMismatch, lambda: client.get("names", in_wrong))


def test_wait_ms_extends_the_calls_deadline(cluster, connect):
    """A call has `wait_ms` in addition to its usual timeout."""
    worker = cluster.start_worker()
    ends = cluster.put("counts", {b"a": b"1"})
    with connect(worker, timeout_ms=300) as client:
        wait_until(lambda: client.get("counts", "a").lag.record_lag == 0, "its being read")
        log, offsets, *_ = decode_position(client.get("counts", "a").position)
        beyond = encode_position(Position(log, {partition: ends[partition] + 2 for partition in offsets}))
        with ThreadPoolExecutor(1) as pool:
            begun = time.monotonic()
            call = pool.submit(client.get, "counts", "a", min_position=beyond, wait_ms=20_000)
            wait_until(lambda: time.monotonic() > begun + 0.6 or call.done(), "the usual time")
            assert not call.done()
            cluster.put("counts", {b"a": b"2"})
            assert call.result().value == 2


def late_host(client: Any) -> str:
    """Which host did not answer a read in time; on a busy machine that may be the router."""
    late = raised(errors.DeadlineExceeded, lambda: client.get("counts", "a", timeout_ms=300))
    return str(late.members["attempts"][0]["host"])


def test_unresponsive_servers_exceed_the_deadline(cluster, connect):
    """The problem lists the worker or the router that did not answer."""
    cluster.put("counts", {b"a": b"1"})
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    with connect(router) as through_router, connect(worker) as direct:
        assert through_router.get("counts", "a").value == direct.get("counts", "a").value == 1
        cluster.kill(worker, signal.SIGSTOP)
        wait_until(lambda: late_host(through_router) == worker, "the router's own answer")
        assert late_host(direct) == f"http://{worker}"


@pytest.mark.parametrize("kind", Problem.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_problem_comes_back_as_its_class(kind):
    lag = {"record_lag": 3, "time_lag_ms": None, "age_ms": 5}
    sent = kind("What happened.", retry_after_s=2, store="names", lag=lag)
    come = problem_of(json.loads(sent.body()), 2)
    assert type(come) is kind
    assert (come.detail, come.retry_after_s, come.members) == (sent.detail, 2, sent.members)
    assert come.document() == sent.document()
    assert come.lag == Lag(3, None, 5)


def test_a_problem_of_an_unknown_type_keeps_its_document():
    document = {"type": "urn:forebay:problem:of-tomorrow", "title": "New", "status": 418, "detail": "d", "x": 1}
    come = problem_of(document)
    assert type(come) is Problem
    assert come.document() == document


# Sessions


def test_a_session_asks_for_what_it_has_seen(client):
    session = client.session()
    assert session.position("numbers") is None
    answer = session.get("numbers", 1)
    assert session.position("numbers") == answer.position
    list(session.entries("numbers", page_size=30))
    assert set(decode_position(session.position("numbers")).offsets) == {0, 1, 2}
    assert len(session.get_many("numbers", [2, 3, 999])) == 3
    raised(errors.UnknownKey, lambda: session.get("numbers", 1000))
    assert session.position("names") is None
    assert client.session().position("numbers") is None
    # What this cluster has not reached is refused, by every kind of read, until a replica has it.
    log, offsets, *_ = decode_position(session.position("numbers"))
    ahead = encode_position(Position(log, {p: offset + 1000 for p, offset in offsets.items()}))
    session.read_after("numbers", ahead)
    raised(errors.PositionNotReached, lambda: session.get("numbers", 1))
    raised(errors.PositionNotReached, lambda: next(session.entries("numbers")))
    (one,) = session.get_many("numbers", [1])
    assert isinstance(one, errors.PositionNotReached)
    assert client.get("numbers", 1).value == 1


def test_a_session_reads_what_a_sink_has_written(served, client):
    cluster, _ = served
    session = client.session()
    identity = cluster.changelog.identity(cluster.topology.stores["pairs"].topic)
    for value in range(20):
        ends = cluster.put("pairs", {b'"counter"': b"%d" % value}, writer="counter")
        session.read_after("pairs", encode_position(Position(log_digest(identity), ends)))
        assert session.get("pairs", "counter", wait_ms=3000).value == value
    session.read_after("pairs", None)
    raised(errors.BadParameter, lambda: session.read_after("pairs", "xyz"))


@pytest.mark.chaos
def test_session_never_goes_back_through_a_failover(cluster, connect):
    """The active is killed and replaced while its key is written to."""
    cluster.put("counts", {b"n": b"0"})
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    killed = cluster.active_for(router, "counts", "n")
    stopping = threading.Event()

    def write() -> None:
        written = 0
        while not stopping.is_set():
            written += 1
            cluster.put("counts", {b"n": b"%d" % written})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with connect(router) as client:
            session = client.session()
            seen: list[Answer] = [session.get("counts", "n")]

            def read_until(enough: Callable[[], bool]) -> None:
                def read() -> bool:
                    (one,) = session.get_many("counts", ["n"], wait_ms=2000)
                    seen.extend([one, session.get("counts", "n", wait_ms=2000)])
                    (entry,) = session.entries("counts", wait_ms=2000)
                    assert entry.value >= seen[-1].value
                    return enough()

                wait_until(read, "enough reads", 30)

            read_until(lambda: seen[-1].value > 20)
            cluster.kill(killed)
            died_at = len(seen)
            read_until(lambda: len(seen) > died_at + 50 and seen[-1].host != killed and seen[-1].role == "active")
    finally:
        stopping.set()
        writer.join()
    values = [answer.value for answer in seen]
    assert values == sorted(values)


def test_positions_of_partitions_whose_logs_differ_fit_no_token():
    positions = Positions()
    positions.add("s", encode_position(Position(log_digest("one"), {0: 5, 1: 7})))
    positions.add("s", encode_position(Position(log_digest("one"), {0: 4})))
    assert decode_position(positions.get("s") or "").offsets == {0: 5, 1: 7}
    positions.add("s", encode_position(Position(log_digest("two"), {1: 2})))
    assert decode_position(positions.get("s", 1) or "") == Position(log_digest("two"), {1: 2})
    with pytest.raises(errors.PositionOfAnotherLog):
        positions.get("s")


# Trying again


def test_router_without_workers_is_retried_until_ready(cluster, connect):
    cluster.put("counts", {b"a": b"1"})
    address = f"127.0.0.1:{free_port()}"
    router = cluster.start_router("--seeds", address, ready=False)
    with connect(router) as client:
        refused = raised(errors.NotReady, lambda: client.get("counts", "a", timeout_ms=500))
        assert refused.retry_after_s == 1
        starting = threading.Thread(target=cluster.start_worker, args=[address], kwargs={"ready": False})
        starting.start()
        assert client.get("counts", "a", timeout_ms=30_000).value == 1
        starting.join()


def test_the_next_server_is_tried_when_one_cannot_be_reached(served, connect):
    dead = f"127.0.0.1:{free_port()}"
    with connect(dead, served[1]) as client:
        assert client.get("names", "k0001").value == 1
        assert len(list(client.entries("names", start="k", end="l"))) == 2500
    with connect(dead) as client:
        lost = raised(errors.NoReplica, lambda: client.get("names", "k0001"))
        assert {attempt["host"] for attempt in lost.members["attempts"]} == {f"http://{dead}"}
        assert "ConnectError" in lost.members["attempts"][0]["outcome"]


STORE = {"name": "s", "kind": "key-value", "key": "string", "value": "json", "partitioner": "murmur2"}
STORE |= {"topic": "t", "partitions": 1}
ANSWER = {"store": "s", "key": "a", "value": 1, "timestamp_ms": 3, "partition": 0, "position": "AQ"}
ANSWER |= {"role": "active", "host": "h"}
ANSWER |= {"lag": {"record_lag": 0, "time_lag_ms": 1, "age_ms": 2, "of_tomorrow": 3}, "of_tomorrow": 4}


def anything(parameters: dict[str, Any]) -> Request:
    """A request that any document answers."""
    return Request("/x", parameters, lambda document: None)


class Scripted(httpx.MockTransport):
    """Answers a read of one key with the next of some responses, and keeps the requests."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        super().__init__(self._answer)
        self.responses = list(responses)
        self.requests: list[httpx.Request] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/stores/s":
            return httpx.Response(200, json=STORE)
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def refusal(problem: Problem) -> httpx.Response:
    headers = {} if problem.retry_after_s is None else {"retry-after": str(problem.retry_after_s)}
    return httpx.Response(problem.status, headers=headers, content=problem.body())


def test_server_that_timed_out_is_not_first_again():
    now_s = 0.0
    exchange = Exchange(["http://hangs", "http://well"], 1_000, lambda: now_s)
    call = exchange.ask(anything({}), exchange.deadline())
    assert next(call).url.startswith("http://hangs/")
    now_s += 1.1
    with pytest.raises(errors.DeadlineExceeded):
        call.send(httpx.ReadTimeout("timed out"))
    again = exchange.ask(anything({}), exchange.deadline())
    assert next(again).url.startswith("http://well/")


def test_server_gets_wait_ms_and_a_share_of_the_timeout():
    exchange = Exchange(["http://one", "http://two"], 1_000, lambda: 0.0)
    first = next(exchange.ask(anything({"wait_ms": 3_000}), exchange.deadline(wait_ms=3_000)))
    assert first.url == "http://one/x?wait_ms=3000&timeout_ms=3500"


def test_a_server_that_hangs_leaves_another_the_time_to_answer(served, connect):
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        address = "{}:{}".format(*hangs.getsockname())
        with connect(address, served[1], timeout_ms=2_000) as client:
            assert client.get("names", "k0001").value == 1


def test_key_that_no_path_holds_is_retried(connect):
    """A key that is read by a batch is retried and missing like any other."""

    def batch(result: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={"results": [{"key": "", **result}]})

    soon = batch({"problem": errors.NoReplica("Soon.", retry_after_s=0).document()})
    miss = batch({"problem": {**errors.UnknownKey("None.").document(), "lag": ANSWER["lag"]}})
    script = Scripted(soon, batch({**ANSWER, "key": ""}), soon, miss)
    with connect("http://one", transport=script) as client:
        assert client.get("s", "").value == 1
        assert raised(errors.UnknownKey, lambda: client.get("s", "")).lag == Lag(0, 1, 2)
    assert len(script.requests) == 4


def test_reconnected_session_stream_requires_its_position(connect):
    """A session's stream that reconnects requests the newest position that the session has read."""
    requested = []

    def position(offset: int) -> str:
        return encode_position(Position(log_digest("sqlite:log"), {0: offset}))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/stores/s":
            return httpx.Response(200, json=STORE)
        if not request.url.path.endswith("/changes"):
            return httpx.Response(200, json={**ANSWER, "key": "k", "position": position(20)})
        requested.append((request.url.params.get("min_position"), request.headers.get("last-event-id")))
        document = json.dumps({**ANSWER, "key": "k", "position": position(10)})
        event = f"event: value\nid: {position(10)}\ndata: {document}\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=event.encode())

    with connect("http://x", transport=httpx.MockTransport(answer)) as client:
        session = client.session()
        changes = iter(session.changes("s", "k"))
        next(changes)
        session.get("s", "k")
        next(changes)
    assert requested == [(None, None), (position(20), position(10))]


@pytest.mark.parametrize("kind", [errors.Overloaded, errors.LogDiverged])
def test_transient_problem_is_retried(connect, kind):
    """Members of an answer that this version does not know are ignored."""
    script = Scripted(refusal(kind("Soon.", retry_after_s=0)), httpx.Response(200, json=ANSWER))
    with connect("http://one", transport=script) as client:
        assert client.get("s", "a").lag == Lag(0, 1, 2)
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    "problem",
    [
        errors.NoReplica("Later than there is time for.", retry_after_s=60),
        errors.PartitionerMismatch("Waiting will not help."),
        errors.LagExceedsTolerance("Whether to wait is for the caller to say.", retry_after_s=0),
        errors.InternalError("Broken."),
    ],
    ids=lambda problem: problem.name,
)
def test_what_does_not_pass_in_time_is_raised_at_once(connect, problem):
    script = Scripted(refusal(problem))
    with connect("http://one", transport=script) as client:
        raised(type(problem), lambda: client.get("s", "a"))
    assert len(script.requests) == 1


def test_stale_connection_costs_no_call(connect):
    """The server that answered instead is kept for the next calls."""
    script = Scripted(
        httpx.RemoteProtocolError("Server disconnected without sending a response."),
        *(httpx.Response(200, json=ANSWER) for _ in range(2)),
    )
    with connect("http://one", "http://two", transport=script) as client:
        assert client.get("s", "a").value == client.get("s", "a").value == 1
    assert [request.url.host for request in script.requests] == ["one", "two", "two"]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: refusal(errors.Overloaded("Full.", retry_after_s=60)),
        lambda: refusal(errors.NoReplica("Nobody.", retry_after_s=60)),
        lambda: refusal(errors.DeadlineExceeded("Late.")),
        lambda: httpx.Response(502, html="<h1>Bad gateway</h1>"),
    ],
    ids=["429", "503", "504", "502"],
)
def test_rejected_read_goes_to_the_next_server_at_once(connect, refused):
    """That server is the first from then on."""
    script = Scripted(refused(), *(httpx.Response(200, json=ANSWER) for _ in range(2)))
    with connect("http://one", "http://two", transport=script) as client:
        assert client.get("s", "a").value == client.get("s", "a").value == 1
    assert [request.url.host for request in script.requests] == ["one", "two", "two"]


def test_retry_waits_for_the_soonest_server(connect):
    """No server is tried twice before, and then all are."""
    for later, sooner in ((None, 0), (0, None), (60, 0), (0, 60)):
        refusals = [refusal(errors.NotReady("Later.", retry_after_s=after)) for after in (later, sooner)]
        script = Scripted(*refusals, httpx.Response(200, json=ANSWER))
        with connect("http://one", "http://two", transport=script) as client:
            assert client.get("s", "a").value == 1
    gone = [httpx.ConnectError("refused") for _ in range(4)]
    script = Scripted(
        gone[0], refusal(errors.Overloaded("Full.", retry_after_s=0)), *gone[1:3], httpx.Response(200, json=ANSWER)
    )
    with connect("http://one", "http://two", transport=script) as client:
        assert client.get("s", "a").value == 1
    assert [request.url.host for request in script.requests][:2] == ["one", "two"]
    assert [request.url.host for request in script.requests].count("two") == 2


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_a_server_for_a_moment_is_tried_again(connect, status):
    gone = [httpx.Response(status, html="<h1>Nobody there</h1>") for _ in range(2)]
    script = Scripted(*gone, httpx.Response(200, json=ANSWER))
    with connect("http://one", transport=script) as client:
        assert client.get("s", "a").value == 1


@pytest.mark.parametrize("status", [200, 502])
def test_what_is_neither_router_nor_worker_is_reported(connect, status):
    with connect("http://one", transport=Scripted(httpx.Response(status, html="<h1>Sign in</h1>"))) as client:
        problem = raised(Problem, lambda: client.get("s", "a", timeout_ms=100))
    assert problem.document()["status"] == status
    assert "http://one/v1/stores/s/keys/a" in problem.detail


def test_the_next_server_gets_the_time_that_is_left():
    now = 0.0
    exchange = Exchange(["http://one", "http://two"], 1000, clock=lambda: now)
    plan = exchange.ask(anything({"max_record_lag": 0}), exchange.deadline())
    step = plan.send(None)
    assert isinstance(step, Send)
    # One that accepts connections and never answers must leave the other some time.
    assert step.url == "http://one/x?max_record_lag=0&timeout_ms=500"
    assert (step.timeout.connect, step.timeout.read) == (pytest.approx(1 / 3), 0.6)
    now = 0.25
    step = plan.send(httpx.ConnectTimeout("no answer"))
    assert isinstance(step, Send)
    assert step.url == "http://two/x?max_record_lag=0&timeout_ms=750"
    step = plan.send(refusal(errors.NotReady("Soon.", retry_after_s=0)))
    assert isinstance(step, Send)
    assert step.url == "http://one/x?max_record_lag=0&timeout_ms=750"
    assert plan.send(refusal(errors.NotReady("Soon.", retry_after_s=0))) == Pause(0.1)
    now = 0.5
    step = plan.send(None)
    assert isinstance(step, Send)
    assert step.url == "http://two/x?max_record_lag=0&timeout_ms=250"
    now = 1.0
    with pytest.raises(errors.DeadlineExceeded):
        plan.send(httpx.ReadTimeout("no answer"))


@pytest.mark.parametrize(
    "urls", ["127.0.0.1:8080", "ftp://one", "http://", "http://one:65536", "http://one:0", []]
)
def test_what_is_no_url_is_refused(urls):
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="URL"):
            kind(urls)


# Stores, metadata, lags


class FirstPartition:
    """A partitioner of one's own."""

    def partition(self, key: bytes, partitions: int) -> int:
        return 0


def test_lookups_of_the_metadata_agree_with_who_answers(served, client):
    cluster, _ = served
    stores = client.stores()
    assert stores.keys() == cluster.topology.stores.keys()
    assert stores["names"] == cluster.topology.stores["names"]
    metadata = client.metadata()
    assert {str(host.host) for host in metadata.all_metadata()} == set(cluster.workers)
    assert metadata.all_metadata_for_store("names")
    found = metadata.query_metadata_for_key("names", "k0007")
    answer = client.get("names", "k0007", require_active=True)
    assert (str(found.active_host), found.partition) == (answer.host, answer.partition)
    assert metadata.metadata_for_key("names", "k0007").host == found.active_host
    assert [one.host for one in metadata.standby_metadata_for_key("names", "k0007")] == list(found.standby_hosts)
    assert metadata.query_metadata_for_key("names", "k0007", FirstPartition()).partition == 0
    # By a serializer of one's own.
    assert metadata.key_query_metadata("names", b"k0007") == found
    raised(errors.UnknownStore, lambda: metadata.all_metadata_for_store("nope"))


def test_lags_are_those_of_every_replica_or_of_one_stores(served, client):
    cluster, _ = served
    spec = cluster.topology.stores["names"]
    of_names = client.lags("names")
    assert sorted((row.partition, row.role) for row in of_names) == sorted(
        (partition, role) for partition in range(spec.partitions) for role in ("active", "standby")
    )
    assert {row.store for row in client.lags()} == cluster.topology.stores.keys()
    for row in of_names:
        assert (row.lag.record_lag, row.failure, row.host in cluster.workers) == (0, None, True)
        assert row.end_offset > 0
    raised(errors.UnknownStore, lambda: client.lags("nope"))


def test_both_clients_take_the_same():
    for blocking, awaiting in ((Client, AsyncClient), (Session, AsyncSession)):
        for name, method in inspect.getmembers(blocking, inspect.isfunction):
            if not name.startswith("_") and name != "close":
                theirs = inspect.signature(getattr(awaiting, name)).parameters
                assert str(inspect.signature(method).parameters) == str(theirs), name


# Changes


def cluster_has_no(router: str, key: str) -> bool:
    return httpx.get(f"http://{router}/v1/stores/names/keys/{key}").status_code == 404


def test_a_key_is_followed_from_value_to_value(served, client):
    cluster, _ = served
    cluster.put("names", {b"followed": None})
    wait_until(lambda: cluster_has_no(served[1], "followed"), "the key being gone")
    with client.changes("names", "followed") as changes:
        assert changes.lag == UNKNOWN_LAG
        absent = next(changes)
        assert isinstance(absent, errors.UnknownKey)
        assert absent.lag.record_lag is not None
        cluster.put("names", {b"followed": b"1"})
        first = next(changes)
        assert isinstance(first, Answer)
        assert (first.key, first.value) == ("followed", 1)
        cluster.put("names", {b"followed": b"2"})
        assert next(changes).value == 2
        assert changes.lag.record_lag is not None


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if key])
def test_any_key_but_the_empty_can_be_followed(client, key):
    with client.changes("names", key) as changes:
        assert next(changes).value == "odd"


def test_what_cannot_be_followed_is_refused_at_once(client):
    raised(errors.BadKey, lambda: next(client.changes("names", "")))
    raised(errors.BadKey, lambda: next(client.changes("numbers", "seven")))
    raised(errors.WrongStoreKind, lambda: next(client.changes("hours", "jfk")))
    raised(errors.UnknownStore, lambda: next(client.changes("none", "a")))
    raised(errors.BadParameter, lambda: next(client.changes("names", "a", lag_interval_ms=1)))
    with pytest.raises(TypeError, match="max_lag"):
        client.changes("names", "a", max_lag=0)


def test_lag_between_changes_is_sent_on_request(served, client):
    with client.changes("numbers", 7, lag_interval_ms=100) as changes:
        assert next(changes).value == 7
        reported = next(changes)
        assert isinstance(reported, ReplicaInfo)
        assert reported.host in served[0].workers
        assert changes.lag == reported.lag


def test_unmet_bound_is_a_problem_among_changes(client):
    """The stream goes on."""
    with client.changes("names", "k0001", max_age_ms=0, timeout_ms=1_000) as changes:
        for _ in range(2):
            assert isinstance(next(changes), errors.LagExceedsTolerance)


def test_session_changes_start_at_its_position(client):
    """Later reads of the session are no older than the changes it followed."""
    session = client.session()
    seen = session.get("names", "k0003").position
    with session.changes("names", "k0003") as changes:
        first = next(changes)
    assert decode_position(first.position).at_least(decode_position(seen))
    assert decode_position(session.position("names")).at_least(decode_position(first.position))
    ahead = decode_position(seen)
    unreached = encode_position(Position(ahead.log, {p: offset + 1000 for p, offset in ahead.offsets.items()}))
    session.read_after("names", unreached)
    with session.changes("names", "k0003", timeout_ms=1_000) as changes:
        assert isinstance(next(changes), errors.PositionNotReached)


@pytest.mark.chaos
def test_changes_survive_their_servers_end(tmp_path, connect):
    """A loss of all workers is reported as a problem and the stream continues once there is one."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"0"})
        cluster.start_workers(2)
        routers = [cluster.start_router() for _ in range(2)]
        cluster.wait_settled(routers[0])
        with connect(*routers, timeout_ms=2000) as client, client.changes("counts", "k") as changes:
            assert next(changes).value == 0
            end(cluster, routers[0])
            cluster.put("counts", {b"k": b"1"})
            assert until(changes, lambda change: isinstance(change, Answer) and change.value == 1)
            end(cluster, routers[1])
            # No worker is left: that is reported, not raised, and the stream continues once there is one.
            assert until(changes, lambda change: isinstance(change, errors.NoReplica))


def end(cluster: Cluster, router: str) -> None:
    cluster._routers[router].kill()
    cluster._routers[router].wait()


def until(changes: Any, condition: Callable[[Any], bool]) -> Any:
    return next(change for change in changes if condition(change))


def test_rejecting_server_stays_last_after_an_older_call():
    """A server that rejected one call is not first again because it answers a call from before."""
    exchange = Exchange(["http://one", "http://two"], 1_000, lambda: 0.0)
    before, refused = (exchange.ask(anything({}), exchange.deadline()) for _ in range(2))
    assert next(before).url == next(refused).url == "http://one/x?timeout_ms=500"
    assert refused.send(refusal(errors.NotReady("Draining."))).url.startswith("http://two/")
    with pytest.raises(StopIteration):
        before.send(httpx.Response(200, json=ANSWER))
    assert next(exchange.ask(anything({}), exchange.deadline())).url.startswith("http://two/")


def test_late_stream_end_turns_to_the_known_next_server():
    """A stream whose server rejected another call meanwhile does not move on to a third server."""
    exchange = Exchange(["http://one", "http://two", "http://three"], 1_000, lambda: 0.0)
    reads = ClientReads(exchange, {"s": StoreSpec.from_document(STORE)})
    following = Following(reads, ChangesRequest("s", "k", None, {}))
    plan = following._next_change()
    assert next(plan).url.startswith("http://one/")
    stream = httpx.Response(
        200, headers={"content-type": "text/event-stream"}, request=httpx.Request("GET", "http://one")
    )
    stream.request.extensions["timeout"] = {}
    assert isinstance(plan.send(Opened(stream, None)), Receive)
    other = exchange.ask(anything({}), exchange.deadline())
    next(other)
    other.send(refusal(errors.NotReady("Draining.")))
    assert isinstance(plan.send(b""), Close)
    assert isinstance(plan.send(None), Pause)
    assert plan.send(None).url.startswith("http://two/")


def test_hanging_server_leaves_time_to_begin_a_stream(served, connect):
    """Another server gets the rest of the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        address = "{}:{}".format(*hangs.getsockname())
        with (
            connect(address, served[1]) as client,
            client.changes("names", "k0001", timeout_ms=2_000) as changes,
        ):
            assert next(changes).value == 1


@pytest.mark.parametrize("response", [{"json": {"status": "ok"}}, {"html": "<h1>Sign in</h1>"}])
def test_what_answers_no_stream_of_events_is_reported(connect, response):
    with (
        connect("http://one", transport=Scripted(httpx.Response(200, **response))) as client,
        client.changes("s", "k") as changes,
    ):
        problem = raised(Problem, lambda: next(changes))
    assert "http://one/v1/stores/s/keys/k/changes" in problem.detail


def test_a_json_object_that_is_no_answer_is_reported(connect):
    external = [httpx.Response(200, json={"status": "ok"}) for _ in range(4)]
    with connect("http://one", transport=Scripted(*external)) as client:
        for call in (
            lambda: client.get("s", "k"),
            lambda: client.get("s", ""),
            lambda: client.get_many("s", ["k"]),
            lambda: list(client.entries("s")),
        ):
            assert "neither a router nor a worker" in raised(Problem, call).detail


def test_undecodable_body_is_a_failed_attempt(connect):
    garbled = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))
    script = Scripted(garbled, httpx.Response(200, json=ANSWER))
    with connect("http://one", "http://two", transport=script) as client:
        assert client.get("s", "a").value == 1


def test_close_ends_changes_in_another_thread(served):
    client = Client(f"http://{served[1]}")
    changes = client.changes("names", "k0001")
    assert next(changes).value == 1
    with ThreadPoolExecutor(1) as thread:
        rest = thread.submit(list, changes)
        client.close()
        assert rest.result(timeout=30) == []


async def test_close_ends_changes_in_another_task(served):
    client = AsyncClient(f"http://{served[1]}")
    changes = client.changes("names", "k0001")
    assert (await anext(changes)).value == 1
    rest = asyncio.ensure_future(anext(changes, None))
    await asyncio.sleep(0)
    await client.aclose()
    assert await asyncio.wait_for(rest, 30) is None


async def test_a_read_waits_for_no_other_of_its_client():
    readers, all_there = 120, asyncio.Event()
    requested: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append(await reader.readuntil(b"\r\n\r\n"))
        if len(requested) == readers:
            all_there.set()
        await all_there.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=readers)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connections = AsyncConnections()
    http = (await connections.of_loop()).http
    async with server, contextlib.aclosing(connections):
        answers = await asyncio.gather(*(http.get(url, timeout=10) for _ in range(readers)))
    assert [one.status_code for one in answers] == [200] * readers


@contextmanager
def tls_in_front(address: str, certificate: trustme.LeafCert) -> Iterator[str]:
    """The URL of a proxy that terminates TLS for a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    host, port = address.split(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        async with server:
            await asyncio.to_thread(ended.wait)

    ports: list[int] = []
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: ports, "the proxy")
        yield f"https://127.0.0.1:{ports[0]}"
    finally:
        ended.set()
        thread.join(20)


def test_client_trusts_only_the_given_authorities(served, connect):
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with tls_in_front(served[1], authority.issue_cert("127.0.0.1")) as url:
        with connect(url, verify=trusting) as client:
            assert client.get("names", "k0007").value == 7
        with connect(url, timeout_ms=500) as client:
            problem = raised(errors.NoReplica, lambda: client.get("names", "k0007"))
    assert "CERTIFICATE_VERIFY_FAILED" in str(problem)


def test_a_certificate_is_of_the_name_without_its_final_dot(connect, monkeypatch):
    authority, trusting, of_system = trustme.CA(), ssl.create_default_context(), socket.getaddrinfo
    authority.configure_trust(trusting)
    names = ("router.invalid.", b"router.invalid.")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **given: of_system("127.0.0.1" if host in names else host, *rest, **given),
    )
    with (
        answering_server() as server,
        tls_in_front(server.url.removeprefix("http://"), authority.issue_cert("router.invalid")) as url,
        connect(url.replace("127.0.0.1", "router.invalid."), verify=trusting) as client,
    ):
        assert client.get("s", "a").value == "a"


async def test_reads_that_are_cancelled_keep_no_connection(served):
    async with AsyncClient(f"http://{served[1]}") as client:
        pool = (await client._driver.connections.of_loop()).http._transport._pool

        async def read(within_s: float) -> bool:
            try:
                async with asyncio.timeout(within_s):
                    await client.get("names", "k0007")
            except TimeoutError:
                return False
            return True

        done = [
            one
            for _ in range(15)
            for one in await asyncio.gather(*(read(0.002 * number) for number in range(1, 31)))
        ]
        assert not all(done)
        until = time.monotonic() + 10
        while any(not connection.is_idle() for connection in pool.connections):
            assert time.monotonic() < until, pool.connections
            await asyncio.sleep(0.01)
        assert await read(10)
