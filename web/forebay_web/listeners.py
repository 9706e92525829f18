"""The listening sockets of a process: of TCP, with TLS or without, and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from forebay.errors import ConfigurationError, ListenAddressInUse, Overloaded
from forebay.listen_addresses import (
    ListenAddress,
    UnixAddress,
    exposed_addresses,
    is_beside_ipv4,
    tcp_addresses,
    unix_addresses,
)
from forebay.streams_metadata import HostInfo
from forebay_web.limits import Held, Limits

log = logging.getLogger(__name__)

_BACKLOG = 2048
"""Of a Unix socket."""
_UMASK = 0o117
"""For the mode 0660."""
_MAX_HANDSHAKE_S = 10.0
_PAUSE_S = 1.0
"""Until the next connection is accepted where there is no descriptor for one."""


@contextlib.contextmanager
def bound(
    listen: Collection[ListenAddress], socket_group: str | None, *, shared: bool = False
) -> Iterator[list[socket.socket]]:
    """The listening sockets, until the end of the block; raises ``ConfigurationError`` naming the address.

    ``shared`` addresses of TCP may be used by several processes of the same user.
    """
    with contextlib.ExitStack() as stack:
        tcp = [
            stack.enter_context(bind(address, shared=shared, only_ipv6=is_beside_ipv4(address, listen)))
            for address in tcp_addresses(listen)
        ]
        unix = [stack.enter_context(unix_listener(path, socket_group)) for path in unix_addresses(listen)]
        yield [*tcp, *unix]


def warn_of_anonymous_access(listen: Iterable[ListenAddress]) -> None:
    """Log the addresses at which other machines may read from a process that authenticates nobody."""
    for address in exposed_addresses(listen):
        log.warning("listening on %s, which other machines may reach: requests are not authenticated", address)


def bind(listen: HostInfo, *, shared: bool = False, only_ipv6: bool = False) -> socket.socket:
    """The listening socket; raises ``ListenAddressInUse`` naming the address.

    A ``shared`` address may be used by several processes of the same user if all share it. With ``only_ipv6`` the
    wildcard ``[::]`` leaves the machine's addresses of IPv4 to other sockets.
    """
    family = socket.AF_INET if listen.is_ipv4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if only_ipv6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((listen.host, listen.port))
    except OSError as error:
        listener.close()
        raise cannot_listen(listen, error) from None
    return listener


def cannot_listen(listen: HostInfo, error: OSError) -> ListenAddressInUse:
    """The error for an operator when an address cannot be listened on."""
    in_use = ListenAddressInUse(
        f"Cannot listen on {listen}: {error.strerror}. Choose another address with --listen."
    )
    if error.errno != errno.EADDRINUSE:
        # Trying again will not make the address this host's.
        in_use.exit_status = ConfigurationError.exit_status
    return in_use


def unix_listener(address: UnixAddress, group: str | None) -> socket.socket:
    """A listening socket to which its user and the group, by default that of the process, may connect.

    It takes the place of a socket on which nobody answers, and leaves its own file to the next. Raises
    ``ListenAddressInUse`` if somebody answers, and ``ConfigurationError`` if the file cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(_UMASK)
    try:
        _remove_stale(address)
        listener.bind(os.fspath(address.path))
        if group is not None:
            # Before it listens, nobody can connect.
            shutil.chown(address.path, group=int(group) if group.isdecimal() else group)
        listener.listen(_BACKLOG)
    except (OSError, LookupError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"Cannot listen on {address}: {reason}. The directory {address.path.parent} must exist and be "
            "writable for this process's user, who must be a member of the --socket-group. If the file is there, "
            "it must be a socket."
        ) from None
    finally:
        os.umask(umask)
    listener.setblocking(False)
    return listener


def inherited_listener(descriptor: int) -> socket.socket:
    """A listening socket of this process's parent."""
    listener = socket.socket(fileno=descriptor)
    # Why: processes share this flag. A duplicate of a blocking one would set it, and others hang in ``accept``.
    listener.setblocking(False)
    return listener


def _remove_stale(address: UnixAddress) -> None:
    """Remove the socket of a process that is gone; raises ``ListenAddressInUse``."""
    found = _connect(address.path)
    if found in (0, errno.EAGAIN):
        raise ListenAddressInUse(
            f"Cannot listen on {address}: another process answers there. Stop it, or give another path with "
            "--listen."
        )
    if found == errno.ECONNREFUSED and address.path.is_socket():
        address.path.unlink()


def _connect(path: Path) -> int:
    """The number of the error of a connection, 0 if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(os.fspath(path))


class TlsListener:
    """Accepts the connections of one listening socket, and counts them before their TLS handshake.

    Those of asyncio show connections only after it. It closes as they do.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        limits: Limits,
        make_protocol: Callable[[Held], asyncio.Protocol],
    ) -> None:
        """``make_protocol`` gets what a connection holds of their limit until its protocol counts it."""
        self._listener = listener
        self._tls = tls
        self._limits = limits
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks = {self._loop.create_task(self._accept())}

    def close(self) -> None:
        """Accept nothing more, and close the connections that have not shaken hands."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            task = self._loop.create_task(self._shake_hands(connection, str(address[0])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        with contextlib.ExitStack() as unless_served:
            unless_served.callback(connection.close)
            try:
                with self._limits.connections.held_by(self._limits.peers.named(peer), 1) as held:
                    await self._loop.connect_accepted_socket(
                        partial(self._make_protocol, held),
                        connection,
                        ssl=self._tls,
                        ssl_handshake_timeout=_MAX_HANDSHAKE_S,
                    )
                unless_served.pop_all()
            except (OSError, TimeoutError, Overloaded) as error:
                # The peer left, speaks no TLS, or has too many connections.
                log.debug("a connection from %s was closed: %s", peer, error)
