"""Authentication: the authenticator, if any, that checks every request."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from forebay.errors import SettingError
from forebay.tokens import TokensFile

AUTHENTICATOR_ENTRY_POINTS = "forebay.authenticators"


class Authenticator(Protocol):
    """Decides whether a request is allowed, before it is processed.

    It is called in the event loop, among thousands of reads a second, so it must not block: anything it needs from
    elsewhere it fetches beforehand, in a thread of its own.
    """

    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        """Return to allow a request; raise ``Unauthenticated`` or ``Forbidden`` to refuse it.

        ``path`` is as received, percent-encoding and all, without the query; ``authorization`` is the header's
        value, empty if there is none. It may be called twice for one request, and repeatedly while the request's
        event stream is open.
        """
        ...


def make_authenticator(name: str | None, tokens_file: Path | None) -> Authenticator | None:
    """The authenticator named by the settings, None if they name none; raises ``SettingError``."""
    if name is not None and tokens_file is not None:
        raise SettingError("--authenticator and --auth-tokens-file are both given; leave one of them out.")
    if tokens_file is not None:
        return TokensFile(tokens_file)
    return None if name is None else _installed(name)


def _installed(name: str) -> Authenticator:
    for entry_point in entry_points(group=AUTHENTICATOR_ENTRY_POINTS, name=name):
        authenticator: Authenticator = entry_point.load()()
        return authenticator
    there = sorted(entry_point.name for entry_point in entry_points(group=AUTHENTICATOR_ENTRY_POINTS))
    raise SettingError(
        f"There is no authenticator {name!r}: use the name of an installed entry point in the group "
        f"{AUTHENTICATOR_ENTRY_POINTS!r}; installed are {', '.join(there) or 'none'}."
    )
