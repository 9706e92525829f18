"""Authentication: the authenticator, if any, that checks every request."""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from forebay.bearer_tokens import TokensFile
from forebay.errors import Forbidden, SettingError
from forebay.logs import LogThrottle

log = logging.getLogger(__name__)

AUTHENTICATOR_ENTRY_POINTS = "forebay.authenticators"


class Authenticator(Protocol):
    """Decides whether a request is allowed, before it is processed.

    It is called in the event loop, among thousands of reads a second, so it must not block: anything it needs from
    elsewhere it fetches beforehand, in a thread of its own.
    """

    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        """Return None to allow a request; raise ``Unauthenticated`` or ``Forbidden`` to refuse it.

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


class _Strict:
    """Refuses whatever an installed authenticator does not allow in so many words."""

    def __init__(self, name: str, authenticator: Authenticator) -> None:
        self._name = name
        self._authenticate = authenticator.authenticate
        self._logged = LogThrottle()

    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        """Raise what the authenticator raises, and ``Forbidden`` if it returns anything but None."""
        outcome: Any = self._authenticate(method, path, authorization)
        if outcome is None:
            return
        if inspect.iscoroutine(outcome):
            outcome.close()
        if self._logged.allow(type(outcome).__name__):
            log.error(
                "the authenticator %r returned %r: requests are allowed by returning None, and refused by raising "
                "Unauthenticated or Forbidden; this one is refused",
                self._name,
                type(outcome).__name__,
            )
        raise Forbidden("The authenticator did not allow the request; the log of this process says why.")


def _installed(name: str) -> Authenticator:
    for entry_point in entry_points(group=AUTHENTICATOR_ENTRY_POINTS, name=name):
        authenticator: Authenticator = entry_point.load()()
        if inspect.iscoroutinefunction(authenticator.authenticate):
            raise SettingError(
                f"The authenticator {name!r} cannot be used: its authenticate() is asynchronous, and would admit "
                "every request. It is called in the event loop: make it a plain function that does not block."
            )
        return _Strict(name, authenticator)
    there = sorted(entry_point.name for entry_point in entry_points(group=AUTHENTICATOR_ENTRY_POINTS))
    raise SettingError(
        f"There is no authenticator {name!r}: use the name of an installed entry point in the group "
        f"{AUTHENTICATOR_ENTRY_POINTS!r}; installed are {', '.join(there) or 'none'}."
    )
