"""Clients that were used before a ``fork()``, in several event loops and threads, and after they were closed."""

import asyncio
import gc
import json
import os
import pickle
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pyspark import cloudpickle

from forebay.client import Answer, AsyncClient, Client
from forebay.errors import ClientUnusable
from tests.support.answering_server import AnsweringServer, answering_server
from tests.support.cluster import Cluster, running_cluster, wait_until

NAMES = [f"k{number}" for number in range(200)]


class Child:
    """A forked process that calls a function, which returns what JSON can hold."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._reading, writing = os.pipe()
        # What other tests have left, such as clients of Kafka, is not for a child to end.
        gc.collect()
        gc.freeze()
        self._pid = os.fork()
        if self._pid:
            gc.unfreeze()
            os.close(writing)
            return
        # One that hangs ends, and has returned nothing.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        result: Any = None
        try:
            result = call()
        except BaseException as error:
            result = repr(error)
        finally:
            gc.collect()
            os.write(writing, json.dumps(result).encode())
            os._exit(0)

    def result(self) -> Any:
        with os.fdopen(self._reading, "rb") as pipe:
            returned = pipe.read()
        assert os.waitpid(self._pid, 0) == (self._pid, 0)
        return json.loads(returned)


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering_server() as server:
        yield server


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("processes")) as cluster:
        cluster.put("counts", {name.encode(): b'"%b"' % name.encode() for name in NAMES})
        yield cluster, cluster.start_worker()


# Pickled


def read_in_spark(read: Callable[[Any], Any]) -> list[Any]:
    """What a function finds that Spark sends to a Python process that it did not fork from this one."""
    pickled = cloudpickle.dumps(read)
    code = "import json, pickle, sys; print(json.dumps(pickle.load(sys.stdin.buffer)(['a', 'b'])))"
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, timeout=60, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_pickled_client_connects_in_the_other_process(worker):
    url = f"http://{worker[1]}"
    with Client([url], timeout_ms=30_000) as client:
        assert client.get("counts", "k1").value == "k1"
        assert read_in_spark(lambda keys: [client.get("counts", "k1").value, *keys]) == ["k1", "a", "b"]
    several = AsyncClient((url, url))

    async def read() -> list[Any]:
        async with several:
            return [(await several.get("counts", "k2")).value]

    assert read_in_spark(lambda _: asyncio.run(read())) == ["k2"]


def test_a_pickled_client_keeps_its_arguments(server):
    with Client(server.url, token="secret", timeout_ms=77) as client:
        again = pickle.loads(pickle.dumps(client))
    with again:
        assert again._arguments == client._arguments
        assert again.get("s", "a").value == "a"


@pytest.mark.parametrize(
    "own",
    [{"verify": ssl.create_default_context()}, {"transport": httpx.MockTransport(lambda _: httpx.Response(200))}],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_cannot_leave_the_process_says_so(server, kind, own):
    with pytest.raises(ClientUnusable, match="Make it in the process that reads"):
        pickle.dumps(kind(server.url, **own))


# Forked


def test_no_process_reads_what_another_requested(worker):
    with Client(f"http://{worker[1]}") as client:

        def read_all() -> bool:
            session = client.session()
            found = [session.get("counts", name) for name in NAMES]
            found += [one for one in client.get_many("counts", NAMES) if isinstance(one, Answer)]
            listed = [(one.key, one.value) for one in session.entries("counts", page_size=50)]
            assert listed == [(name, name) for name in sorted(NAMES)]
            return [(one.key, one.value) for one in found] == [(name, name) for name in NAMES] * 2

        assert read_all()
        children = [Child(read_all) for _ in range(3)]
        assert read_all()
        assert [child.result() for child in children] == [True] * 3
        assert read_all()


def test_forked_process_opens_its_own_connections(server):
    """The parent's connections are left alone."""
    with Client(server.url) as client:
        connection = client.get("s", "a").host

        def read() -> str:
            with client:
                return client.get("s", "b").host

        hosts = {Child(read).result() for _ in range(2)}
        assert len(hosts) == 2
        assert all(host.isdigit() for host in hosts)
        assert connection not in hosts
        assert client.get("s", "a").host == connection


def test_forked_process_opens_its_own_async_connections(server):
    async def read(client: AsyncClient) -> str:
        return (await client.get("s", "b")).host

    async def whole() -> None:
        async with AsyncClient(server.url) as client, client.changes("s", "a") as changes:
            seen = await anext(changes)
            connection = await read(client)
            hosts = {await asyncio.to_thread(in_child, client) for _ in range(2)}
            assert len(hosts) == 2
            assert all(host.isdigit() for host in hosts)
            assert not hosts & {connection, seen.host}
            # Its own, or another, if the children took longer than an idle one is kept.
            assert await read(client) not in hosts

    def in_child(client: AsyncClient) -> str:
        return str(Child(lambda: asyncio.run(read(client))).result())

    asyncio.run(whole())


def test_stream_goes_on_and_reconnects_in_a_child(worker):
    """A stream goes on in its own process and is connected anew in a forked one."""
    cluster, address = worker
    cluster.put("counts", {b"followed": b"1"})
    with Client(f"http://{address}") as client, client.changes("counts", "followed") as changes:
        assert next(value for value in changes).value == 1
        first_seen, go_on = os.pipe()

        def follow() -> list[int]:
            here = next(changes).value
            os.write(go_on, b"!")
            return [here, next(changes).value]

        child = Child(follow)
        assert os.read(first_seen, 1) == b"!"
        cluster.put("counts", {b"followed": b"2"})
        assert next(changes).value == 2
        assert child.result() == [1, 2]
        cluster.put("counts", {b"followed": b"3"})
        assert next(changes).value == 3
        os.close(first_seen)
        os.close(go_on)


def test_an_asynchronous_stream_is_connected_anew_in_a_child(server):
    async def whole() -> None:
        async with AsyncClient(server.url) as client, client.changes("s", "a") as changes:
            here = await anext(changes)

            async def follow() -> str:
                return (await anext(changes)).host

            there = await asyncio.to_thread(lambda: Child(lambda: asyncio.run(follow())).result())
            assert there.isdigit()
            assert there != here.host

    asyncio.run(whole())


def test_a_child_waits_for_no_thread_that_it_does_not_have(server):
    """A thread of the parent waits for a change, another holds a session's positions and the client's locks."""
    with Client(server.url) as client:
        changes, session = client.changes("s", "a"), client.session()
        next(changes)
        waiting = threading.Thread(target=lambda: list(changes))
        waiting.start()
        wait_until(changes._taking.locked, "the wait for a change")

        def use_all() -> list[str]:
            changes.close()
            return [session.get("s", "b").key, client.get("s", "c").key]

        with session._positions._lock, client._driver._lock, client._driver.connections._lock:
            child = Child(use_all)
        assert child.result() == ["b", "c"]
        changes.close()
        waiting.join()


def test_custom_transport_belongs_to_its_process():
    """A forked process is refused and should make a client of its own."""
    transport = httpx.HTTPTransport()
    with Client("http://127.0.0.1:1", transport=transport) as client:
        assert "a client in this process" in Child(lambda: client.get("s", "a")).result()


# Event loops and threads


def test_each_event_loop_has_its_own_connections(server):
    """The connections end with their event loop."""
    client = AsyncClient(server.url)

    async def read() -> tuple[str, str]:
        first, second = await client.get("s", "a"), await client.get("s", "b")
        return first.host, second.host

    hosts = [asyncio.run(read()) for _ in range(3)]
    assert len(set(hosts)) == 3
    assert [first for first, _ in hosts] == [second for _, second in hosts]
    asyncio.run(client.aclose())
    wait_until(lambda: server.connections == 0, "the connections' ends")


def test_threads_event_loops_share_an_async_client(server):
    """Event loops in several threads share a client, a session and a list."""
    client = AsyncClient(server.url)
    session = client.session()

    async def read(name: str) -> list[str]:
        reads = [session.get("s", f"{name}{number}") for number in range(20)]
        singles = [one.key for one in await asyncio.gather(*reads)]
        return singles + [one.key for one in await client.get_many("s", [name]) if isinstance(one, Answer)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: asyncio.run(read(name)), "abcd", timeout=30))
    assert found == [[*(f"{name}{number}" for number in range(20)), name] for name in "abcd"]
    asyncio.run(client.aclose())


def test_a_stream_that_another_loop_continues_is_connected_anew(server):
    client = AsyncClient(server.url)
    changes = client.changes("s", "a")

    async def follow() -> str:
        change = await anext(changes)
        assert isinstance(change, Answer)
        return change.host

    # The first loop has ended, the second one goes on.
    hosts = [asyncio.run(follow())]
    with asyncio.Runner() as other:
        hosts += [other.run(follow()), asyncio.run(follow())]
        assert len(set(hosts)) == 3
        asyncio.run(client.aclose())
    wait_until(lambda: server.connections == 0, "the connections' ends")


def test_closing_a_client_closes_its_connections_in_other_loops(server):
    client = AsyncClient(server.url)
    reading, closed = threading.Event(), threading.Event()

    async def read_and_stay() -> None:
        await client.get("s", "a")
        reading.set()
        await asyncio.to_thread(closed.wait)

    thread = threading.Thread(target=lambda: asyncio.run(read_and_stay()))
    thread.start()
    try:
        assert reading.wait(20)
        asyncio.run(client.aclose())
        wait_until(lambda: server.connections == 0, "the connection's end")
    finally:
        closed.set()
        thread.join()


def test_a_client_that_was_closed_says_so(server):
    blocking = Client(server.url)
    session, items, changes = blocking.session(), blocking.entries("s"), blocking.changes("s", "a")
    blocking.close()
    blocking.close()
    for call in (lambda: session.get("s", "a"), lambda: next(items), lambda: blocking.get_many("s", ["a"])):
        with pytest.raises(ClientUnusable, match="was closed"):
            call()
    assert list(changes) == []

    async def whole() -> None:
        client = AsyncClient(server.url)
        await client.get("s", "a")
        await client.aclose()
        await client.aclose()
        with pytest.raises(ClientUnusable, match="was closed"):
            await client.get("s", "a")

    asyncio.run(whole())


def test_async_transport_belongs_to_its_first_event_loop(server):
    client = AsyncClient(server.url, transport=httpx.AsyncHTTPTransport())

    async def read() -> str:
        return str((await client.get("s", "a")).key)

    with asyncio.Runner() as runner:
        assert runner.run(read()) == "a"
        with pytest.raises(ClientUnusable, match="Make a client in this event loop"):
            asyncio.run(read())
        runner.run(client.aclose())


def test_async_client_requires_an_event_loop(server):
    reading = AsyncClient(server.url).get("s", "a")
    with pytest.raises(ClientUnusable, match="asyncio"):
        reading.send(None)
