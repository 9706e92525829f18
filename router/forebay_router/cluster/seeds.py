"""Seeds: the addresses from which a router learns of the first workers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable

from forebay.streams_metadata import HostInfo, is_address

log = logging.getLogger(__name__)

Resolve = Callable[[HostInfo], Awaitable[Iterable[HostInfo]]]
"""All addresses that a name stands for; raises ``OSError`` if there are none."""

_RESOLVE_INTERVAL_S = 5.0
_AFTER_FAILURE_S = 1.0


async def resolve(seed: HostInfo) -> list[HostInfo]:
    """The system resolver's answer, requested in a thread; raises ``OSError`` or ``UnicodeError``."""
    found = await asyncio.get_running_loop().getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
    return [HostInfo(str(address[0]), seed.port) for *_, address in found]


class Seeds:
    """Seeds as configured, and the addresses that they stand for now.

    A name stands for every address that it resolves to, and is looked up again every five seconds; while that
    fails it stands for the previous addresses.
    """

    def __init__(self, seeds: Iterable[HostInfo], resolve: Resolve = resolve) -> None:
        given = frozenset(seeds)
        self._names = frozenset(seed for seed in given if not is_address(seed.host))
        self._resolve = resolve
        self._of_name: dict[HostInfo, frozenset[HostInfo]] = {}
        self._failing: set[HostInfo] = set()
        self._addresses = given - self._names

    @property
    def addresses(self) -> frozenset[HostInfo]:
        """Every address that the seeds stand for now."""
        return self._addresses.union(*self._of_name.values())

    def name_of(self, address: HostInfo) -> str:
        """The name of the seed that an address was found by, its host for all other addresses."""
        return next((name.host for name, found in self._of_name.items() if address in found), address.host)

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Look names up repeatedly, each at its own pace, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._names:
                group.create_task(self._follow(name, on_change))

    async def _follow(self, name: HostInfo, on_change: Callable[[], None]) -> None:
        while True:
            resolved = await self.resolve(name)
            on_change()
            await asyncio.sleep(_RESOLVE_INTERVAL_S if resolved else _AFTER_FAILURE_S)

    async def resolve(self, name: HostInfo) -> bool:
        """Look a name up once; whether it stands for anything."""
        try:
            found = frozenset(await self._resolve(name))
        except (OSError, UnicodeError) as error:
            if name not in self._failing:
                self._failing.add(name)
                log.warning("the seed %s cannot be resolved: %s", name, error)
            return False
        self._failing.discard(name)
        self._of_name[name] = found
        return bool(found)
