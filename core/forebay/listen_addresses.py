"""Where a process listens: on addresses of TCP, and on Unix sockets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from forebay.streams_metadata import HostInfo, is_loopback

_SCHEME = "unix:"
_MAX_PATH_BYTES = 107
"""The kernel's limit (``sun_path`` in ``unix(7)``)."""


class UnixAddress(NamedTuple):
    """The file of a Unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"{_SCHEME}{self.path}"

    @classmethod
    def parse(cls, text: str) -> UnixAddress:
        """Read ``unix:/path``, or ``unix:///path``; raises ``ValueError`` naming the text."""
        path = text.removeprefix(_SCHEME)
        if path.startswith("///"):
            path = path[2:]
        if not is_unix(text) or not path.startswith("/") or path.startswith("//") or path.endswith("/"):
            raise ValueError(f"{text!r} is not a Unix socket of the form unix:/run/forebay/router.sock")
        if len(path.encode()) > _MAX_PATH_BYTES:
            raise ValueError(f"{text!r} has a path of more than {_MAX_PATH_BYTES} bytes, the most for a socket")
        return cls(Path(path))


ListenAddress: TypeAlias = HostInfo | UnixAddress


def is_unix(text: str) -> bool:
    """Whether a text names a Unix socket, however badly."""
    return text.startswith(_SCHEME)


def parse_listen_address(text: str) -> ListenAddress:
    """Read ``host:port`` or ``unix:/path``; raises ``ValueError`` naming the text."""
    return UnixAddress.parse(text) if is_unix(text) else HostInfo.parse(text)


def tcp_addresses(listen: Iterable[ListenAddress]) -> list[HostInfo]:
    """Those of TCP."""
    return [address for address in listen if isinstance(address, HostInfo)]


def unix_addresses(listen: Iterable[ListenAddress]) -> list[UnixAddress]:
    """Those of Unix sockets."""
    return [address for address in listen if isinstance(address, UnixAddress)]


def exposed_addresses(listen: Iterable[ListenAddress]) -> list[HostInfo]:
    """Those that other machines may reach. Of a Unix socket the mode of its file decides who connects."""
    return [address for address in tcp_addresses(listen) if not is_loopback(address.host)]


def is_beside_ipv4(address: HostInfo, listen: Iterable[ListenAddress]) -> bool:
    """Whether an address of IPv6 has its port in common with one of IPv4, which a wildcard would take as well."""
    of_ipv4 = (other for other in tcp_addresses(listen) if other.is_ipv4)
    return not address.is_ipv4 and any(other.port == address.port for other in of_ipv4)
