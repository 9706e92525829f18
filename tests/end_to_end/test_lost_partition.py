"""A list whose partition is lost while it is streamed: it never looks whole."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running_cluster

pytestmark = pytest.mark.chaos

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 2

[[subtopology.store]]
name = "counts"
"""
ENTRIES, VALUE_BYTES = 50_000, 1_000
"""More than pages and sockets on the way hold together."""


@pytest.fixture
def split(tmp_path) -> Iterator[tuple[Cluster, str]]:
    """Two workers, each with one partition of which the other has no copy; and a router."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        value = b'"%b"' % (b"v" * VALUE_BYTES)
        cluster.put("counts", {b"k%05d" % i: value for i in range(ENTRIES)})
        cluster.start_workers(2, "--num-standby-replicas", "0")
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        yield cluster, router


def read_while_one_is_killed(cluster: Cluster, router: str, parameters: str) -> tuple[bytes, bool]:
    """A list's body, of which a worker was killed after its first bytes; and whether it came to its end."""
    host, _, port = router.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        # So that little of it is on the way unread.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        target = f"/v1/stores/counts/entries?{parameters}"
        connection.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        received = connection.recv(1_000)
        assert received.startswith(b"HTTP/1.1 200")
        cluster.kill(next(iter(cluster.workers)))
        rest = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    head, _, body = (received + rest).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    return dechunked(body), body.endswith(b"\r\n0\r\n\r\n")


def dechunked(body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        size, _, _ = body[at : at + 20].partition(b"\r\n")
        begin = at + len(size) + 2
        parts.append(body[begin : begin + int(size, 16)])
        at = begin + int(size, 16) + 2
    return b"".join(parts)


def test_a_list_that_loses_a_partition_midway_is_cut(split):
    body, whole = read_while_one_is_killed(*split, f"limit={ENTRIES}&timeout_ms=20000")
    assert not whole
    assert b'"complete"' not in body
    assert body.count(b'"key"') < ENTRIES


def test_a_partial_list_names_the_partition_lost_midway(split):
    body, whole = read_while_one_is_killed(*split, f"limit={ENTRIES}&timeout_ms=20000&allow_partial=true")
    assert whole
    document = json.loads(body)
    assert document["complete"] is False
    assert len(document["missing"]) == 1
    assert 0 < len(document["entries"]) < ENTRIES
    keys = [entry["key"] for entry in document["entries"]]
    assert keys == sorted(set(keys))
