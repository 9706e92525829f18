"""Whether connections to workers are encrypted, and whose certificates are accepted then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay.streams_metadata import HostInfo
from forebay_web.tls import trust

Encryption = Callable[[HostInfo], Mapping[str, Any]]
"""What asyncio needs to encrypt a connection to a worker: nothing if it is not to be encrypted."""


def unencrypted(_host: HostInfo) -> Mapping[str, Any]:
    """Plain connections."""
    return {}


def encryption_of(ca_file: Path | None, name_of: Callable[[HostInfo], str]) -> Encryption:
    """TLS, if there is a file of authorities to trust; raises ``SettingError`` if it is unusable.

    ``name_of`` gives the name that a worker's certificate must contain.
    """
    if ca_file is None:
        return unencrypted
    trusted = trust(ca_file)
    return lambda host: {"ssl": trusted(), "server_hostname": name_of(host)}
