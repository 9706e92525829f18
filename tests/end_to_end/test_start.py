"""A worker whose start takes long says so, and is not taken for dead."""

import contextlib
import socket
import sqlite3
import ssl

import httpx
import pytest
import trustme

from forebay.errors import ListenAddressInUse
from forebay.streams_metadata import HostInfo
from forebay_web.server import bind
from forebay_web.startup_responder import answering_meanwhile
from tests.support.cluster import running_cluster, wait_until


def test_worker_awaiting_its_group_is_alive_and_not_ready(tmp_path):
    """The group's database is locked."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k": b"1"})
        worker = cluster.start_worker()
        router = cluster.start_router()
        cluster.kill(worker)
        (group,) = cluster.directory.glob("log/group.db")
        with contextlib.closing(sqlite3.connect(group, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            cluster.start_worker(worker, ready=False)
            cluster.wait_alive(worker)
            before = cluster.logs().count("serves test")
            for path in ("/readyz", "/v1/stores/counts/keys/k", "/v1/identity"):
                answer = httpx.get(f"http://{worker}{path}")
                assert (answer.status_code, answer.json()["type"]) == (503, "urn:forebay:problem:not-ready")
                assert answer.headers["retry-after"] == "1"
            post = httpx.post(f"http://{worker}/v1/stores/counts/batch-get", json={"keys": ["k"]})
            assert post.status_code == 503
            assert httpx.head(f"http://{worker}/livez").status_code == 200
            assert cluster.get(router, "/v1/status")["rejected_addresses"] == []
            # All that was before it served.
            assert (before, cluster.logs().count("serves test")) == (1, 1)
            other.execute("ROLLBACK")
        cluster.wait_ready(worker)
        wait_until(
            lambda: httpx.get(f"http://{router}/v1/stores/counts/keys/k").status_code == 200,
            "a read by the router",
        )


def test_backlog_is_left_to_the_started_server():
    """Connections that arrive at the end of the start are accepted by the server that listens then."""
    with bind(HostInfo("127.0.0.1", 0)) as listener:
        with answering_meanwhile([listener], None):
            address = listener.getsockname()
            assert httpx.get(f"http://127.0.0.1:{address[1]}/livez").json() == {"live": True}
        with socket.create_connection(address, timeout=5) as client:
            listener.settimeout(5)
            accepted, peer = listener.accept()
            accepted.close()
            assert peer == client.getsockname()


def test_over_tls_too_it_is_alive_and_others_are_turned_away(tmp_path):
    authority = trustme.CA()
    tls, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(tls)
    authority.configure_trust(trusting)
    with bind(HostInfo("127.0.0.1", 0)) as listener, answering_meanwhile([listener], tls):
        port = listener.getsockname()[1]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{port}/livez")
        assert httpx.get(f"https://localhost:{port}/livez", verify=trusting).status_code == 200


def test_an_address_in_use_is_said_before_anything_is_started():
    with bind(HostInfo("127.0.0.1", 0)) as first, bind(HostInfo(*first.getsockname())) as second:
        first.listen()
        with pytest.raises(ListenAddressInUse, match="in use"), answering_meanwhile([second], None):
            pass
