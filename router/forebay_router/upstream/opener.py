"""Opens connections to workers, to whichever address of a name accepts one first."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from forebay.happy_eyeballs import Address, AsyncRace, in_turn
from forebay.metadata import HostInfo
from forebay_router.upstream.connection import Connection, InFlight
from forebay_router.upstream.encryption import Encryption, unencrypted
from forebay_router.upstream.event_upstream import EventUpstream
from forebay_router.upstream.timeouts import running_timeout

_CONNECT_TIMEOUT_S = 1.0
_UNACKNOWLEDGED_MS = 2_000
"""How long a worker's machine may leave sent data unacknowledged; if only the process hangs, its system still
acknowledges."""
_KEEP_ALIVE_S = 5
"""After how long without traffic the worker's machine is asked whether the connection is still there."""


class Opener:
    """Opens connections for requests, and for streams of events."""

    def __init__(self, encryption: Encryption = unencrypted) -> None:
        self._encryption = encryption

    async def connect(self, host: HostInfo, in_flight: InFlight) -> Connection:
        """A connection for requests; raises ``OSError``."""
        async with running_timeout(_CONNECT_TIMEOUT_S):
            own = await _socket_to(host)
            # A machine that vanished closes nothing: without these, the connection would seem alive for minutes,
            # or for ever while nothing is sent on it.
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            loop = asyncio.get_running_loop()
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(in_flight), sock=own, **self._encryption(host)
                )
            except BaseException:
                own.close()
                raise
            return connection

    async def open_events(self, host: HostInfo, request: bytes) -> EventUpstream:
        """A stream of events that a request asks for; raises ``OSError``."""
        own = await _socket_to(host)
        try:
            reader, writer = await asyncio.open_connection(sock=own, **self._encryption(host))
        except BaseException:
            own.close()
            raise
        writer.write(request)
        return EventUpstream(reader, writer)


async def _socket_to(host: HostInfo) -> socket.socket:
    """A socket connected to one of a host's addresses; raises ``OSError``."""
    addresses = await _resolved(host)
    if len(addresses) == 1:
        return await _connected(addresses[0])
    race = AsyncRace(_connected, _close, addresses, _CONNECT_TIMEOUT_S)
    try:
        return await race.winner()
    finally:
        await race.aclose()


async def _resolved(host: HostInfo) -> list[Address]:
    """A host's addresses in the order in which to try them; raises ``OSError``."""
    try:
        with contextlib.suppress(socket.gaierror):
            # Nearly always an address, which takes no thread.
            flags = socket.AI_NUMERICHOST
            return in_turn(socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM, flags=flags))
        found = await asyncio.get_running_loop().getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        # A name that DNS cannot have, such as one with two dots in a row.
        raise OSError(f"{host} is no address: {error}") from None
    return in_turn(found)


async def _connected(address: Address) -> socket.socket:
    own = socket.socket(address.family, socket.SOCK_STREAM)
    own.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(own, address.sockaddr)
    except BaseException:
        own.close()
        raise
    return own


async def _close(own: socket.socket) -> None:
    own.close()
