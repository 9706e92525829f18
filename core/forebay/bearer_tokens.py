"""Bearer tokens (RFC 6750), and the file of those that a process accepts."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from forebay.bounded_cache import remembered
from forebay.clock import boot_ms
from forebay.errors import Unauthenticated
from forebay.reloaded_file import ReloadedFile

MIN_TOKEN_CHARACTERS = 16
"""Of a token in a file: shorter ones are words, or can be tried one after the other."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_DIGEST = re.compile(r"sha256:([0-9A-Fa-f]{64})")
_MAX_REMEMBERED = 4096
_MAX_REMEMBERED_BYTES = 512
_OF_NOTHING = hashlib.sha256(b"").digest()


def token_headers(token: str | None) -> dict[str, str]:
    """The header that carries a token, none without one; raises ``ValueError`` for an invalid token."""
    return {} if token is None else {"authorization": bearer(token)}


def bearer(token: str) -> str:
    """A token as the value of an ``Authorization`` header; raises ``ValueError`` for an invalid token."""
    if not _TOKEN.fullmatch(token):
        raise ValueError("a token is made of letters, digits and any of -._~+/, with = at its end only")
    return f"Bearer {token}"


def token_file(path: Path | None) -> Callable[[], bytes] | None:
    """Returns the value of the ``Authorization`` header for the one token in a file, which is read again when it
    changes; None without a file. Raises ``SettingError``."""
    if path is None:
        return None
    return ReloadedFile(path, lambda text: bearer(text.strip()).encode(), secrets=(path,))


def token_of(authorization: bytes) -> bytes | None:
    """A request's token, None if it has another scheme or none."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip(b" ") if scheme.lower() == b"bearer" else None


def _holder_of(authorization: bytes) -> bytes:
    token = token_of(authorization)
    return hashlib.sha256(authorization if token is None else token).digest()


holder_of = remembered(_holder_of, _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES)
"""Whom a request's ``Authorization`` names: the same for every spelling of one token, and for its tickets."""


class TokenHolder(NamedTuple):
    """A token that is accepted, by its SHA-256; ``until_ms`` is in milliseconds since 1970, None if it is accepted
    as long as it is among the ``digests``."""

    digest: bytes
    until_ms: int | None
    name: str = ""
    """Whose it is: its name in a tokens file, or the subject that its issuer states."""
    claims: Mapping[str, Any] = MappingProxyType({})
    """All that its issuer states."""


class BearerTokens(ABC):
    """Accepts requests with certain tokens, of which tickets can be made."""

    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        """Return None to allow a request; raise ``Unauthenticated`` to refuse it."""
        self.holder(authorization)

    @abstractmethod
    def holder(self, authorization: bytes) -> TokenHolder:
        """A request's token, the same object as long as nothing has changed; raises ``Unauthenticated``."""

    @abstractmethod
    def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
        """Whether a token that was accepted before still is."""

    @abstractmethod
    def digests(self) -> frozenset[bytes]:
        """The SHA-256 of every token that is accepted until it is removed."""


class TokensFile(BearerTokens):
    """Accepts every request with one of a file's tokens.

    Each line is ``NAME TOKEN`` or ``NAME sha256:HEX``, with the SHA-256 of the token; empty lines and those that
    begin with ``#`` are ignored. A token has at least ``MIN_TOKEN_CHARACTERS``, of which a digest shows nothing.
    Several lines may have the same name. The file is read again within a second of a change. Raises
    ``SettingError`` naming file and line.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = boot_ms) -> None:
        self._file = ReloadedFile(path, _read_names, clock, secrets=(path,))
        self._use(self._file())

    def holder(self, authorization: bytes) -> TokenHolder:
        names = self._file()
        if names is not self._names:
            self._use(names)
        # Searched by hash: the time that takes does not reveal how much of a token was right.
        return self._holder(authorization)

    def _use(self, names: Mapping[bytes, str]) -> None:
        self._names = names
        self._holder = remembered(self._found, _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES)

    def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
        return holder.until_ms is None and holder.digest in self._file()

    def digests(self) -> frozenset[bytes]:
        return frozenset(self._file())

    def _found(self, authorization: bytes) -> TokenHolder:
        token = token_of(authorization)
        if token is None:
            raise Unauthenticated("The request has no token; send the header Authorization: Bearer TOKEN.")
        digest = hashlib.sha256(token).digest()
        if not token or digest not in self._names:
            raise Unauthenticated("The request's token is not known here.")
        return TokenHolder(digest, None, self._names[digest])


def _read_names(text: str) -> Mapping[bytes, str]:
    """The names of tokens by their digests."""
    names: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, token = line.split()
            digest = _digest(token)
        except ValueError:
            # The line itself contains a secret.
            raise ValueError(f"line {number} is neither NAME TOKEN nor NAME sha256:HEX") from None
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"line {number} has a token of fewer than {MIN_TOKEN_CHARACTERS} characters, which can be "
                "guessed. Make one with 'openssl rand -hex 32'"
            )
        if digest == _OF_NOTHING:
            raise ValueError(f"line {number} has the digest of nothing: the token was not set when it was made")
        names[digest] = name
    if not names:
        raise ValueError("it contains no token")
    return names


def _digest(token: str) -> bytes:
    given = _DIGEST.fullmatch(token)
    if given is not None:
        return bytes.fromhex(given[1])
    bearer(token)
    return hashlib.sha256(token.encode()).digest()
