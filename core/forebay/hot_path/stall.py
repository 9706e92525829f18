"""Lets a peer go that takes nothing of what waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios

_MOST_STALL_S = 10.0
"""How long a peer may take nothing."""
_OUT_QUEUE = struct.Struct("@i")


class StallWatch:
    """Watches one connection while more waits for its peer than may."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on the peer must take something now and then."""
        if self._timer is None:
            self._timer = self._loop.call_later(_MOST_STALL_S, self._look, self._waiting_bytes())

    def end(self) -> None:
        """Little waits for it, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, waited: int) -> None:
        left = self._waiting_bytes()
        if left >= waited:
            # To close it would be to wait for the peer on and on.
            self._timer = None
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(_MOST_STALL_S, self._look, left)

    def _waiting_bytes(self) -> int:
        """What the peer has not taken, in this process and in the kernel, which has room for megabytes."""
        waiting = int(self._transport.get_write_buffer_size())
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                # SIOCOUTQ of tcp(7): it falls with each byte, the transport's buffer after a third of them.
                waiting += _OUT_QUEUE.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting
