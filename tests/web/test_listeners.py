"""The listening sockets of a process."""

import select
import socket

import pytest

from forebay.listen_addresses import parse_listen_address
from forebay_web.listeners import bound
from tests.support.cluster import free_port

V4, V6 = "127.0.0.1", "::1"


def accepted(listeners: list[socket.socket], port: int) -> dict[str, int]:
    """Which listener has taken a connection to each address of this machine."""
    taken: dict[str, int] = {}
    for listener in listeners:
        listener.listen()
    for host in (V4, V6):
        with socket.create_connection((host, port), 5):
            [ready], _, _ = select.select(listeners, [], [], 5)
            ready.accept()[0].close()
            taken[host] = listeners.index(ready)
    return taken


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["[::]"], {V4: 0, V6: 0}),
        (["[::]", "0.0.0.0"], {V4: 1, V6: 0}),
        (["0.0.0.0", "[::]"], {V4: 0, V6: 1}),
        (["[::]", "127.0.0.1"], {V4: 1, V6: 0}),
        (["[::1]", "0.0.0.0"], {V4: 1, V6: 0}),
    ],
)
def test_both_families_may_be_listened_on_at_one_port(shared, hosts, expected):
    port = free_port()
    listen = [parse_listen_address(f"{host}:{port}") for host in hosts]
    with bound(listen, None, shared=shared) as listeners:
        assert accepted(listeners, port) == expected
