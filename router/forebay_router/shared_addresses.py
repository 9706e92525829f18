"""The addresses that the processes of a router share.

Only they listen on an address of TCP, with SO_REUSEPORT: the kernel spreads connections over the live ones, and
none waits for a dead one. The parent listens on a Unix socket, and they inherit it: whichever is idle accepts.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from forebay.listen_addresses import tcp_addresses, unix_addresses
from forebay.settings import RouterSettings
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bound
from forebay_web.server import bind, cannot_listen


@contextlib.contextmanager
def reserved(settings: RouterSettings) -> Iterator[list[socket.socket]]:
    """Claim the addresses of TCP until the end of the block. Yields the Unix sockets, which processes inherit."""
    with contextlib.ExitStack() as stack:
        for address in tcp_addresses(settings.listen):
            stack.enter_context(claim(address))
        yield stack.enter_context(bound(unix_addresses(settings.listen), settings.socket_group))


def claim(listen: HostInfo) -> socket.socket:
    """Reserve an address for processes that share it; raises ``ListenAddressInUse``.

    A shared address admits every process of the same user that shares it too. So the parent first binds it
    exclusively; and while the processes start and none listens yet, an abstract Unix socket, in the same network
    namespace as the port, keeps out a second router.
    """
    with bind(listen) as bound:
        # The same under any name of the address.
        host, port = bound.getsockname()[:2]
    claimed = socket.socket(socket.AF_UNIX)
    try:
        claimed.bind(f"\0forebay-router/{host}:{port}")
    except OSError as error:
        claimed.close()
        raise cannot_listen(listen, error) from None
    return claimed
