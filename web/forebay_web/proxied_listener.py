"""Listeners whose connections take time before they speak HTTP: they are counted from their first moment.

With TLS they have a handshake, and where ``proxy_protocol`` is set a header that names the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

from forebay.errors import Overloaded
from forebay.linux import peer_user
from forebay.log_throttle import LogThrottle
from forebay_web.forwarding import LOCAL_USER
from forebay_web.limits import Held, Limits
from forebay_web.proxy_header import MOST_HEADER_BYTES, Client, begins_header, client_of, header_bytes, is_whole
from forebay_web.unix_listeners import is_unix_listener

log = logging.getLogger(__name__)

_MOST_HEADER_S = 5.0
"""How long a header may take to arrive."""
_PAUSE_S = 1.0
"""Until the next connection is accepted where there is no descriptor for one."""


class _HeaderRefused(Exception):
    """A connection began as it must not; ``reason`` is the metric's label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ProxyHeaders:
    """Reads the headers of a process's connections, and counts those that are refused."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.failures: Counter[str] = Counter()
        """Connections that were closed, by reason."""
        self._throttle = LogThrottle()

    async def client(self, connection: socket.socket, peer: str) -> Client | None:
        """The client that a connection's header names, None if its peer is the client.

        Nothing after the header is read. Raises ``_HeaderRefused``.
        """
        trusted = self.limits.peers.proxies.trusts(peer)
        try:
            async with asyncio.timeout(_MOST_HEADER_S):
                return await (_read_header(connection) if trusted else _refuse_header(connection))
        except TimeoutError:
            if trusted:
                raise _HeaderRefused("timeout", f"it sent no header in {_MOST_HEADER_S:.0f} s") from None
            return None

    def on_refused(self, peer: str, refused: _HeaderRefused) -> None:
        """Count a refused connection, and log the first of its kind in a minute."""
        self.failures[refused.reason] += 1
        if self._throttle.allow(refused.reason):
            log.warning("a connection from %s was closed, since %s (proxy_protocol)", peer, refused)


async def _read_header(connection: socket.socket) -> Client | None:
    received = b""
    try:
        while not is_whole(received):
            arrived = await _peek(connection)
            if not arrived:
                raise ConnectionAbortedError("it was closed before its header had arrived")
            received += connection.recv(header_bytes(received, arrived))
        return client_of(received)
    except ValueError as error:
        raise _HeaderRefused("malformed", str(error)) from None


async def _refuse_header(connection: socket.socket) -> None:
    if begins_header(await _peek(connection)):
        raise _HeaderRefused("untrusted", "it began with a header, and trusted_proxies does not name the address")


async def _peek(connection: socket.socket) -> bytes:
    """What has arrived, left to be read, as soon as something has."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(MOST_HEADER_BYTES, socket.MSG_PEEK)


class CountingListener:
    """Accepts the connections of one listening socket; closes as asyncio's servers do."""

    def __init__(
        self,
        listener: socket.socket,
        limits: Limits,
        headers: ProxyHeaders | None,
        serve: Callable[[socket.socket, Client | None, Held], Awaitable[object]],
    ) -> None:
        """``serve`` takes over a connection after its header, if it begins with one, with the client that this
        named, and what is held of the limit of connections until it is ready."""
        self._listener = listener
        self._limits = limits
        self._headers = headers
        self._serve = serve
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def start(self) -> None:
        """Begin to accept."""
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept nothing more, and close the connections whose headers have not arrived."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        for task in self._connections:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once these are closed."""
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # Another process accepted it, or its peer left.
            return
        except OSError as error:
            log.error("no connection can be accepted: %s", error)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_S, self.start)
            return
        connection.setblocking(False)
        peer = f"{LOCAL_USER}{peer_user(connection)}" if is_unix_listener(connection) else str(address[0])
        task = self._loop.create_task(self._begin(connection, peer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        with contextlib.ExitStack() as unless_served:
            unless_served.callback(connection.close)
            headers = self._headers
            try:
                with self._limits.connections.held_by(self._limits.peers.named(peer), 1) as held:
                    client = None if headers is None else await headers.client(connection, peer)
                    await self._serve(connection, client, held)
                unless_served.pop_all()
            except _HeaderRefused as refused:
                assert headers is not None
                headers.on_refused(peer, refused)
            except (OSError, TimeoutError, Overloaded) as error:
                # The peer left, speaks no TLS, or has too many connections.
                log.debug("a connection from %s was closed: %s", peer, error)
