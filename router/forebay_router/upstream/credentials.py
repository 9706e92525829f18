"""The router's credentials for workers: a token of its own, never a client's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forebay.errors import Forbidden, Unauthenticated
from forebay.reloaded_file import ReloadedFile
from forebay.tokens import bearer

REFUSALS = frozenset({Unauthenticated.status, Forbidden.status})
"""Statuses by which a worker refuses the router, which is never a client's fault."""


def credentials_of(token_file: Path | None) -> Callable[[], bytes]:
    """Returns the current line of the ``Authorization`` header, including CRLF.

    The token comes from a file; without one the line is empty. Raises ``SettingError``.
    """
    if token_file is None:
        return lambda: b""
    return ReloadedFile(token_file, _read)


def _read(text: str) -> bytes:
    return b"authorization: %b\r\n" % bearer(text.strip()).encode()
