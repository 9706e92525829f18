"""Ports, and the networks and names that a setting lists."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from forebay.errors import SettingError

MAX_PORT = 65_535
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def parse_port(text: str) -> int:
    """Read a port; raises ``ValueError`` naming the text.

    Why: resolvers take a larger one modulo 65,536, which leads to another server.
    """
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) <= MAX_PORT:
        raise ValueError(f"{text[:20]!r} is not a port: ports are numbers from 1 to {MAX_PORT}")
    return int(text)


class Networks:
    """The addresses of some networks, and some names."""

    def __init__(self, setting: str, items: Iterable[str], *, names: bool = False) -> None:
        """Raises ``SettingError``, which names the setting, for an item that is no network, or name if allowed."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._names: set[str] = set()
        for item in items:
            try:
                self._networks.append(ipaddress.ip_network(item))
            except ValueError as error:
                if not (names and _NAME.fullmatch(item)) or item.replace(".", "").isdigit():
                    raise SettingError(f"{setting}: {error}.") from None
                self._names.add(_normal(item))
        self._contains = lru_cache(maxsize=1024)(self._is_inside)

    def __contains__(self, address: str) -> bool:
        """Whether a numeric address is in one of the networks."""
        return self._contains(address)

    def names(self, host: str) -> bool:
        """Whether a host is one of the names."""
        return _normal(host) in self._names

    def _is_inside(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)


def _normal(name: str) -> str:
    return name.rstrip(".").lower()
