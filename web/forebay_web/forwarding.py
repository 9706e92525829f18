"""For whom a trusted proxy sends a request: ``X-Forwarded-For``, or ``Forwarded`` (RFC 7239)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from forebay.bounded_cache import remembered
from forebay.networks import Networks

UNIX = "unix"
"""In place of a network: whoever may connect to the Unix sockets."""

LOCAL_USER = "user "
"""Begins the name of a peer on a Unix socket, which has no address."""

_FOR = re.compile(r'for=(?:"([^"]*)"|([^",;\s]+))', re.IGNORECASE)
_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+")
_MAX_REMEMBERED, _MAX_REMEMBERED_BYTES = 4096, 512


def forwarded_chain(x_forwarded_for: Sequence[bytes], forwarded: Sequence[bytes]) -> bytes:
    """The hosts that two headers name, comma-separated, the nearest last; empty without any.

    Empty also if a request has both headers. Why: a proxy sets one of them, and may pass on the other as its
    client wrote it.
    """
    if x_forwarded_for and forwarded:
        return b""
    if not forwarded:
        return b",".join(x_forwarded_for)
    elements = b",".join(forwarded).decode("latin-1").split(",")
    matches = [_FOR.search(element) for element in elements]
    return ",".join("" if match is None else match[1] or match[2] for match in matches).encode("latin-1")


class TrustedProxies:
    """The proxies whose headers are used."""

    def __init__(self, items: Sequence[str]) -> None:
        """Raises ``SettingError`` for an item that is neither a network nor ``unix``."""
        self._networks = Networks("trusted_proxies", [item for item in items if item != UNIX])
        self._trusts_unix = UNIX in items
        self.any = bool(items)
        self._last_stranger = remembered(self._find_last_stranger, _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES)

    def trusts(self, peer: str) -> bool:
        """Whether a peer, an address or ``user`` and its number, is one of the proxies."""
        return self._trusts_unix if peer.startswith(LOCAL_USER) else peer in self._networks

    def client(self, peer: str, chain: bytes) -> str:
        """The address of the client whose request a peer sent, with the hosts that its headers name.

        That is the last one that is no trusted proxy. Those before it are what that client wrote. Without such a
        host, or if it is no address, it is the peer.
        """
        return (self._last_stranger(chain) or peer) if self.trusts(peer) else peer

    def _find_last_stranger(self, chain: bytes) -> str:
        """The last address that is no trusted proxy, else the first of the proxies; empty without any address."""
        client = ""
        for host in reversed(chain.decode("latin-1").split(",")):
            address = _address(host.strip())
            if address is None:
                break
            client = address
            if address not in self._networks:
                break
        return client


def _address(host: str) -> str | None:
    """An address without its port, None for a name or an obfuscated host."""
    with_port = _PORT.fullmatch(host)
    try:
        return str(ipaddress.ip_address(host if with_port is None else with_port[1] or with_port[2]))
    except ValueError:
        return None
