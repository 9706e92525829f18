"""Routers behind proxies that speak the PROXY protocol: a real HAProxy, and whoever pretends to be one."""

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forebay.errors import SettingError
from forebay.settings import load_settings
from tests.deploy.test_balancers import metric
from tests.end_to_end.test_tls import Authority
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

KEY = "/v1/stores/counts/keys/a"
REQUEST = f"GET {KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
PROXY, GREEDY, MODEST = "127.0.0.2", "127.0.0.3", "127.0.0.4"
LINE = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"
MOST_STREAMS = 8
HAPROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 60s
    timeout server 60s

listen version-1
    bind 127.0.0.1:{version_1}
    server router {router} source 127.0.0.2 send-proxy

listen version-2
    bind 127.0.0.1:{version_2}
    server router {router} source 127.0.0.2 send-proxy-v2

listen unix
    bind 127.0.0.1:{unix}
    server router unix@{socket} send-proxy-v2
"""


class Proxied:
    """A worker, and two routers, of which one speaks HTTPS."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.authority = Authority(cluster.directory / "authority")
        self.socket = cluster.directory / "router.sock"
        cluster.start_worker(ready=False)
        self.plain, self.encrypted = (f"127.0.0.1:{free_port()}" for _ in range(2))
        own = ("--proxy-protocol", "--trusted-proxies", f"{PROXY},unix", "--max-event-streams", str(MOST_STREAMS))
        cluster.launch_router("--listen", f"{self.plain},unix:{self.socket}", *own)
        cluster.launch_router("--listen", self.encrypted, *own, *self.authority.options("localhost"))
        # Not from the proxy's address, and so without a header.
        wait_until(lambda: self.status(self.plain) == 200, "readiness")

    def status(self, address: str) -> int | None:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://{address}{KEY}").status_code
        return None

    def failures(self, reason: str) -> float:
        return metric(self.plain, f'forebay_router_proxy_header_failures_total{{reason="{reason}"}}')

    def connect(self, source: str, address: str | None = None) -> socket.socket:
        host, port = (address or self.plain).split(":")
        return socket.create_connection((host, int(port)), 10, (source, 0))


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with running_cluster(tmp_path_factory.mktemp("proxied")) as cluster:
        cluster.put("counts", {b"a": b"1"})
        yield Proxied(cluster)


@pytest.fixture(scope="module")
def fronts(proxied: Proxied) -> Iterator[dict[str, str]]:
    """Addresses of a HAProxy that speaks each version, and to a Unix socket."""
    haproxy = shutil.which("haproxy") or "/usr/sbin/haproxy"
    if not Path(haproxy).exists():
        pytest.skip("haproxy is not installed")
    ports = {name: free_port() for name in ("version_1", "version_2", "unix")}
    configuration = proxied.cluster.directory / "haproxy.cfg"
    configuration.write_text(HAPROXY.format(router=proxied.plain, socket=proxied.socket, **ports))
    process = subprocess.Popen([haproxy, "-db", "-f", configuration], stderr=subprocess.DEVNULL)
    try:
        fronts = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        for name, front in fronts.items():
            wait_until(lambda front=front: proxied.status(front) == 200, name)
        yield fronts
    finally:
        process.kill()
        process.wait(15)


@pytest.mark.parametrize("name", ["version_1", "version_2", "unix"])
def test_limits_count_the_client_that_haproxy_names(proxied, fronts, name):
    wait_until(lambda: not metric(proxied.plain, "forebay_router_event_streams"), "the end of other streams")
    with contextlib.ExitStack() as stack:

        def follow(client: str) -> int:
            http = stack.enter_context(httpx.Client(transport=httpx.HTTPTransport(local_address=client)))
            return stack.enter_context(http.stream("GET", f"http://{fronts[name]}{KEY}/changes")).status_code

        assert [follow(GREEDY) for _ in range(MOST_STREAMS + 1)].count(200) == MOST_STREAMS - 1
        assert follow(MODEST) == 200


def test_a_header_comes_before_tls(proxied):
    context = ssl.create_default_context(cafile=str(proxied.authority.file))
    with proxied.connect(PROXY, proxied.encrypted) as plain:
        plain.sendall(LINE)
        with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
            encrypted.sendall(REQUEST)
            assert encrypted.recv(4096).startswith(b"HTTP/1.1 200")
    with (
        proxied.connect(MODEST, proxied.encrypted) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(REQUEST)
        assert encrypted.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_header_and_a_request_may_arrive_in_any_pieces(proxied):
    whole = LINE + REQUEST
    with proxied.connect(PROXY) as connection:
        connection.sendall(whole)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    with proxied.connect(PROXY) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(whole)):
            connection.sendall(whole[at : at + 1])
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("source", "sent", "reason"),
    [
        (MODEST, LINE + REQUEST, "untrusted"),
        (MODEST, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + REQUEST, "untrusted"),
        (PROXY, REQUEST, "malformed"),
        (PROXY, b"PROXY TCP4 name name 1 2\r\n" + REQUEST, "malformed"),
    ],
    ids=["a line", "a block", "none", "a bad one"],
)
def test_a_connection_that_begins_as_it_must_not_is_closed(proxied, source, sent, reason):
    before = proxied.failures(reason)
    with proxied.connect(source) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(4096) == b""
    assert proxied.failures(reason) == before + 1
    line = f"a connection from {source} was closed"
    wait_until(lambda: line in proxied.cluster.logs(), "the log line")
    # Once, however many follow.
    assert proxied.cluster.logs().count(line) == 1


def test_half_a_proxy_header_does_not_hold_a_place(proxied):
    with proxied.connect(PROXY) as connection:
        connection.sendall(LINE[:7])
        wait_until(lambda: metric(proxied.plain, "forebay_router_connections") >= 2, "the connection's count")
    wait_until(lambda: metric(proxied.plain, "forebay_router_connections") == 1, "its end")


def test_without_the_setting_a_header_is_a_bad_request(proxied):
    router = proxied.cluster.start_router("--trusted-proxies", PROXY)
    with proxied.connect(PROXY, router) as connection:
        connection.sendall(LINE + REQUEST)
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")


def test_it_needs_proxies_that_are_trusted():
    flags = {"seeds": "one:1", "proxy_protocol": "true"}
    with pytest.raises(SettingError, match="proxy_protocol needs trusted_proxies"):
        load_settings("router", flags, {})
