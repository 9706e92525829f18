"""The listening sockets of a process, and what its log says of them."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Collection, Iterable, Iterator

from forebay.listen_addresses import (
    ListenAddress,
    exposed_addresses,
    is_beside_ipv4,
    tcp_addresses,
    unix_addresses,
)
from forebay_web.server import bind
from forebay_web.unix_listeners import unix_listener

log = logging.getLogger(__name__)


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
