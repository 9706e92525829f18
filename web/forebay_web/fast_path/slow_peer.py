"""Drops a peer that has stopped reading."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios

_MOST_STALL_S = 10.0
"""How long a peer may read nothing."""
_CLOSING_INTERVAL_S = 0.1
"""How often a closing connection is looked at."""
_OUT_QUEUE = struct.Struct("@i")


class SlowPeerWatch:
    """Watches one connection while too much waits for its peer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on the peer must read something now and then."""
        if self._timer is None:
            self._check_later(_MOST_STALL_S)

    def finish(self) -> None:
        """The same for a connection that is being closed, and ends as soon as everything is read.

        Why: asyncio's TLS waits half a minute for the peer to confirm a close, and one that is idle confirms none.
        Each deployment would take that long. RFC 8446 allows to end without that.
        """
        self.end()
        self._check_later(_CLOSING_INTERVAL_S)

    def end(self) -> None:
        """Little is waiting, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self, interval_s: float, stalled_s: float = 0.0) -> None:
        left = self._waiting_bytes()
        self._timer = self._loop.call_later(interval_s, self._check, left, interval_s, stalled_s)

    def _check(self, waited: int, interval_s: float, stalled_s: float) -> None:
        left = self._waiting_bytes()
        stalled_s = stalled_s + interval_s if left >= waited else 0.0
        finished = interval_s == _CLOSING_INTERVAL_S and not left
        if finished or stalled_s >= _MOST_STALL_S:
            # A regular close would wait for the peer indefinitely.
            self._timer = None
            self._transport.abort()
        else:
            self._check_later(interval_s, stalled_s)

    def _waiting_bytes(self) -> int:
        """Bytes that the peer has not read, in this process and in the kernel, which can buffer megabytes."""
        waiting = int(self._transport.get_write_buffer_size())
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                # SIOCOUTQ of tcp(7): it falls with each byte, the transport's buffer after a third of them.
                waiting += _OUT_QUEUE.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting
