"""Connections before their headers have arrived: bounded in time and number."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest

from forebay.settings import RouterSettings, load_settings
from forebay_web import proxied_listener
from forebay_web.limits import Limits
from forebay_web.proxied_listener import CountingListener, ProxyHeaders
from tests.support.cluster import until

PROXY, DIRECT = "127.0.0.2", "127.0.0.1"
MOST_CONNECTIONS = 8


class Listening(ExitStack):
    """A listener, the connections to it, and the clients of those that were taken over."""

    def __init__(self, headers: ProxyHeaders, address: tuple[str, int]) -> None:
        super().__init__()
        self.headers = headers
        self.address = address
        self.clients: list[tuple[str, int] | None] = []

    def connect(self, source: str, sent: bytes = b"") -> socket.socket:
        connection = self.enter_context(socket.create_connection(self.address, 5, (source, 0)))
        connection.sendall(sent)
        connection.setblocking(False)
        return connection

    @property
    def waiting(self) -> int:
        """Connections whose headers have not arrived."""
        return self.headers.limits.connections.used


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    flags = {"seeds": "one:1", "trusted_proxies": PROXY, "max_connections": str(MOST_CONNECTIONS)}
    headers = ProxyHeaders(Limits(RouterSettings(**load_settings("router", flags, {}))))
    with socket.create_server((DIRECT, 0)) as listener:
        listener.setblocking(False)
        found = Listening(headers, listener.getsockname())

        async def serve(connection: socket.socket, client: tuple[str, int] | None, _: object) -> None:
            connection.close()
            found.clients.append(client)

        server = CountingListener(listener, headers.limits, headers, serve)
        server.start()
        try:
            with found:
                yield found
        finally:
            server.close()
            await server.wait_closed()
            assert found.waiting == 0


async def ended(connection: socket.socket) -> bytes:
    """What arrives at the end of a connection, which is nothing."""
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().sock_recv(connection, 1)


def run(test: Callable[[Listening], Awaitable[None]]) -> None:
    async def main() -> None:
        async with listening() as found:
            await test(found)

    asyncio.run(main())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_listener, "_MOST_HEADER_S", 0.02)


def test_a_proxy_that_sends_no_header_is_closed_in_time(impatient):
    async def test(found: Listening) -> None:
        assert await ended(found.connect(PROXY, b"PROXY TCP4 ")) == b""
        assert found.headers.failures == {"timeout": 1}
        assert found.clients == []

    run(test)


def test_idle_direct_client_is_left_to_http_limits(impatient):
    """Only a proxy must send its header in time."""

    async def test(found: Listening) -> None:
        found.connect(DIRECT)
        await until(lambda: found.clients == [None])
        assert not found.headers.failures

    run(test)


def test_one_address_leaves_connections_to_others():
    async def test(found: Listening) -> None:
        connections = [found.connect(PROXY) for _ in range(MOST_CONNECTIONS)]
        await asyncio.wait(
            [asyncio.ensure_future(ended(each)) for each in connections], return_when="FIRST_COMPLETED"
        )
        assert found.waiting == MOST_CONNECTIONS - 1
        found.connect(DIRECT, b"GET")
        await until(lambda: found.clients == [None])

    run(test)


def test_connection_awaiting_its_header_ends_on_shutdown():
    async def test(found: Listening) -> None:
        found.connect(PROXY)
        await until(lambda: found.waiting == 1)

    run(test)
