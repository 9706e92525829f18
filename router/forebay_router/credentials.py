"""What the router shows to workers: a token of its own, never a client's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forebay.errors import Forbidden, Unauthenticated
from forebay.reloaded_file import ReloadedFile
from forebay.tokens import bearer

REFUSALS = frozenset({Unauthenticated.status, Forbidden.status})
"""Statuses by which a worker refuses the router, which is never a client's fault."""


def credentials_of(token_file: Path | None) -> Callable[[], bytes]:
    """Gives the line of the ``Authorization`` header as it is now, its CRLF included.

    It is by a file with one token, empty without a file; raises ``SettingError``.
    """
    if token_file is None:
        return lambda: b""
    return ReloadedFile(token_file, _read)


def _read(text: str) -> bytes:
    return b"authorization: %b\r\n" % bearer(text.strip()).encode()
