"""A listener that counts connections before their TLS handshake; those of asyncio show them only after it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from forebay.errors import Overloaded
from forebay_web.limits import Held, Limits

log = logging.getLogger(__name__)

_MAX_HANDSHAKE_S = 10.0
_PAUSE_S = 1.0
"""Until the next connection is accepted where there is no descriptor for one."""


class TlsListener:
    """Accepts the connections of one listening socket; closes as asyncio's servers do."""

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
        """Return once these are closed."""
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
