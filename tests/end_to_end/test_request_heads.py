"""Heads that HTTP wants refused (RFC 9112), or read all the same: on both tiers, on both paths."""

import json
import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support.cluster import running_cluster

TARGETS = {"hot": b"/v1/stores/counts/keys/k", "ordinary": b"/livez"}
HOST = b"Host: x\r\n"
ANY_HOST = ("--allowed-hosts", "*")
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
BODY = b'{"keys":["k"]}'
POST = b"POST /v1/stores/counts/batch-get HTTP/1.1\r\nHost: x\r\n"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with running_cluster(tmp_path_factory.mktemp("heads")) as cluster:
        cluster.put("counts", {b"k": b"1"})
        # What is tried is the form of a host, not whose it is.
        worker = cluster.start_worker(None, "--num-standby-replicas", "0", *ANY_HOST)
        router = cluster.start_router(*ANY_HOST)
        cluster.wait_settled(router, replicas=1)
        yield SimpleNamespace(worker=worker, router=router)


def exchange(address: str, sent: bytes) -> tuple[int, dict[str, object], bool]:
    """Status and document of the first answer, and whether the connection is closed after it."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as client, client.makefile("rb") as received:
        client.sendall(sent)
        status = int(received.readline().split()[1])
        headers = {}
        while line := received.readline().strip():
            name, _, value = line.partition(b": ")
            headers[name.lower()] = value
        document = json.loads(received.read(int(headers[b"content-length"])))
        if headers.get(b"connection") != b"close":
            return status, document, False
        assert received.read() == b""
        return status, document, True


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("version", "headers", "status", "problem"),
    [
        (b"HTTP/1.1", b"", 400, "bad-request"),
        (b"HTTP/1.1", b"Accept: */*\r\n", 400, "bad-request"),
        (b"HTTP/1.1", HOST + HOST, 400, "bad-request"),
        (b"HTTP/1.0", HOST + HOST, 400, "bad-request"),
        (b"HTTP/1.1", b"Host: a b\r\n", 400, "bad-request"),
        (b"HTTP/1.1", b"Host: a/b\r\n", 400, "bad-request"),
        (b"HTTP/1.1", b"Host: a:x\r\n", 400, "bad-request"),
        (b"HTTP/1.1", b"Host: user@a\r\n", 400, "bad-request"),
        (b"HTTP/0.9", HOST, 505, "http-version-not-supported"),
        (b"HTTP/1.2", HOST, 400, "bad-request"),
        (b"HTTP/2.0", HOST, 505, "http-version-not-supported"),
        (b"HTTP/1.1", HOST + b"Transfer-Encoding: gzip, chunked\r\n", 501, "transfer-coding-not-supported"),
        (b"HTTP/1.0", HOST + b"Transfer-Encoding: chunked\r\n", 400, "bad-request"),
    ],
)
def test_invalid_heads_are_refused_and_end_the_connection(served, tier, target, version, headers, status, problem):
    request = b"GET %b %b\r\n%b\r\n" % (TARGETS[target], version, headers)
    answer, document, closed = exchange(getattr(served, tier), request)
    assert (answer, document["type"], closed) == (status, f"urn:forebay:problem:{problem}", True)


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("version", "host"),
    [
        (b"HTTP/1.0", b""),
        (b"HTTP/1.1", b"Host:\r\n"),
        (b"HTTP/1.1", b"Host: [fe80::1%eth0]:8080\r\n"),
        (b"HTTP/1.1", b"Host: a_b.example.:80 \r\n"),
        (b"HTTP/1.1", b"Host: caf%C3%A9:\r\n"),
    ],
)
def test_heads_that_are_unusual_are_read(served, tier, target, version, host):
    request = b"GET %b %b\r\n%bConnection: close\r\n\r\n" % (TARGETS[target], version, host)
    assert exchange(getattr(served, tier), request)[0] == 200


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_a_request_line_without_a_version_is_refused(served, tier):
    assert exchange(getattr(served, tier), b"GET /livez\r\n\r\n")[::2] == (505, True)


@pytest.mark.parametrize("tier", ["worker", "router"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Transfer-Encoding: Chunked\r\n", 200),
        (b"Transfer-Encoding: gzip, chunked\r\n", 501),
        (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501),
        (b"Transfer-Encoding: chunked, chunked\r\n", 400),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 14\r\n", 400),
        (b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n", 400),
    ],
)
def test_only_bodies_whose_end_is_plain_are_read(served, tier, headers, status):
    answer, _, closed = exchange(getattr(served, tier), POST + headers + b"\r\n" + CHUNKS)
    assert (answer, closed) == (status, status != 200)


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_offers_to_speak_http_2_are_ignored(served, tier):
    """As Java's HttpClient makes them, on a connection that it keeps."""
    host, port = getattr(served, tier).rsplit(":", 1)
    offer = b"GET /v1/stores/counts/keys/k1 HTTP/1.1\r\n%b%b\r\n" % (HOST, UPGRADE)
    with socket.create_connection((host, int(port)), timeout=10) as client, client.makefile("rb") as received:
        client.sendall(offer * 3 + b"GET /livez HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)
        whole = received.read()
    assert re.findall(rb"HTTP/1\.1 (\d+)", whole)[-1] == b"200"
    assert len(re.findall(rb"HTTP/1\.1 \d+", whole)) == 4
    assert b" 400 " not in whole


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_an_offer_to_speak_http_2_is_refused_with_its_body(served, tier):
    """What follows the head is never read as another request."""
    sent = POST + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(REQUEST) + REQUEST
    status, document, closed = exchange(getattr(served, tier), sent)
    assert (status, closed) == (400, True)
    assert "HTTP_1_1" in document["detail"]


def test_answers_to_requests_before_a_refused_head_are_sent(served):
    host, port = served.router.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as client, client.makefile("rb") as received:
        client.sendall(b"GET /livez HTTP/1.1\r\n%b\r\nGET /livez HTTP/2.0\r\n%b\r\n" % (HOST, HOST))
        whole = received.read()
    assert re.findall(rb"HTTP/1\.1 (\d+)", whole) == [b"200", b"505"]
