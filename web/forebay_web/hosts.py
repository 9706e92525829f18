"""The hosts by which requests may address a process (RFC 9110, section 7.2).

A page whose author has its name resolve to this machine's address (DNS rebinding) reads from here as if it came
from here. What gives it away is the name, which browsers send as ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay.bounded_cache import remembered
from forebay.listen_addresses import ListenAddress, exposed_addresses
from forebay.streams_metadata import HostInfo, is_address, is_loopback

_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?")
_MAX_REMEMBERED, _MAX_REMEMBERED_BYTES = 1024, 512


class AllowedHosts:
    """Which values of ``Host`` requests may have, with any port; ``names`` is None if all may be.

    Addresses are always allowed, since nobody can make one lead elsewhere, and so are the names of loopback.
    """

    def __init__(self, names: Iterable[str] | None) -> None:
        self.any = names is None
        self._names = frozenset(_same(name) for name in names or ())
        self._is_known = remembered(self._allows, _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES)

    def allows(self, host: bytes) -> bool:
        return self.any or self._is_known(host)

    def _allows(self, host: bytes) -> bool:
        parts = _HOST.fullmatch(host.strip(b" \t"))
        if parts is None:
            return False
        name = _same((parts[1] or parts[2]).decode("latin-1"))
        return name in self._names or is_address(name) or is_loopback(name)


ANY_HOST = AllowedHosts(None)


def allowed_hosts(
    listen: Iterable[ListenAddress], names: tuple[str, ...], advertised: HostInfo | None = None
) -> AllowedHosts:
    """Those of a process by its settings; without any, all where other machines may reach it, else loopback's.

    The host that it advertises is among them: routers address it so.
    """
    if "*" in names or (exposed_addresses(listen) and not names):
        return ANY_HOST
    return AllowedHosts(names if advertised is None else (*names, advertised.host))


def _same(name: str) -> str:
    """Names that DNS does not tell apart are the same."""
    return name.lower().removesuffix(".")
