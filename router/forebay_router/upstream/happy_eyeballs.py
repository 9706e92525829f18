"""Which address of a name to connect to, if some drop every packet: happy eyeballs (RFC 8305).

While an address is silent, the next is tried beside it, after 250 ms or a share of the time.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

_ATTEMPT_DELAY_S = 0.25
"""The recommended delay between connection attempts; RFC 8305, section 5."""

T = TypeVar("T")


class Address(NamedTuple):
    """A family and what ``socket.connect`` takes."""

    family: int
    sockaddr: Any

    @property
    def host(self) -> str:
        """The numeric host."""
        return str(self.sockaddr[0])


Fault = tuple[Address, str]
"""An address, and why there is no connection to it."""


def in_turn(found: Iterable[Sequence[Any]]) -> list[Address]:
    """The results of ``getaddrinfo`` in their order, families alternating; RFC 8305, section 4."""
    families: dict[int, list[Address]] = {}
    for family, *_, sockaddr in found:
        families.setdefault(family, []).append(Address(family, sockaddr))
    alternating = chain.from_iterable(zip_longest(*families.values()))
    return list(dict.fromkeys(address for address in alternating if address is not None))


def attempt_delay_s(timeout_s: float, addresses: int) -> float:
    """How long an address may be silent until the next is tried as well: within the time, all are."""
    return min(_ATTEMPT_DELAY_S, timeout_s / max(1, addresses))


def fault_of(error: BaseException) -> str:
    """What the system says of a connection that failed."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


class AsyncRace(Generic[T]):
    """Connection attempts to the addresses of a name, one after the other and beside each other, as tasks.

    ``close`` ends a connection that was made and lost the race. ``aclose`` must follow ``winner``.
    """

    def __init__(
        self,
        connect: Callable[[Address], Coroutine[Any, Any, T]],
        close: Callable[[T], Coroutine[Any, Any, None]],
        addresses: Sequence[Address],
        timeout_s: float,
    ) -> None:
        self._connect = connect
        self._close = close
        self._waiting = deque(addresses)
        self._delay_s = attempt_delay_s(timeout_s, len(addresses))
        self._attempts: dict[asyncio.Task[T], Address] = {}
        self._faults: list[Fault] = []

    async def winner(self) -> T:
        """The first connection; raises ``OSError`` if none can be made."""
        while self._waiting or self._attempts:
            if self._waiting:
                address = self._waiting.popleft()
                self._attempts[asyncio.create_task(self._connect(address))] = address
            delay_s = self._delay_s if self._waiting else None
            ended, _ = await asyncio.wait(self._attempts, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            for attempt in ended:
                error = attempt.exception()
                if error is None:
                    del self._attempts[attempt]
                    return attempt.result()
                self._faults.append((self._attempts.pop(attempt), fault_of(error)))
        raise OSError("; ".join(f"{address.host}: {fault}" for address, fault in self._faults))

    async def aclose(self) -> None:
        """End the attempts that are left."""
        for attempt in self._attempts:
            attempt.cancel()
        for left in await asyncio.gather(*self._attempts, return_exceptions=True):
            if not isinstance(left, BaseException):
                await self._close(left)
