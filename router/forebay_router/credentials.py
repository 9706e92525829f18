"""What the router shows to workers: a token of its own, never a client's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from forebay.errors import Forbidden, Unauthenticated
from forebay.reloaded_file import ReloadedFile
from forebay.tokens import bearer

REFUSALS = frozenset({Unauthenticated.status, Forbidden.status})
"""Statuses by which a worker refuses the router, which is never a client's fault."""


class Credentials(NamedTuple):
    """The ``Authorization`` header: as a line, its CRLF included, and as a mapping; empty where there is none."""

    line: bytes
    headers: Mapping[str, str]


_NONE = Credentials(b"", {})


def credentials_of(token_file: Path | None) -> Callable[[], Credentials]:
    """The credentials now, by a file with one token, if there is one; raises ``SettingError``."""
    if token_file is None:
        return lambda: _NONE
    return ReloadedFile(token_file, _read)


def _read(text: str) -> Credentials:
    value = bearer(text.strip())
    return Credentials(b"authorization: %b\r\n" % value.encode(), {"authorization": value})
