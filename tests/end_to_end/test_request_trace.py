"""What follows a request: its id and a tracer's context reach workers, answers, problems and log lines."""

import contextlib
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forebay.request_trace import cut_out
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.tokens import header_of, token_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
TRACE = {"X-Request-Id": "order 66?".replace(" ", "-"), "traceparent": PARENT, "tracestate": "vendor=a,b=c"}
LINES = {b"x-request-id: order-66?", b"traceparent: " + PARENT.encode(), b"tracestate: vendor=a,b=c"}


class Recorder:
    """Passes on connections to a worker, and keeps the heads of what routers send over them."""

    def __init__(self, worker: int) -> None:
        self.sent = b""
        self._worker = worker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def heads(self, path: str) -> list[set[bytes]]:
        """The lines of the requests for a path."""
        heads = re.findall(rb"(?:GET|POST) (\S+) HTTP/1.1\r\n(.*?)\r\n\r\n", self.sent, re.DOTALL)
        return [set(lines.split(b"\r\n")) for target, lines in heads if target.partition(b"?")[0] == path.encode()]

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                worker = socket.create_connection(("127.0.0.1", self._worker))
                threading.Thread(target=self._pass_on, args=(client, worker, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(worker, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_kept: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_kept:
                    self.sent += data
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, Recorder]]:
    with running_cluster(tmp_path_factory.mktemp("trace")) as cluster:
        cluster.put("counts", {b"a": b"1", b"b": b"2"})
        port = free_port()
        recorder = Recorder(port)
        cluster.start_worker(f"127.0.0.1:{port}", "--advertise", recorder.address)
        router = cluster.start_router("--log-format", "json")
        cluster.wait_settled(router, replicas=1)
        yield cluster, router, recorder
        recorder.close()


STORE = "/v1/stores/counts"
READS = {
    "key": ("GET", f"{STORE}/keys/a", None, f"{STORE}/keys/a"),
    "missing key": ("GET", f"{STORE}/keys/none", None, f"{STORE}/keys/none"),
    "waiting key": ("GET", f"{STORE}/keys/a?wait_ms=100", None, f"{STORE}/keys/a"),
    "batch": ("POST", f"{STORE}/batch-get", {"keys": ["a", "b"]}, f"{STORE}/batch-get"),
    "list": ("GET", f"{STORE}/entries", None, f"{STORE}/entries"),
    "stream": ("GET", f"{STORE}/keys/a/changes", None, f"{STORE}/keys/a/changes"),
}


def exchange(address: str, read: str, headers: dict[str, str]) -> httpx.Response:
    """The answer; of a stream its beginning."""
    method, path, body, _ = READS[read]
    with httpx.stream(method, f"http://{address}{path}", json=body, headers=headers, timeout=10) as answer:
        if read == "stream":
            next(answer.iter_bytes())
        else:
            answer.read()
    return answer


@pytest.mark.parametrize("read", READS)
def test_a_trace_is_passed_on_and_answered(served, read):
    cluster, router, recorder = served
    before = len(recorder.heads(READS[read][3]))
    for address in (router, *cluster.workers):
        answer = exchange(address, read, TRACE)
        assert answer.headers["x-request-id"] == "order-66?"
        tier = "router" if address == router else "worker"
        assert re.search(rf"\b{tier};dur=\d+\.\d{{3}}", answer.headers["server-timing"])
        if read == "missing key":
            assert (answer.status_code, answer.json()["request_id"]) == (404, "order-66?")
    heads = recorder.heads(READS[read][3])[before:]
    assert heads
    assert all(head >= LINES for head in heads)
    if "key" in read:
        # What the worker itself took.
        assert "worker;dur=" in exchange(router, read, TRACE).headers["server-timing"]
    before = len(recorder.heads(READS[read][3]))
    answer = exchange(router, read, {})
    assert not {"x-request-id", "server-timing"} & set(answer.headers)
    assert all(b"trace" not in b"".join(head) for head in recorder.heads(READS[read][3])[before:])


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ({"traceparent": PARENT}, TRACE_ID),
        ({"traceparent": PARENT + "-later"}, TRACE_ID),
        ({"traceparent": PARENT.replace("00-", "ff-", 1)}, None),
        ({"traceparent": PARENT.replace(TRACE_ID, "0" * 32)}, None),
        ({"X-Request-Id": "x" * 128}, "x" * 128),
        ({"X-Request-Id": "x" * 129}, None),
        ({"X-Request-Id": "two words"}, None),
        ({"X-Request-Id": '"quoted\\'}, '"quoted\\'),
        ({"X-Request-Id": "x" * 129, "traceparent": PARENT}, TRACE_ID),
        ({"tracestate": "a=b"}, None),
    ],
)
def test_what_is_malformed_counts_as_absent(served, headers, request_id):
    _, router, recorder = served
    for read in ("key", "missing key", "list"):
        answer = exchange(router, read, headers)
        assert answer.headers.get("x-request-id") == request_id
        if read == "missing key":
            assert answer.json().get("request_id") == request_id
    [*_, head] = recorder.heads(f"{STORE}/keys/a")
    assert any(line.startswith((b"x-request-id", b"traceparent")) for line in head) == (request_id is not None)


def test_an_id_that_is_there_twice_is_nobodys(served):
    _, router, _ = served
    host, port = router.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        request = f"GET {STORE}/keys/a HTTP/1.1\r\nHost: {router}\r\nX-Request-Id: a\r\nX-REQUEST-ID: b\r\n\r\n"
        connection.sendall(request.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-request-id" not in answer.lower()


@pytest.mark.parametrize("first", ["list", "batch", "key"])
def test_a_trace_is_not_that_of_the_next_request_on_the_connection(served, first):
    """Though the next one is begun by what answers the first."""
    _, router, recorder = served
    method, path, body, _ = READS[first]
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {router}\r\nContent-Length: {len(content)}\r\nX-Request-Id: first"
    before = len(recorder.heads(f"{STORE}/keys/b"))
    for following in (f"{STORE}/keys/b", f"{STORE}/keys/b?wait_ms=50", f"{STORE}/keys/b?explain=true"):
        host, port = router.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            plain = f"GET {following} HTTP/1.1\r\nHost: {router}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + b"\r\n\r\n" + content + plain.encode())
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        answers = received.split(b"HTTP/1.1 200 OK")[1:]
        assert [b"x-request-id: first" in answer for answer in answers] == [True, False]
    heads = recorder.heads(f"{STORE}/keys/b")[before:]
    assert len(heads) == 3
    assert not any(line.lower().startswith(b"x-request-id") for head in heads for line in head)


def test_a_long_line_of_spaces_is_read_once():
    """A pattern that goes back from each of them would take for ever."""
    spaces = b" " * 300_000
    for end in (b"b", b"\x80"):
        cut_out(b"GET / HTTP/1.1\r\nx-request-id: a" + spaces + end + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/stores/none/keys/a", 404), (f"{STORE}/keys/a?bound=1", 400), ("/nowhere", 404)]
)
def test_problems_have_the_requests_id(served, path, status):
    cluster, router, _ = served
    for address in (router, *cluster.workers):
        answer = httpx.get(f"http://{address}{path}", headers=TRACE)
        assert (answer.status_code, answer.json()["request_id"]) == (status, "order-66?")
        assert answer.headers["x-request-id"] == "order-66?"
        assert len(answer.content) == int(answer.headers["content-length"])


def test_a_trace_follows_a_read_to_another_worker(tmp_path):
    """And no other read that shares the connections."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        recorders: list[Recorder] = []
        for _ in range(2):
            port = free_port()
            recorders.append(Recorder(port))
            cluster.start_worker(f"127.0.0.1:{port}", "--advertise", recorders[-1].address, ready=False)
        for address in cluster.workers:
            cluster.wait_ready(address)
        router = cluster.start_router()
        cluster.wait_settled(router)
        active = cluster.active_for(router, "counts", "k1")
        [hung] = [port for port, one in zip(cluster.workers, recorders, strict=True) if one.address == active]
        [other] = [one for one in recorders if one.address != active]
        with httpx.Client(base_url=f"http://{router}{STORE}/keys", timeout=10) as client:
            assert client.get("k1").status_code == 200
            cluster.kill(hung, signal.SIGSTOP)
            answer = client.get("k1", headers=TRACE)
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "order-66?")
            assert client.get("k1").status_code == 200
        cluster.kill(hung, signal.SIGCONT)
        heads = other.heads(f"{STORE}/keys/k1")
        assert [head >= LINES for head in heads] == [True, False]
        assert not any(b"traceparent" in line for line in heads[1])


def test_refusals_and_their_lines_have_the_id(tmp_path):
    tokens, grants = tmp_path / "tokens", tmp_path / "grants.toml"
    tokens.write_text(f"reader: {token_of('reader')}\n")
    grants.write_text('[[grant]]\nprincipal = "reader"\nstores = ["other"]\nverbs = ["read"]\n')
    options = ("--auth-tokens-file", tokens, "--grants-file", grants)
    with running_cluster(tmp_path, headers={"Authorization": header_of("reader")}) as cluster:
        worker = cluster.start_worker(None, *map(str, options))
        answer = httpx.get(f"http://{worker}{STORE}/entries", headers={**cluster.headers, **TRACE})
        assert (answer.status_code, answer.json()["request_id"]) == (403, "order-66?")
        assert httpx.get(f"http://{worker}{STORE}/entries", headers=TRACE).json()["request_id"] == "order-66?"
        wait_until(lambda: '"audit": "refused"' in _audit(tmp_path), "the line")
        line = next(line for line in _audit(tmp_path).splitlines() if '"refused"' in line)
        assert json.loads(line)["request_id"] == "order-66?"


def _audit(directory: Path) -> str:
    return "\n".join(path.read_text() for path in directory.glob("*.log"))
