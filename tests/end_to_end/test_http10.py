"""Clients that speak HTTP/1.0, which knows no chunks: health checks, and proxies as they come."""

import json
import socket

import pytest

from tests.support.cluster import running_cluster

TIERS = pytest.mark.parametrize("tier", [0, 1], ids=["worker", "router"])


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.put("counts", {b"k%03d" % number: b"1" for number in range(300)})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        yield worker, cluster.start_router()


def ask(address: str, request: str, headers: str = "", body: str = "") -> tuple[bytes, bytes]:
    """Head and body of the answer, as they are on the wire up to the end of the connection."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{request} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n{body}".encode())
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.lower(), rest


@TIERS
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/livez", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/v1/stores", 200),
        ("/v1/stores/counts/keys/k001", 200),
        ("/v1/stores/counts/keys/nobody", 404),
        ("/nothing", 404),
    ],
)
def test_an_answer_has_a_length_and_no_chunks(addresses, tier, target, status):
    head, body = ask(addresses[tier], f"GET {target}")
    assert head.startswith(b"http/1.1 %d " % status)
    assert b"chunked" not in head
    assert b"content-length: %d" % len(body) in head
    assert target == "/metrics" or json.loads(body)


@TIERS
def test_several_keys_are_read(addresses, tier):
    body = '{"keys": ["k001", "k002"]}'
    head, answer = ask(
        addresses[tier], "POST /v1/stores/counts/batch-get", f"Content-Length: {len(body)}\r\n", body
    )
    assert head.startswith(b"http/1.1 200 ")
    assert [result["value"] for result in json.loads(answer)["results"]] == [1, 1]


@TIERS
@pytest.mark.parametrize("target", ["entries", "keys/k001/changes", "changes"])
def test_a_list_and_a_stream_are_refused_with_the_remedy(addresses, tier, target):
    head, body = ask(addresses[tier], f"GET /v1/stores/counts/{target}")
    assert head.startswith(b"http/1.1 505 ")
    problem = json.loads(body)
    assert problem["type"] == "urn:forebay:problem:http-version-not-supported"
    assert "proxy_http_version 1.1" in problem["detail"]
