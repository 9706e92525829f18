"""The router's credentials for workers: a token of its own, never a client's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from forebay.bearer_tokens import token_file
from forebay.errors import Forbidden, Unauthenticated
from forebay.networks import Networks
from forebay.settings import RouterSettings
from forebay.streams_metadata import HostInfo

log = logging.getLogger(__name__)

REFUSALS = frozenset({Unauthenticated.status, Forbidden.status})
"""Statuses by which a worker refuses the router, which is never a client's fault."""


def credentials_of(path: Path | None) -> Callable[[], bytes]:
    """Returns the current line of the ``Authorization`` header, including CRLF.

    The token comes from a file; without one the line is empty. Raises ``SettingError``.
    """
    value = token_file(path)
    return lambda: b"" if value is None else b"authorization: %b\r\n" % value()


def token_networks_of(settings: RouterSettings) -> Networks | None:
    """Where the token may go in the clear; None if there is none, or it goes encrypted only. Raises
    ``SettingError``."""
    networks = Networks("worker_token_networks", settings.worker_token_networks, names=True)
    return networks if settings.worker_token_file is not None and settings.worker_ca_file is None else None


def log_auth_rejection(host: HostInfo, what: str, status: int) -> None:
    """Log that a worker refuses what the router asks of it."""
    log.error(
        "the worker %s refuses this router's %s with %d: --worker-token-file must contain a token that it accepts",
        host,
        what,
        status,
    )
