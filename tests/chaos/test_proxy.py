"""The proxy cuts, holds and delays real connections, and lets them pass again."""

import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from examples.ports import free_ports
from tests.chaos.proxy import Mode, Proxies, Proxy
from tests.support.cluster import wait_until


@pytest.fixture
def proxied() -> Iterator[tuple[Proxies, Proxy]]:
    """A proxy before a server that sends everything back."""
    port, upstream_port = free_ports(2)
    proxies = Proxies()
    with socket.create_server(("127.0.0.1", upstream_port)) as server:
        Thread(target=echo, args=[server], daemon=True).start()
        try:
            yield proxies, proxies.add("127.0.0.1", port, upstream_port)
        finally:
            proxies.close()


def echo(server: socket.socket) -> None:
    def send_back(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1024):
                    connection.sendall(piece)
            except OSError:
                pass

    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        Thread(target=send_back, args=[connection], daemon=True).start()


def connected(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_it_passes_what_it_is_given(proxied):
    with connected(proxied[1]) as connection:
        connection.sendall(b"one")
        assert connection.recv(10) == b"one"


def test_a_cut_resets_connections_and_new_ones(proxied):
    proxies, proxy = proxied
    with connected(proxy) as before:
        before.sendall(b"one")
        before.recv(10)
        proxies.switch(proxy, "cut")
        assert is_reset(before)
    wait_until(lambda: is_reset(connected(proxy)), "a reset")
    proxies.switch(proxy, "pass")
    wait_until(lambda: not is_reset(connected(proxy)), "an answer")


def is_reset(connection: socket.socket) -> bool:
    with connection:
        try:
            connection.sendall(b"?")
            return connection.recv(10) == b""
        except OSError:
            return True


@pytest.mark.parametrize(("mode", "arrives"), [("hold", True), ("half-open", False)])
def test_held_bytes_arrive_unless_half_open(proxied, mode: Mode, arrives: bool):
    """Bytes held by the proxy arrive once it passes again, and a half-open connection is reset."""
    proxies, proxy = proxied
    with connected(proxy) as connection:
        connection.sendall(b"one")
        assert connection.recv(10) == b"one"
        proxies.switch(proxy, mode)
        connection.sendall(b"two")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        connection.settimeout(5)
        proxies.switch(proxy, "pass")
        if arrives:
            assert connection.recv(10) == b"two"
        else:
            assert is_reset(connection)
