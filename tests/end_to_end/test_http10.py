"""Clients that speak HTTP/1.0: no chunks, and the connection ends with the answer."""

import json
import socket

import pytest

from tests.support.cluster import running_cluster


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.put("counts", {b"k%03d" % number: b"1" for number in range(300)})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        yield worker, cluster.start_router()


def ask(address: str, target: str) -> tuple[bytes, bytes]:
    """Head and body of the answer, as they are on the wire."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


@pytest.mark.parametrize("tier", [0, 1], ids=["worker", "router"])
@pytest.mark.parametrize("target", ["/v1/stores/counts/entries", "/v1/stores/counts/keys/k001", "/v1/stores"])
def test_an_answer_has_a_length_and_no_chunks(addresses, tier, target):
    head, body = ask(addresses[tier], target)
    assert head.startswith(b"http/1.1 200 ")
    assert b"chunked" not in head
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)


@pytest.mark.parametrize("tier", [0, 1], ids=["worker", "router"])
def test_a_stream_is_refused(addresses, tier):
    head, body = ask(addresses[tier], "/v1/stores/counts/keys/k001/changes")
    assert head.startswith(b"http/1.1 400 ")
    assert "HTTP/1.1" in json.loads(body)["detail"]
