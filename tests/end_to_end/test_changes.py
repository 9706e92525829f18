"""Streams of a key's changes, from workers and through routers, over real connections."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from forebay.client import Answer, Client
from forebay.position import Position, decode_position, encode_position
from forebay.wire.server_sent_events import Event, EventReader
from tests.support.cluster import Cluster, free_port, heed_interrupts, running_cluster, wait_until

PROBLEM = "urn:forebay:problem:"


class Follower:
    """Reads one stream in a thread, and keeps every event."""

    def __init__(
        self, address: str, key: str, store: str = "counts", *, seen: str = "", **parameters: Any
    ) -> None:
        self.events: list[Event] = []
        self.received = bytearray()
        self.status = 0
        self.headers = httpx.Headers()
        self.ended = threading.Event()
        self._url = f"http://{address}/v1/stores/{store}/keys/{quote(key, safe='')}/changes"
        self._parameters = parameters
        self._seen = {"last-event-id": seen} if seen else {}
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._thread.join()

    def _run(self) -> None:
        reader = EventReader()
        timeout = httpx.Timeout(30, read=30)
        try:
            with httpx.stream(
                "GET", self._url, params=self._parameters, headers=self._seen, timeout=timeout
            ) as response:
                self.status, self.headers = response.status_code, response.headers
                for piece in response.iter_raw():
                    self.received += piece
                    self.events += reader.feed(piece)
                    if self.ended.is_set():
                        return
        except httpx.TransportError:
            pass
        self.ended.set()

    @property
    def values(self) -> list[Any]:
        """The values as they came, None for absence."""
        return [document(event).get("value") for event in self.events if event.name in ("value", "absent")]

    @property
    def offsets(self) -> list[int]:
        return [
            offset for event in self.events if event.id for offset in decode_position(event.id).offsets.values()
        ]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [document(event) for event in self.events if event.name == name]

    def wait_for(self, condition: Callable[["Follower"], Any], what: str) -> None:
        wait_until(lambda: condition(self), f"{what} (events: {self.events})")

    def wait_for_value(self, value: Any) -> None:
        self.wait_for(lambda f: f.values and f.values[-1] == value, f"the value {value!r}")


def document(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.data)
    return found


def follow(address: str, key: str, **options: Any) -> Follower:
    # Lag events come often, so that a stream that a test has finished with ends soon.
    return Follower(address, key, **{"lag_interval_ms": 100, **options})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("changes")) as cluster:
        cluster.put("counts", {b"k": b"1"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router


@pytest.fixture(params=["worker", "router"])
def tier(request: pytest.FixtureRequest, served: tuple[Cluster, str]) -> Callable[[str], str]:
    """The address to ask for a key: its active, or the router."""
    cluster, router = served

    def address(key: str) -> str:
        return router if request.param == "router" else active(cluster, router, key)

    return address


def active(cluster: Cluster, router: str, key: str) -> str:
    segment = quote(key, safe="")
    wait_until(lambda: cluster.active_for(router, "counts", segment), "an active")
    found = cluster.active_for(router, "counts", segment)
    assert found is not None
    return found


def test_the_value_now_then_each_that_it_becomes(served, tier):
    cluster, _ = served
    cluster.put("counts", {b"k": b"1"})
    with follow(tier("k"), "k") as stream:
        stream.wait_for_value(1)
        cluster.put("counts", {b"k": b'{"flights": 2}'})
        stream.wait_for_value({"flights": 2})
    first = stream.named("value")[0]
    read = httpx.get(f"http://{tier('k')}/v1/stores/counts/keys/k").json()
    assert list(first) == list(read)
    assert first["position"] == stream.events[0].id
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.received.startswith(b"retry: ")


def test_absence_a_value_and_a_tombstone(served, tier):
    cluster, _ = served
    cluster.put("counts", {b"gone": None})
    with follow(tier("gone"), "gone") as stream:
        stream.wait_for_value(None)
        cluster.put("counts", {b"gone": b"5"})
        stream.wait_for_value(5)
        cluster.put("counts", {b"gone": None})
        stream.wait_for_value(None)
    assert [event.name for event in stream.events if event.name != "lag"] == ["absent", "value", "absent"]
    assert "value" not in stream.named("absent")[0]
    assert "type" not in stream.named("absent")[0]


def test_what_does_not_change_the_value_is_not_sent_and_lag_is(served, tier):
    cluster, _ = served
    cluster.put("counts", {b"same": b"7"})
    with follow(tier("same"), "same") as stream:
        stream.wait_for_value(7)
        cluster.put("counts", {b"same": b"7"})
        reported = len(stream.named("lag"))
        stream.wait_for(lambda f: len(f.named("lag")) > reported + 2, "more lag events")
    # Where the stream began before the first write was applied, absence came first.
    assert stream.values.count(7) == 1
    assert stream.named("lag")[-1]["lag"].keys() == {"record_lag", "time_lag_ms", "age_ms"}
    assert stream.named("lag")[-1]["host"] in cluster.workers
    # Its position is the one read since: a client that reconnects with it sees the write that changed nothing.
    assert stream.offsets[-1] > stream.offsets[0]


def test_change_wakes_a_stream_between_lag_events(served, tier):
    cluster, _ = served
    cluster.put("counts", {b"slow": b"1"})
    with follow(tier("slow"), "slow", lag_interval_ms=3_600_000) as stream:
        stream.wait_for_value(1)
        cluster.put("counts", {b"slow": b"2", b"other": b"2"})
        stream.wait_for_value(2)
        stream.ended.set()
        cluster.put("counts", {b"slow": b"3"})


@pytest.mark.parametrize("key", ["a/b", "%2F", "a+b", "é", "日本", "?", "#", "changes", "'\"\\", "a\nb"])
def test_any_key_can_be_followed(served, tier, key):
    cluster, _ = served
    cluster.put("counts", {key.encode(): b'"odd"'})
    with follow(tier(key), key) as stream:
        stream.wait_for_value("odd")
    assert stream.named("value")[0]["key"] == key


def test_a_value_on_several_lines_arrives_whole(served, tier):
    cluster, _ = served
    cluster.put("counts", {b"lines": b'{\n "a":\r\n 1}'})
    with follow(tier("lines"), "lines") as stream:
        stream.wait_for_value({"a": 1})


def test_a_versioned_store_has_a_value_to_follow(tmp_path):
    topology = """
        application_id = "test"
        [[subtopology]]
        name = "prices"
        partitions = 1
        [[subtopology.store]]
        name = "prices"
        kind = "versioned"
        history_retention_ms = 1000000
    """
    with running_cluster(tmp_path, topology_text=topology) as cluster:
        cluster.put("prices", {b"tea": b"1"})
        worker = cluster.start_worker()
        with follow(worker, "tea", store="prices") as stream:
            stream.wait_for_value(1)
            cluster.put("prices", {b"tea": b"2"})
            stream.wait_for_value(2)


def test_reconnect_to_any_replica_never_goes_back(served):
    """A replica that is behind the event id reports `position-not-reached`."""
    cluster, router = served
    cluster.put("counts", {b"k": b"10"})
    with follow(router, "k") as stream:
        stream.wait_for_value(10)
    seen = stream.events[-1].id
    position = decode_position(seen)
    ((partition, offset),) = position.offsets.items()
    unseen = encode_position(Position(position.log, {partition: offset + 1_000}))
    for address in cluster.workers:
        with follow(address, "k", seen=seen, wait_ms=1000) as stream:
            stream.wait_for_value(10)
        assert min(stream.offsets) >= offset
        # The replica does not pretend to have what it has not read yet.
        with follow(address, "k", seen=unseen) as refused:
            refused.wait_for(lambda f: f.ended.is_set(), "the end")
        assert [event.name for event in refused.events] == ["problem"]
        assert refused.named("problem")[0]["type"] == PROBLEM + "position-not-reached"
        with follow(address, "k", min_position=unseen) as refused:
            refused.wait_for(lambda f: f.ended.is_set(), "the end")
        assert refused.named("problem")[0]["type"] == PROBLEM + "position-not-reached"


@pytest.mark.parametrize(
    ("path", "status", "problem", "names"),
    [
        ("hours/keys/a/changes", 409, "wrong-store-kind", "hours"),
        ("numbers/keys/seven/changes", 400, "bad-key", "seven"),
        ("none/keys/a/changes", 404, "unknown-store", "none"),
        ("counts/keys/a/changes?as_of=1", 400, "bad-parameter", "as_of"),
        ("counts/keys/a/changes?lag_interval_ms=1", 400, "bad-parameter", "lag_interval_ms"),
        ("counts/keys/a/changes?min_position=x", 400, "bad-parameter", "x"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_status(tier, path, status, problem, names):
    answer = httpx.get(f"http://{tier('a')}/v1/stores/{path}")
    assert (answer.status_code, answer.json()["type"]) == (status, PROBLEM + problem)
    assert names in answer.json()["detail"]


@pytest.mark.parametrize("seen", ["7", "of another service", "A" * 5_000, "%C3%BC"])
def test_an_id_of_no_event_begins_anew(served, tier, seen):
    """An EventSource would give up on an error, and send the same id again."""
    cluster, _ = served
    cluster.put("counts", {b"k": b"12"})
    with follow(tier("k"), "k", seen=seen) as stream:
        stream.wait_for(lambda f: f.events, "the value")
    assert stream.events[0].name == "value"


def test_unmet_tolerance_ends_a_workers_stream(served):
    """A router reports the problem and the stream goes on."""
    cluster, router = served
    cluster.put("counts", {b"k": b"11"})
    with follow(active(cluster, router, "k"), "k", max_age_ms=0) as stream:
        stream.wait_for(lambda f: f.ended.is_set(), "the end")
    assert [event.name for event in stream.events] == ["problem"]
    assert stream.named("problem")[0]["type"] == PROBLEM + "lag-exceeds-tolerance"
    assert stream.named("problem")[0]["lag"]["record_lag"] is not None
    with follow(router, "k", max_age_ms=0, timeout_ms=100) as stream:
        stream.wait_for(lambda f: len(f.events) >= 2, "two problems")
        assert not stream.ended.is_set()
    assert {event.name for event in stream.events} == {"problem"}
    assert len(stream.named("problem")[0]["attempts"]) == 2


def test_a_tolerance_is_held_while_the_stream_runs(served):
    cluster, router = served
    cluster.put("counts", {b"k": b"12"})
    address = active(cluster, router, "k")
    with follow(address, "k", max_age_ms=1500, wait_ms=1000) as stream:
        stream.wait_for_value(12)
        # No heartbeat follows, so age grows past the bound.
        stream.wait_for(lambda f: f.ended.is_set(), "the end")
    assert stream.named("problem")[0]["type"] == PROBLEM + "lag-exceeds-tolerance"
    assert all(event["lag"]["age_ms"] <= 1500 for event in stream.named("value") + stream.named("lag"))


def test_replaced_log_is_reported_and_followed(tmp_path):
    """A worker's stream ends, a router's goes on with the new log, and the old event id is void."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b'"old"'})
        worker = cluster.start_worker()
        router = cluster.start_router()
        with follow(worker, "k") as direct, follow(router, "k", timeout_ms=200) as stream:
            stream.wait_for_value("old")
            direct.wait_for_value("old")
            cluster.changelog.reset(cluster.topology.stores["counts"])
            cluster.put("counts", {b"k": b'"new"'})
            stream.wait_for_value("new")
            direct.wait_for(lambda f: f.ended.is_set(), "the end")
        assert direct.named("problem")[-1]["type"] == PROBLEM + "log-diverged"
        forgetting = [event for event in stream.events if event.id == ""]
        assert [document(event)["type"] for event in forgetting] == [PROBLEM + "position-of-another-log"]
        old = stream.events[0].id
        # A browser reconnects with what it saw, and without once told to forget it.
        with follow(worker, "k", seen=old) as again:
            again.wait_for(lambda f: f.ended.is_set(), "the end")
        assert [event.id for event in again.events] == [""]
        answer = httpx.get(f"http://{router}/v1/stores/counts/keys/k/changes", params={"min_position": old})
        assert answer.status_code == 409


@pytest.mark.parametrize("tier_name", ["worker", "router"])
def test_more_streams_than_a_process_takes_on_are_refused(tmp_path, tier_name):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        options = ("--max-event-streams", "2")
        worker = cluster.start_worker(None, *(options if tier_name == "worker" else ()))
        address = worker if tier_name == "worker" else cluster.start_router(*options)
        url = f"http://{address}/v1/stores/counts/keys/k/changes"
        with follow(address, "k") as first:
            with follow(address, "k") as second:
                first.wait_for_value(1)
                second.wait_for_value(1)
                refused = httpx.get(url)
                assert refused.status_code == 429
                assert refused.headers["retry-after"] == "1"
                assert "max_event_streams" in refused.json()["detail"]
                assert open_streams(address) == 2
            wait_until(lambda: open_streams(address) == 1, "the end of a stream whose client has gone")
            with follow(address, "k") as third:
                third.wait_for_value(1)
        wait_until(lambda: open_streams(address) == open_streams(worker) == 0, "the end of all streams")


def test_waiting_changes_end_when_another_thread_closes(served):
    _, router = served
    with Client(f"http://{router}") as client:
        changes = client.changes("counts", "nobody")
        with ThreadPoolExecutor() as pool:
            following = pool.submit(list, changes)
            wait_until(lambda: changes.lag.record_lag is not None, "the first event")
            changes.close()
            assert [type(change).__name__ for change in following.result(5)] == ["UnknownKey"]
        assert list(changes) == []
        changes.close()


def test_changes_leave_a_full_router_or_one_without_workers(tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"a": b"1"})
        cluster.start_workers(1)
        full = cluster.start_router("--max-event-streams", "1")
        blind = cluster.start_router("--seeds", f"127.0.0.1:{free_port()}", ready=False)
        well = cluster.start_router()
        cluster.wait_settled(well, replicas=1)
        with follow(full, "a") as first:
            first.wait_for_value(1)
            for bad in (full, blind):
                urls = [f"http://{bad}", f"http://{well}"]
                with Client(urls) as client, client.changes("counts", "a", timeout_ms=1_000) as changes:
                    values = (change for change in changes if isinstance(change, Answer))
                    assert next(values).value == 1


@pytest.mark.parametrize("tier_name", ["worker", "router"])
def test_who_leaves_before_the_first_event_gives_the_place_back(tmp_path, tier_name):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"a": b"1"})
        options = ("--max-event-streams", "2")
        (worker,) = cluster.start_workers(1, *options)
        router = cluster.start_router(*options)
        cluster.wait_settled(router, replicas=1)
        address = worker if tier_name == "worker" else router
        host, port = address.split(":")
        # Nobody meets the bound, which is waited for.
        target = "/v1/stores/counts/keys/a/changes?max_time_lag_ms=0&wait_ms=20000&timeout_ms=20000"
        for _ in range(2):
            with socket.create_connection((host, int(port))) as waiting:
                waiting.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                wait_until(lambda: open_streams(address) == 1, "the stream")
            wait_until(lambda: open_streams(address) == 0, "its place", 5)


def open_streams(address: str) -> int:
    lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    return next(int(float(line.split()[-1])) for line in lines if "event_streams " in line and line[0] != "#")


def test_shutdown_ends_streams_and_routers_move_theirs(tmp_path):
    with running_cluster(tmp_path, worker_options=("--drain-ms", "3000")) as cluster:
        cluster.put("counts", {b"k": b"1"})
        cluster.start_workers(2)
        router = cluster.start_router("--drain-ms", "3000")
        cluster.wait_settled(router)
        leaving = active(cluster, router, "k")
        with follow(router, "k") as stream, follow(leaving, "k") as direct:
            stream.wait_for_value(1)
            direct.wait_for_value(1)
            cluster.workers[leaving].send_signal(signal.SIGTERM)
            direct.wait_for(lambda f: f.ended.is_set(), "the end")
            assert cluster.workers[leaving].poll() is None
            assert direct.named("problem")[-1]["type"] == PROBLEM + "not-ready"
            stream.wait_for(lambda f: f.events[-1].name != "problem" and reported_by(f) != leaving, "another host")
            cluster.put("counts", {b"k": b"2"})
            stream.wait_for_value(2)
            assert stream.named("problem") == []
            # An EventSource that reconnects meanwhile must be told by an event: on a status it would give up.
            with follow(leaving, "k") as late:
                late.wait_for(lambda f: f.ended.is_set(), "the end")
            assert (late.status, [event.name for event in late.events]) == (200, ["problem"])
            cluster._routers[router].send_signal(signal.SIGTERM)
            stream.wait_for(lambda f: f.ended.is_set(), "the end")
        assert stream.named("problem")[-1]["type"] == PROBLEM + "not-ready"


def reported_by(stream: Follower) -> str:
    host: str = document(stream.events[-1])["host"]
    return host


def test_stream_waits_at_a_router_without_workers(cluster):
    """The router reports a problem and serves the value once there is a worker."""
    address = f"127.0.0.1:{free_port()}"
    cluster.workers[address] = None
    router = cluster.start_router(ready=False)
    del cluster.workers[address]
    cluster.put("counts", {b"k": b"1"})
    with follow(router, "k", timeout_ms=100) as stream:
        stream.wait_for(lambda f: f.named("problem"), "a problem")
        cluster.start_worker(address)
        stream.wait_for_value(1)


@pytest.mark.chaos
def test_stream_survives_its_workers_loss(tmp_path):
    """Records are written meanwhile, and values and offsets never go back."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"0"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        with follow(router, "k") as stream:
            stream.wait_for_value(0)
            for round_ in range(1, 3):
                lost = active(cluster, router, "k")
                for n in range(40):
                    cluster.put("counts", {b"k": b"%d" % (round_ * 1000 + n)})
                    if n == 20:
                        cluster.kill(lost)
                stream.wait_for_value(round_ * 1000 + 39)
                cluster.start_worker(lost)
                cluster.wait_settled(router)
        assert stream.values == sorted(stream.values)
        assert stream.offsets == sorted(stream.offsets)


@pytest.mark.chaos
def test_a_stream_leaves_a_worker_that_hangs(tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        hung = active(cluster, router, "k")
        with follow(router, "k") as stream:
            stream.wait_for_value(1)
            cluster.kill(hung, signal.SIGSTOP)
            cluster.put("counts", {b"k": b"2"})
            stream.wait_for_value(2)
            assert reported_by(stream) != hung


@pytest.mark.chaos
async def test_hundreds_of_streams_recover_after_an_outage(tmp_path):
    """All workers were stopped for a while."""
    keys = [f"k{n}" for n in range(300)]
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {key.encode(): b'"before"' for key in keys})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        host, port = router.split(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in keys]

        async def until(reader: asyncio.StreamReader, expected: bytes) -> None:
            while expected not in await reader.readline():
                pass

        async def all_until(expected: bytes) -> None:
            async with asyncio.timeout(60):
                await asyncio.gather(*(until(reader, expected) for reader, _ in streams))

        for key, (_, writer) in zip(keys, streams, strict=True):
            writer.write(f"GET /v1/stores/counts/keys/{key}/changes HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await all_until(b'"value":"before"')
        for worker in cluster.workers.values():
            worker.send_signal(signal.SIGSTOP)
        # Every stream has lost its worker, and found no other.
        await all_until(b"event: problem")
        for worker in cluster.workers.values():
            worker.send_signal(signal.SIGCONT)
        cluster.put("counts", {key.encode(): b'"after"' for key in keys})
        await all_until(b'"value":"after"')
        for _, writer in streams:
            writer.close()


def test_a_hot_key_is_conflated_and_its_last_value_arrives(served):
    cluster, router = served
    begun = time.monotonic()
    with follow(router, "hot") as stream:
        stream.wait_for_value(None)
        for n in range(300):
            cluster.put("counts", {b"hot": b"%d" % n})
        stream.wait_for_value(299)
    assert len(stream.values) <= 20 * (time.monotonic() - begun) + 2
    assert stream.values[1:] == sorted(stream.values[1:])


def test_unread_stream_is_conflated_to_the_newest_value(served):
    """A client that does not read costs no memory."""
    cluster, router = served
    host, port = active(cluster, router, "big").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.settimeout(20)
        cluster.put("counts", {b"big": b'"%b"' % (b"0" * 1_000_000)})
        slow.sendall(b"GET /v1/stores/counts/keys/big/changes HTTP/1.1\r\nhost: localhost\r\n\r\n")
        received = bytearray(slow.recv(100))
        assert received
        with follow(router, "big") as other:
            for n in range(1, 30):
                cluster.put("counts", {b"big": b'"%b"' % (b"%d" % (n % 10) * 1_000_000)})
                # A client that reads nothing at all for ten seconds is dropped.
                received += slow.recv(2_048)
            cluster.put("counts", {b"big": b'"last"'})
            # Parsing thirty megabytes again and again would keep this client from reading.
            wait_until(lambda: any(b'"last"' in event.data[:100] for event in other.events), "the last value")
        # From now on it reads as fast as it can.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        until = time.monotonic() + 60
        while b'"last"' not in received[-2000:]:
            assert time.monotonic() < until
            piece = slow.recv(1 << 20)
            assert piece, "the connection was closed"
            received += piece
    # Of thirty values of a megabyte, those that were on their way and the newest.
    assert len(received) < 10_000_000


def test_streams_may_be_read_by_other_origins(tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        origin = "http://dashboard.example"
        worker = cluster.start_worker(None, "--cors-allow-origins", origin)
        url = f"http://{worker}/v1/stores/counts/keys/k/changes"
        with httpx.stream("GET", url, headers={"origin": origin}) as response:
            assert response.headers["access-control-allow-origin"] == origin


def test_query_follow_prints_each_change(served):
    """It ends when it is interrupted, and prints a problem where the request is refused."""
    cluster, router = served
    cluster.put("numbers", {(7).to_bytes(8, "big"): b"12345678901234567.12"})
    command = [sys.executable, "-m", "forebay", "query", "--follow", "--url", f"http://{router}"]
    with subprocess.Popen(
        [*command, "numbers", "7"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as query:
        try:
            assert query.stdout is not None
            first = query.stdout.readline()
            assert json.loads(first)["key"] == 7
            assert '"value": 12345678901234567.12,' in first
            cluster.put("numbers", {(7).to_bytes(8, "big"): None})
            assert json.loads(query.stdout.readline())["type"] == PROBLEM + "unknown-key"
        finally:
            query.send_signal(signal.SIGINT)
            try:
                query.wait(20)
            except subprocess.TimeoutExpired:
                query.kill()
        assert query.wait() == 0
    refused = subprocess.run(
        [*command, "numbers", "seven"], capture_output=True, text=True, check=False, timeout=30
    )
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["type"] == PROBLEM + "bad-key"
