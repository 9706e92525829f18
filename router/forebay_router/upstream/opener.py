"""Opens connections to workers, to whichever address of a name accepts one first, and has the token for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from forebay.bearer_tokens import token_file
from forebay.errors import AnswerTooLarge, Forbidden, Unauthenticated
from forebay.networks import Networks
from forebay.request_trace import current
from forebay.settings import RouterSettings
from forebay.streams_metadata import HostInfo
from forebay.timeouts import running_timeout
from forebay.wire.answer_schemas.status import IDENTITY_PATH, MAX_IDENTITY_BYTES
from forebay.wire.answers import HttpAnswer
from forebay_router.upstream.connection import Connection, EventUpstream, InFlight, UpstreamClosed, parse_answer
from forebay_web.tls import trust

Encryption = Callable[[HostInfo], Mapping[str, Any]]
"""What asyncio needs to encrypt a connection to a worker: nothing if it is not to be encrypted."""
Address = tuple[int, Any]
"""A family, and what ``socket.connect`` takes."""
_CONNECT_TIMEOUT_S = 1.0
_ATTEMPT_DELAY_S = 0.25
"""Between attempts at the addresses of a name, as RFC 8305 recommends it; less if there are many."""
_MAX_IDENTITY_S = 30.0
_UNACKNOWLEDGED_MS = 2_000
"""How long a worker's machine may leave sent data unacknowledged; if only the process hangs, its system still
acknowledges."""
_MAX_IDENTITY_ANSWER_BYTES = 2 * MAX_IDENTITY_BYTES
_KEEP_ALIVE_S = 5
"""After how long without traffic the worker's machine is asked whether the connection is still there."""
Admit = Callable[[HostInfo, HttpAnswer], None]
"""Decides on what an address answers to the request for its identity; raises ``NotAdmitted``."""
REFUSALS = frozenset({Unauthenticated.status, Forbidden.status})
"""Statuses by which a worker refuses the router, which is never a client's fault."""


def unencrypted(_host: HostInfo) -> Mapping[str, Any]:
    """Plain connections."""
    return {}


def encryption_of(ca_file: Path | None, name_of: Callable[[HostInfo], str]) -> Encryption:
    """TLS, if there is a file of authorities to trust; raises ``SettingError`` if it is unusable.

    ``name_of`` gives the name that a worker's certificate must contain.
    """
    if ca_file is None:
        return unencrypted
    trusted = trust(ca_file)
    return lambda host: {"ssl": trusted(), "server_hostname": name_of(host)}


class NotAdmitted(ConnectionError):
    """What answers at an address gets neither the router's token nor a read; ``reason``, if that is certain."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason or "it is not known yet whether its application is the router's")
        self.reason = reason


class Opener:
    """Opens connections for requests, and for streams of events.

    Each begins with a request for the identity of what answers there, without a token: an address may have been
    given to another process since it was last used, or named by mistake. Only if ``admit`` allows it, anything
    else is sent. ``token_networks`` are where connections may lead at all; None for anywhere.
    """

    def __init__(
        self,
        encryption: Encryption = unencrypted,
        token_networks: Networks | None = None,
        admit: Admit | None = None,
    ) -> None:
        self._encryption = encryption
        self._token_networks = token_networks
        self._admit = admit

    async def connect(self, host: HostInfo, in_flight: InFlight) -> Connection:
        """A connection for requests; raises ``OSError``."""
        async with running_timeout(_CONNECT_TIMEOUT_S):
            transport, reader = await self._open(host)
        own = transport.get_extra_info("socket")
        # A machine that vanished closes nothing: without these, the connection would seem alive for minutes, or
        # for ever while nothing is sent on it.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        await self._require_admitted(host, transport, reader)
        connection = Connection(in_flight)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection

    async def open_events(self, host: HostInfo, request: bytes) -> EventUpstream:
        """A stream of events that a request asks for; raises ``OSError``."""
        transport, reader = await self._open(host)
        await self._require_admitted(host, transport, reader)
        trace = current.get()
        transport.write(request if trace is None else trace.passed_on(request))
        return EventUpstream(reader, transport)

    async def _open(self, host: HostInfo) -> tuple[asyncio.Transport, asyncio.StreamReader]:
        own, reader = await _socket_to(host), asyncio.StreamReader()
        try:
            self._require_token_network(host, own)
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: asyncio.StreamReaderProtocol(reader), sock=own, **self._encryption(host)
            )
        except BaseException:
            own.close()
            raise
        return transport, reader

    async def _require_admitted(
        self, host: HostInfo, transport: asyncio.Transport, reader: asyncio.StreamReader
    ) -> None:
        """Close the connection and raise ``OSError`` unless what answers there is admitted."""
        try:
            if self._admit is not None:
                # A worker that hangs is waited for as long as its answers would be.
                async with running_timeout(_MAX_IDENTITY_S):
                    self._admit(host, await _identity(host, transport, reader))
            if reader.at_eof() or transport.is_closing():
                raise UpstreamClosed("the worker closed the connection")
        except BaseException:
            transport.abort()
            raise

    def _require_token_network(self, host: HostInfo, own: socket.socket) -> None:
        networks = self._token_networks
        if networks is None or networks.names(host.host):
            return
        address = str(own.getpeername()[0])
        if address not in networks:
            raise NotAdmitted(
                f"gets no token, since {address} is not in worker_token_networks and the connection is not "
                "encrypted: give --worker-ca-file, or name the network"
            )


async def _identity(host: HostInfo, transport: asyncio.Transport, reader: asyncio.StreamReader) -> HttpAnswer:
    """What is answered to the request for an identity; raises ``OSError``."""
    transport.write(b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (IDENTITY_PATH.encode(), str(host).encode()))
    received = b""
    while len(received) < _MAX_IDENTITY_ANSWER_BYTES:
        piece = await reader.read(_MAX_IDENTITY_ANSWER_BYTES - len(received))
        received += piece
        try:
            parsed = parse_answer(received, 0)
        except (ValueError, AnswerTooLarge) as error:
            raise NotAdmitted(f"answers with something other than an identity: {error}") from None
        if parsed is not None:
            answer, end, _ = parsed
            if end == len(received):
                return answer
            break
        if not piece:
            raise UpstreamClosed("the worker closed the connection")
    raise NotAdmitted("answers with more than an identity")


async def _socket_to(host: HostInfo) -> socket.socket:
    """A socket connected to one of a host's addresses; raises ``OSError``."""
    addresses = await _resolved(host)
    if len(addresses) == 1:
        return await _connected(addresses[0])
    delay_s = min(_ATTEMPT_DELAY_S, _CONNECT_TIMEOUT_S / max(1, len(addresses)))
    return await _first_connected(addresses, delay_s)


async def _resolved(host: HostInfo) -> list[Address]:
    """A host's addresses in the order in which to try them; raises ``OSError``."""
    try:
        with contextlib.suppress(socket.gaierror):
            # Nearly always an address, which takes no thread.
            flags = socket.AI_NUMERICHOST
            return interleaved(socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM, flags=flags))
        found = await asyncio.get_running_loop().getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        # A name that DNS cannot have, such as one with two dots in a row.
        raise OSError(f"{host} is no address: {error}") from None
    return interleaved(found)


def interleaved(found: Iterable[Sequence[Any]]) -> list[Address]:
    """The results of ``getaddrinfo`` in their order, families alternating; RFC 8305, section 4."""
    families: dict[int, list[Address]] = {}
    for family, *_, sockaddr in found:
        families.setdefault(family, []).append((family, sockaddr))
    alternating = chain.from_iterable(zip_longest(*families.values()))
    return list(dict.fromkeys(address for address in alternating if address is not None))


async def _first_connected(addresses: Sequence[Address], delay_s: float) -> socket.socket:
    """A socket connected to the address that accepts first; raises ``OSError`` if none does.

    While an address is silent for this long, the next is tried beside it: happy eyeballs (RFC 8305).
    """
    waiting, faults = deque(addresses), []
    attempts: dict[asyncio.Task[socket.socket], Address] = {}
    try:
        while waiting or attempts:
            if waiting:
                address = waiting.popleft()
                attempts[asyncio.create_task(_connected(address))] = address
            timeout_s = delay_s if waiting else None
            ended, _ = await asyncio.wait(attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for attempt in ended:
                _, sockaddr = attempts.pop(attempt)
                error = attempt.exception()
                if error is None:
                    return attempt.result()
                why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
                faults.append(f"{sockaddr[0]}: {why}")
        raise OSError("; ".join(faults))
    finally:
        for attempt in attempts:
            attempt.cancel()
        for left in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(left, socket.socket):
                left.close()


async def _connected(address: Address) -> socket.socket:
    family, sockaddr = address
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(own, sockaddr)
    except BaseException:
        own.close()
        raise
    return own


log = logging.getLogger(__name__)


def credentials_of(path: Path | None) -> Callable[[], bytes]:
    """Returns the current line of the ``Authorization`` header, including CRLF.

    The token comes from a file; without one the line is empty. Raises ``SettingError``.
    """
    value = token_file(path)
    return lambda: b"" if value is None else b"authorization: %b\r\n" % value()


def token_networks_of(settings: RouterSettings) -> Networks | None:
    """Where the token may go in the clear; None if there is none, or it goes encrypted only. Raises
    ``SettingError``."""
    networks = Networks("worker_token_networks", settings.worker_token_networks, names=True)
    return networks if settings.worker_token_file is not None and settings.worker_ca_file is None else None


def log_auth_rejection(host: HostInfo, what: str, status: int) -> None:
    """Log that a worker refuses what the router asks of it."""
    log.error(
        "the worker %s refuses this router's %s with %d: --worker-token-file must contain a token that it accepts",
        host,
        what,
        status,
    )
