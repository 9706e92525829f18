"""Connections of ``httpx`` by happy eyeballs: ``httpcore`` alone would spend all the time of a blocking client on
the first address of a name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import httpcore

# The stream of httpcore's blocking backend has no public name, and a backend that connects by itself needs one.
from httpcore._backends.sync import SyncStream

from forebay.happy_eyeballs import Address, AsyncRace, Fault, attempt_delay_s, fault_of, faults_text, in_turn

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class Backend(httpcore.SyncBackend):
    """Connects a blocking client."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection to the first address that accepts one. No pool here sets a local address or options."""
        try:
            addresses = in_turn(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            with _Race(addresses, timeout) as race:
                connection = race.winner()
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SyncStream(connection)


class _Race:
    """Connection attempts to the addresses of a name, one after the other and beside each other."""

    def __init__(self, addresses: Sequence[Address], timeout_s: float | None) -> None:
        self._waiting = deque(addresses)
        self._delay_s = attempt_delay_s(timeout_s, len(addresses))
        self._next_s = time.monotonic()
        self._deadline_s = None if timeout_s is None else self._next_s + timeout_s
        self._faults: list[Fault] = []
        self._attempts = selectors.DefaultSelector()

    def winner(self) -> socket.socket:
        """The first socket that is connected; raises ``OSError`` if none can be, ``TimeoutError`` if none is in
        time."""
        while True:
            now_s = time.monotonic()
            if self._waiting and (now_s >= self._next_s or not self._attempts.get_map()):
                self._begin(self._waiting.popleft())
                self._next_s = now_s + self._delay_s
            if not self._attempts.get_map() and not self._waiting:
                raise OSError(faults_text(self._faults))
            if self._deadline_s is not None and now_s >= self._deadline_s:
                silent = [(key.data, "timed out") for key in self._attempts.get_map().values()]
                raise TimeoutError(faults_text([*self._faults, *silent]))
            for key, _ in self._attempts.select(self._wait_s(now_s)):
                connection = self._end(key)
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not error:
                    return connection
                connection.close()
                self._faults.append((key.data, os.strerror(error)))

    def _wait_s(self, now_s: float) -> float | None:
        if not self._attempts.get_map():
            return 0.0
        ends = [self._next_s] if self._waiting else []
        ends += [] if self._deadline_s is None else [self._deadline_s]
        return max(0.0, min(ends) - now_s) if ends else None

    def _begin(self, address: Address) -> None:
        connection = None
        try:
            connection = socket.socket(address.family, socket.SOCK_STREAM)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(address.sockaddr)
        except OSError as error:
            if connection is not None:
                connection.close()
            self._faults.append((address, fault_of(error)))
            return
        self._attempts.register(connection, selectors.EVENT_WRITE, address)

    def _end(self, key: selectors.SelectorKey) -> socket.socket:
        self._attempts.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        return key.fileobj

    def __enter__(self) -> _Race:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._attempts.get_map().values()):
            self._end(key).close()
        self._attempts.close()


class AsyncBackend(httpcore.AnyIOBackend):
    """Connects an asynchronous client."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address that accepts one."""

        def connect(address: Address) -> Coroutine[Any, Any, httpcore.AsyncNetworkStream]:
            return super(AsyncBackend, self).connect_tcp(address.host, port, None, local_address, socket_options)

        async def close(connection: httpcore.AsyncNetworkStream) -> None:
            await connection.aclose()

        race: AsyncRace[httpcore.AsyncNetworkStream] | None = None
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                race = AsyncRace(connect, close, in_turn(found), timeout)
                return await race.winner()
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("" if race is None else race.faults()) from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        finally:
            if race is not None:
                await race.aclose()
