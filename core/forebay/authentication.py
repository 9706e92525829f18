"""Authentication: the authenticator, if any, that checks every request."""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import entry_points
from typing import Any, Protocol

from forebay.bearer_tokens import BearerTokens, TokenHolder, TokensFile
from forebay.errors import Forbidden, SettingError
from forebay.grants import GrantedTokens
from forebay.logs import LogThrottle
from forebay.settings import TierSettings

log = logging.getLogger(__name__)

_DOTS_OF_SIGNED = 2
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


def make_authenticator(settings: TierSettings) -> Authenticator | None:
    """The authenticator that the settings ask for, None if they ask for none; raises ``SettingError``."""
    name, tokens_file, issuer = settings.authenticator, settings.auth_tokens_file, settings.auth_jwt_issuer
    if name is not None:
        given_beside = {"--auth-tokens-file": tokens_file, "--auth-jwt-issuer": issuer}
        for other, given in {**given_beside, "--grants-file": settings.grants_file}.items():
            if given is not None:
                raise SettingError(f"--authenticator and {other} are both given; leave one of them out.")
        return _installed(name)
    file = None if tokens_file is None else TokensFile(tokens_file)
    tokens: BearerTokens | None = file
    if issuer is not None:
        issued = _issued(settings, issuer)
        tokens = issued if file is None else _EitherTokens(file, issued)
    if settings.grants_file is None:
        return tokens
    if tokens is None:
        raise SettingError(
            "--grants-file needs to know who is who: name tokens with --auth-tokens-file or --auth-jwt-issuer."
        )
    return GrantedTokens(tokens, settings.grants_file)


def _issued(settings: TierSettings, issuer: str) -> BearerTokens:
    # Its packages come with the servers' extras, not with the base install.
    from forebay.jwt_tokens import JwtTokens, Trust

    if settings.auth_jwt_audience is None:
        raise SettingError(
            "--auth-jwt-issuer needs --auth-jwt-audience: without it, tokens that the issuer made for other "
            "services would be accepted."
        )
    trust = Trust(issuer, settings.auth_jwt_audience, settings.auth_jwks_url)
    return JwtTokens(trust)


class _EitherTokens(BearerTokens):
    """Accepts the tokens of a file, and those of an issuer."""

    def __init__(self, file: BearerTokens, issued: BearerTokens) -> None:
        self._file = file
        self._issued = issued

    def holder(self, authorization: bytes) -> TokenHolder:
        return self._of(authorization).holder(authorization)

    def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
        return any(tokens.is_accepted(holder, now_epoch_ms) for tokens in (self._file, self._issued))

    def digests(self) -> frozenset[bytes]:
        return self._file.digests()

    def _of(self, authorization: bytes) -> BearerTokens:
        # A signed token has three parts.
        return self._issued if authorization.count(b".") == _DOTS_OF_SIGNED else self._file


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
