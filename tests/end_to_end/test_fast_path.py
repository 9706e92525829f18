"""The fast path gives the same bytes as the route behind it, however requests are split and mixed."""

import base64
import itertools
import json
import random
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest

from forebay.position import Position, decode_position, encode_position
from tests.support.cluster import TOPOLOGY, Cluster, running_cluster, wait_until

MORE_STORES = """
[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000

[[subtopology.store]]
name = "raw"
key = "bytes"
value = "bytes"

[[subtopology.store]]
name = "odd"
partitioner = "unknown"
"""
PATHS = [
    "/v1/stores/counts/keys/a",
    "/v1/stores/counts/keys/%C3%A9",
    "/v1/stores/counts/keys/nobody",
    "/v1/stores/counts/keys/%FF",
    "/v1/stores/nope/keys/a",
    "/v1/stores/hours/keys/a",
    "/v1/stores/numbers/keys/-7",
    "/v1/stores/numbers/keys/x",
    "/v1/stores/counts/keys/a?max_record_lag=0",
    "/v1/stores/counts/keys/a?max_age_ms=0",
    "/v1/stores/counts/keys/a?max_record_lag=-1",
    "/v1/stores/counts/keys/a?require_active=true",
    "/v1/stores/counts/keys/a?timeout_ms=500",
    "/v1/stores/counts/keys/a?unknown=1",
    "/v1/stores/counts/keys/a?min_position=zz",
    "/v1/stores/counts/keys/",
    "/v1/stores/counts/keys/a%2Fb",
    "/v1/stores/raw/keys/_wA",
    "/v1/stores/raw/keys/YWJj=",
    "/v1/stores/pairs/keys/%5B%22a%22%2C%201%5D",
    "/v1/stores/pairs/keys/x",
    "/v1/stores/odd/keys/b",
    "/v1/stores/odd/keys/nobody",
]
QUERIES = [
    *("as_of=1500", "as_of=500", "as_of=-1", "as_of=now", "as_of=1500&max_record_lag=0&timeout_ms=500"),
    *(
        "partition=0",
        "partition=9",
        "partition=x",
        "prefer=active",
        "prefer=",
        "require_active",
        "require_active=",
    ),
    *(
        "max_record_lag=",
        "max_record_lag=1&max_record_lag=2",
        "max_record_lag=%31",
        "%6Dax_record_lag=0",
        "&limit=3",
    ),
    *("max_record_lag=+1", "max_record_lag=007", "max_record_lag=1.0", "max_record_lag=99999999999999999999"),
    *(
        "max_time_lag_ms=0",
        "timeout_ms=0",
        "timeout_ms=99999999",
        "wait_ms=0",
        "wait_ms=-1",
        "min_position=",
        "=1",
    ),
]
# Time passes between two answers, and whether the figure has one digit or three is no difference of path.
VARYING = re.compile(
    rb'("(?:time_lag_ms|age_ms)":|its [a-z_]+_ms is |forebay-(?:time-lag|age)-ms: |content-length: )(\d+)'
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, str]]:
    with running_cluster(tmp_path_factory.mktemp("hot"), topology_text=TOPOLOGY + MORE_STORES) as cluster:
        cluster.put("counts", {b"a": b'{"n":1}', "é".encode(): b"2", **{b"k%d" % i: b"%d" % i for i in range(50)}})
        cluster.put("numbers", {(-7).to_bytes(8, "big", signed=True): b"7"})
        cluster.put("pairs", {b'["a",1]': b"1"})
        cluster.put("raw", {b"\xff\x00": b"\xfe"})
        for store, rows in (
            ("odd", [(b"b", b"2", 0)]),
            ("prices", [(b"milk", b"1", 1_000), (b"milk", b"2", 2_000)]),
        ):
            cluster.log.append(cluster.topology.stores[store], {1: rows}, store, 1)
        allowed = ("--cors-allow-origins", "https://a.example")
        (worker,) = cluster.start_workers(1, *allowed)
        router = cluster.start_router(*allowed)
        cluster.wait_settled(router, replicas=1)
        exchange(router, request("/v1/stores/counts/keys/a") * 20, 20)
        yield cluster, worker, router


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def post(path: str, body: str, *headers: str) -> bytes:
    sent = body.encode()
    return (
        "\r\n".join(
            [f"POST {path} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(sent)}", "", ""]
        ).encode()
        + sent
    )


def exchange(address: str, data: bytes | list[bytes], answers: int) -> list[bytes]:
    """Send bytes, in pieces if given so, on one connection, and read this many answers from it."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [data] if isinstance(data, bytes) else data:
            connection.sendall(piece)
        received, found = b"", []
        while len(found) < answers:
            more = connection.recv(65536)
            assert more, f"closed after {len(found)} of {answers} answers: {received!r}"
            received += more
            while (cut := whole_answer(received)) is not None:
                found.append(received[:cut])
                received = received[cut:]
        assert received == b""
        return found


def whole_answer(data: bytes) -> int | None:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = re.search(rb"content-length: (\d+)", data[:end])
    assert length is not None, data[:end]
    size = end + 4 + int(length[1])
    return size if len(data) >= size else None


def steady(answer: bytes) -> bytes:
    return VARYING.sub(rb"\1N", answer)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origin", [[], ["Origin: https://a.example"], ["Origin: https://b.example"]])
def test_the_same_bytes_as_the_route(served, path, origin):
    _, worker, router = served
    for address in (worker, router):
        # A TE header is harmless, and enough to be left to the parser. The heartbeat may fall between the two.
        def same(address: str = address) -> bool:
            (hot,) = exchange(address, request(path, *origin), 1)
            (cold,) = exchange(address, request(path, *origin, "TE: trailers"), 1)
            return steady(hot) == steady(cold)

        wait_until(same, f"the same bytes from {address}", 5)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("key", ["counts/keys/a", "counts/keys/nobody", "numbers/keys/-7", "prices/keys/milk"])
def test_the_same_bytes_whatever_a_parameter_says(served, key, query):
    test_the_same_bytes_as_the_route(served, f"/v1/stores/{key}?{query}", [])


def test_the_version_of_a_time_is_answered_by_either_tier(served):
    _, *addresses = served
    for address in addresses:
        (answer,) = exchange(address, request("/v1/stores/prices/keys/milk?as_of=1500"), 1)
        assert b'"value":1,' in answer


BATCHES = [
    '{"keys": ["a", "é", "nobody", 7, null, "k1", "a"]}',
    '{"keys": []}',
    '{"keys": [NaN]}',
    '{"keys": [1e400]}',
    '{"keys": ["a"], "more": 1}',
    "[" * 5_000,
    "",
    json.dumps({"keys": ["a"] * 501}),
]


@pytest.mark.parametrize("store", ["counts", "numbers", "hours", "nope"])
@pytest.mark.parametrize("query", ["", "?max_record_lag=0", "?max_age_ms=0", "?wait_ms=1", "?unknown=1"])
@pytest.mark.parametrize("origin", [[], ["Origin: https://a.example"]])
def test_the_same_bytes_of_a_batch_as_the_route(served, store, query, origin):
    _, worker, router = served
    path = f"/v1/stores/{store}/batch-get{query}"
    for address in (worker, router):
        for body in BATCHES:

            def same(address: str = address, body: str = body) -> bool:
                (hot,) = exchange(address, post(path, body, *origin), 1)
                (cold,) = exchange(address, post(path, body, *origin, "TE: trailers"), 1)
                return steady(hot) == steady(cold)

            wait_until(same, f"the same bytes from {address} for {body[:20]}", 5)


def test_pipelined_batch_is_answered_in_its_turn(served):
    _, worker, router = served
    batch = post("/v1/stores/counts/batch-get", '{"keys": ["k2", "k3"]}')
    keys = [request(f"/v1/stores/counts/keys/k{n}") for n in range(8)]
    order = [b"k0", b"k1", b"k2", b"k3", b"k4", b"k2", b"k3", b"k5"]
    for address in (worker, router):
        for pieces in (
            [keys[0] + keys[1] + batch + keys[4] + batch + keys[5]],
            [keys[0], keys[1], batch, keys[4], batch, keys[5]],
            [keys[0] + keys[1] + batch[:-5], batch[-5:] + keys[4], batch, keys[5]],
        ):
            found = exchange(address, pieces, 6)
            assert re.findall(rb'"key":"(\w+)"', b"".join(found)) == order


def test_a_target_that_is_not_escaped_is_refused_by_name(served):
    _, worker, router = served
    for address in (worker, router):
        (answer,) = exchange(
            address, "GET /v1/stores/counts/keys/ü HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 1
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"percent-encoded" in answer


def test_an_allowed_origin_may_read_the_lag_and_another_may_not(served):
    _, worker, router = served
    for address in (worker, router):
        for origin, allowed in (("https://a.example", True), ("https://b.example", False)):
            (answer,) = exchange(address, request(PATHS[0], f"Origin: {origin}"), 1)
            assert (f"access-control-allow-origin: {origin}\r\n".encode() in answer) is allowed
            assert b"Forebay-Record-Lag" in answer


def test_what_is_no_http_is_answered_with_a_problem(served):
    _, worker, router = served
    for address in (worker, router):
        (answer,) = exchange(address, b"GET /v1/stores HTTP/9 nonsense\r\n\r\n", 1)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"content-type: application/problem+json\r\n" in answer
        assert b"urn:forebay:problem:bad-request" in answer


def test_a_client_that_closes_its_half_gets_its_answers(served):
    _, worker, router = served
    for address in (worker, router):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(request("/v1/stores/counts/keys/k1") + request("/v1/stores/counts/keys/k2"))
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        assert re.findall(rb'"key":"(\w+)"', received) == [b"k1", b"k2"]


def test_a_client_that_closes_its_half_gets_its_list(served):
    """One that waits for a bound has left, and what it holds is given back."""
    _, worker, router = served
    for address in (worker, router):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(request("/v1/stores/counts/entries"))
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 200")
        assert b'"complete":true' in received
        log, offsets, *_ = decode_position(
            httpx.get(f"http://{address}/v1/stores/counts/keys/k1").json()["position"]
        )
        token = encode_position(Position(log, {partition: offset + 9 for partition, offset in offsets.items()}))
        waits = f"?min_position={token}&wait_ms=20000&timeout_ms=20000"
        body = b'{"keys":["k1"]}'
        head = f"POST /v1/stores/counts/batch-get{waits} HTTP/1.1\r\nHost: localhost\r\n"
        rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        batch = head.encode() + rest
        reads = [request(f"/v1/stores/counts/{what}{waits}") for what in ("keys/k1", "entries")]
        # Requests behind one that waits must not hide that the client has left.
        for waiting, behind in itertools.product([batch, *reads], [b"", request("/v1/stores/counts/entries") * 9]):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(waiting)
                wait_until(lambda at=address: held(at, "waiting") == 1, f"a read that waits at {address}")
                connection.sendall(behind)
            for at in (worker, router):
                wait_until(lambda at=at: held(at, "waiting") == 0, f"its end at {at}", 10)


def held(address: str, what: str) -> float:
    metrics = httpx.get(f"http://{address}/metrics").text
    return float(re.search(rf'^forebay_held\{{what="{what}"\}} (\S+)$', metrics, re.M)[1])


@pytest.mark.parametrize("seed", range(12))
def test_random_pieces_of_mixed_requests_are_answered_in_order(served, seed):
    _, worker, router = served
    chance = random.Random(seed)
    keys = [f"k{chance.randrange(50)}" for _ in range(40)]
    data = b"".join(
        request(f"/v1/stores/counts/keys/{key}", *(["TE: trailers"] if chance.random() < 0.2 else []))
        for key in keys
    )
    cuts = sorted(chance.sample(range(1, len(data)), 15))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for address in (worker, router):
        found = exchange(address, pieces, len(keys))
        assert [re.search(rb'"key":"(\w+)"', answer)[1].decode() for answer in found] == keys


def test_a_lost_worker_costs_the_reads_under_way_nothing(tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        exchange(router, request("/v1/stores/counts/keys/k1") * 20, 20)
        killed = cluster.active_for(router, "counts", "k1")
        host, port = router.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(request("/v1/stores/counts/keys/k1") * 200)
            cluster.kill(killed)
            connection.sendall(request("/v1/stores/counts/keys/k1") * 200)
            received = b""
            while (
                received.count(b"HTTP/1.1 ") < 400
                or whole_answer(received[received.rfind(b"HTTP/1.1 ") :]) is None
            ):
                more = connection.recv(1 << 20)
                assert more
                received += more
        assert received.count(b"HTTP/1.1 200") == 400
        wait_until(lambda: cluster.active_for(router, "counts", "k1") != killed, "a new active")


@pytest.mark.parametrize("deadline", [b"\xb2", b"\xd9\xa3", b"-1", b"1e3", b"9" * 20, b""])
def test_a_deadline_that_is_no_number_is_not_heeded(served, deadline):
    _, worker, router = served
    data = request("/v1/stores/counts/keys/a", "Forebay-Deadline-Ms: ?").replace(b"?", deadline)
    for address in (worker, router):
        (answer,) = exchange(address, data, 1)
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_draining_worker_answers_every_pipelined_read(tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        (worker,) = cluster.start_workers(1, "--drain-ms", "300000", "--shutdown-timeout-ms", "330000")
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        stopping = threading.Event()

        def read() -> Counter[int]:
            seen: Counter[int] = Counter()
            with httpx.Client() as client:
                while not stopping.is_set():
                    answer = client.get(f"http://{router}/v1/stores/counts/keys/k1?require_active=true")
                    seen[answer.status_code] += 1
                    if answer.status_code != 200:
                        print(answer.text)
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            try:
                cluster.workers[worker].send_signal(signal.SIGTERM)
                wait_until(lambda: httpx.get(f"http://{worker}/readyz").status_code == 503, "draining")
                for _ in range(5):
                    # All that happens while it drains.
                    exchange(router, request("/v1/stores/counts/keys/k1") * 50, 50)
            finally:
                stopping.set()
        seen = sum((reader.result() for reader in readers), Counter())
        assert seen.keys() == {200}
        cluster.kill(worker)


def test_a_body_that_is_too_long_is_refused(served):
    _, worker, router = served
    for address in (worker, router):
        body = b'{"keys": ["' + b"x" * (3 << 20) + b'"]}'
        answer = httpx.post(f"http://{address}/v1/stores/counts/batch-get", content=body)
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:forebay:problem:body-too-large"
        assert httpx.get(f"http://{address}/v1/stores/counts/keys/a").status_code == 200


@pytest.mark.parametrize(
    "members", [(b"", 5, ()), (b"", {}, ()), ("", None, ()), (b"", None, 5), (b"", None, (float("inf"),)), ()]
)
def test_a_cursor_that_no_answer_carried_is_refused(served, members):
    _, worker, router = served
    whole = httpx.get(f"http://{worker}/v1/stores/counts/entries?limit=1").json()["next"]
    digest = msgspec.msgpack.decode(base64.urlsafe_b64decode(whole + "=" * (-len(whole) % 4)))[0]
    forged = base64.urlsafe_b64encode(msgspec.msgpack.encode((digest, *members))).decode().rstrip("=")
    for address in (worker, router):
        answer = httpx.get(f"http://{address}/v1/stores/counts/entries", params={"cursor": forged})
        assert (answer.status_code, answer.json()["parameter"]) == (400, "cursor")


def test_a_miss_of_a_key_that_reads_like_a_problem_is_a_miss(served):
    _, _, router = served
    answer = httpx.get(f"http://{router}/v1/stores/counts/keys/urn:forebay:problem:unknown-store")
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:forebay:problem:unknown-key"


def test_a_preflight_that_is_refused_is_a_problem(served):
    _, worker, router = served
    for address in (worker, router):
        requested = {"Origin": "https://b.example", "Access-Control-Request-Method": "GET"}
        answer = httpx.options(f"http://{address}{PATHS[0]}", headers=requested)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert "access-control-allow-origin" not in answer.headers


def test_delayed_answer_states_its_age_at_sending(tmp_path):
    """An answer that waits for an earlier one on its connection counts the wait in lag and deadline."""
    options = ("--num-standby-replicas", "0", "--session-timeout-ms", "60000")
    with running_cluster(tmp_path, worker_options=options) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        hangs, well = cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        of = {cluster.active_for(router, "counts", f"k{i}"): f"/v1/stores/counts/keys/k{i}" for i in range(50)}
        # The fast path takes reads once all connections to a worker are open.
        exchange(router, b"".join(map(request, of.values())) * 20, 40)
        # Small answers come first, after which more is asked for at once.
        sent = [of[well]] * 7 + [f"{of[hangs]}?timeout_ms=1000", f"{of[well]}?max_time_lag_ms=200", of[well]]
        for _ in range(20):
            cluster.kill(hangs, signal.SIGSTOP)
            *_, none, refused, late = exchange(router, b"".join(map(request, sent)), len(sent))
            cluster.kill(hangs, signal.SIGCONT)
            assert none.startswith(b"HTTP/1.1 504 ")
            if refused.startswith(b"HTTP/1.1 412 "):
                break
            # On a busy machine the router's turn ended before the last two, which it then reads after the wait.
        assert refused.startswith(b"HTTP/1.1 412 ")
        assert b"once earlier requests had been answered" in refused
        document = json.loads(late.partition(b"\r\n\r\n")[2])
        assert document["lag"]["time_lag_ms"] > 200
        assert b"forebay-time-lag-ms: %d\r\n" % document["lag"]["time_lag_ms"] in late
