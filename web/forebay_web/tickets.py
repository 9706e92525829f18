"""Tickets: short-lived credentials in a query, since a browser's EventSource cannot send a header.

A ticket is signed, not remembered: every process with the same key opens it, as often as it is shown before it
expires.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from starlette.types import Scope

from forebay.authentication import Authenticator
from forebay.bearer_tokens import BearerTokens, TokenHolder
from forebay.clock import epoch_ms
from forebay.errors import Forbidden, Unauthenticated
from forebay.grants import GrantedTokens, Needed
from forebay.reloaded_file import ReloadedFile
from forebay.wire.parameters import has_too_many, split_query

TICKET_LIFETIME_MS = 60_000
MIN_KEY_CHARACTERS = 32
"""Of a key in a file: whoever guesses it makes tickets."""

_MAX_CLOCK_DIFFERENCE_MS = 5_000
"""How much a router's clock may be ahead of that of the one which opens its tickets."""
_CHANGES = re.compile(r"/v1/stores/([^/]+)(?:/keys/([^/]+))?/changes")
_KEY_BYTES = 32
_NOBODY = TokenHolder(b"", None)
_SIGNATURE, _HOLDER = b"forebay-ticket-1\0", b"forebay-ticket-holder\0"
"""What the key is used for: neither use yields a value of the other."""


class Followed(NamedTuple):
    """What a stream follows: a store, and one key of it or, if None, many."""

    store: str
    key: str | None


def followed(path: str) -> Followed | None:
    """What the stream at a path, as received, follows; None for a path that is no stream of changes."""
    found = _CHANGES.fullmatch(path)
    if found is None:
        return None
    store, key = found.groups()
    return Followed(_decoded(store), None if key is None else _decoded(key))


def _decoded(segment: str) -> str:
    return unquote(segment, errors="surrogateescape")


@dataclass(frozen=True)
class Ticket:
    """What a ticket opens: streams of a store, those of one key only if ``key`` names one as its path does.

    ``holder`` names the token that it was issued for, without showing it. ``until_ms`` is when that expires, None
    if it is accepted until it is removed.
    """

    holder: str
    store: str
    key: str | None
    expires_ms: int
    method: str = "GET"
    until_ms: int | None = None

    def opens(self, method: str, path: str) -> bool:
        stream = followed(path)
        return (
            stream is not None
            and method == self.method
            and stream.store == self.store
            and self.key in (None, stream.key)
        )

    def is_current(self, now_ms: float) -> bool:
        """Whether it may open a stream at this time; also none that a clock far ahead gave a longer life."""
        return 0 < self.expires_ms - now_ms <= TICKET_LIFETIME_MS + _MAX_CLOCK_DIFFERENCE_MS


def sign(ticket: Ticket, key: bytes) -> str:
    """A ticket as a client gets it."""
    content = _text(json.dumps(asdict(ticket), separators=(",", ":")).encode())
    return f"{content}.{_signature(content, key)}"


def verified(text: str, key: bytes) -> Ticket:
    """A ticket that was signed with a key; raises ``Unauthenticated``."""
    content, _, signature = text.partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(content, key).encode()):
        raise Unauthenticated(
            "The ticket was not issued here, nor by a process with the same ticket_key_file; get one from "
            "POST /v1/tickets."
        )
    return Ticket(**json.loads(base64.urlsafe_b64decode(content + "==")))


def _signature(content: str, key: bytes) -> str:
    return _text(hmac.digest(key, _SIGNATURE + content.encode(), "sha256"))


def _holder(digest: bytes, key: bytes) -> str:
    # Keyed: the digest of a token that can be guessed would show the token to whoever has the ticket.
    return _text(hmac.digest(key, _HOLDER + digest, "sha256")[:16])


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def make_ticket_key() -> bytes:
    """A key that no other process has."""
    return secrets.token_bytes(_KEY_BYTES)


def ticket_key_of(path: Path | None, own: bytes) -> Callable[[], bytes]:
    """Returns the current key: a file's, the process's own without one. Raises ``SettingError``."""
    return (lambda: own) if path is None else ReloadedFile(path, _read_key, secrets=(path,))


def _read_key(text: str) -> bytes:
    key = text.strip()
    if len(key.split()) != 1 or len(key) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"it is not one key of at least {MIN_KEY_CHARACTERS} characters: make one with openssl rand -hex 32"
        )
    return key.encode()


class Tickets:
    """Issues tickets to those whom an authenticator accepts, and opens streams to those who show one.

    Without an authenticator every request is accepted, and tickets are issued so that pages need not differ.
    """

    def __init__(
        self,
        key: Callable[[], bytes],
        authenticator: Authenticator | None,
        clock: Callable[[], float] = epoch_ms,
    ) -> None:
        self._key = key
        self._authenticator = authenticator
        self._tokens = authenticator if isinstance(authenticator, BearerTokens) else None
        self._clock = clock
        self._holders: tuple[bytes, frozenset[bytes], Mapping[str, bytes]] = (b"", frozenset(), {})
        """Digests of tokens by the names that tickets have for them, with the key and the digests of which."""

    def issue(self, authorization: bytes, store: str, key: str | None) -> tuple[str, int]:
        """A ticket for an accepted request's token, and when it expires; raises ``Forbidden``."""
        if self._authenticator is not None and self._tokens is None:
            raise Forbidden(
                "Tickets are issued for tokens of a tokens file or an issuer only; this process has an "
                "authenticator."
            )
        signing = self._key()
        if isinstance(self._tokens, GrantedTokens):
            access = self._tokens.access(authorization)
            access.require(Needed("follow", store, key))
            if key is None:
                access.require_range("follow", store, "")
        holder = _NOBODY if self._tokens is None else self._tokens.holder(authorization)
        expires_ms = int(self._clock()) + TICKET_LIFETIME_MS
        ticket = Ticket(_holder(holder.digest, signing), store, key, expires_ms, until_ms=holder.until_ms)
        return sign(ticket, signing), expires_ms

    def open(self, text: str, method: str, path: str) -> TokenHolder:
        """The token of a ticket that opens a stream; of one that expires, the ticket's name for it.

        Raises ``Unauthenticated`` or ``Forbidden``, which say why it does not.
        """
        ticket = verified(text, self._key())
        if not ticket.is_current(self._clock()):
            raise Unauthenticated("The ticket has expired; get another from POST /v1/tickets.")
        if not ticket.opens(method, path):
            raise Forbidden("The ticket is not for this stream, but for that of another store or key.")
        if ticket.until_ms is None:
            holder = TokenHolder(self._digests().get(ticket.holder, b""), None)
        else:
            holder = TokenHolder(ticket.holder.encode(), ticket.until_ms)
        self.require_known(holder)
        return holder

    def require_known(self, holder: TokenHolder) -> None:
        """Raise ``Unauthenticated`` unless a token is still accepted."""
        if self._tokens is None or not self._tokens.is_accepted(holder, self._clock()):
            raise Unauthenticated("The token that the ticket was issued for is not known here, or has expired.")

    def _digests(self) -> Mapping[str, bytes]:
        key, digests = self._key(), frozenset() if self._tokens is None else self._tokens.digests()
        if (key, digests) != self._holders[:2]:
            self._holders = key, digests, {_holder(digest, key): digest for digest in digests}
        return self._holders[2]


TICKET = "forebay.ticket"
"""Where a scope has the ticket that was shown."""
TICKET_HOLDER = "forebay.ticket_holder"
"""Where it has the ``TokenHolder`` that an accepted ticket was issued for."""

_PARAMETER, _SPELLED = "ticket", b"ticket"


def take_ticket(scope: Scope) -> None:
    """Take the ticket out of a stream's query: what is behind cannot log it, repeat it or pass it on."""
    query = scope["query_string"]
    # Nobody is known yet, so nothing is done that takes time. What is left is refused later.
    if followed(scope["path"]) is None or has_too_many(query) or (_SPELLED not in query and b"%" not in query):
        return
    items = list(split_query(query))
    given = [item for item in items if item.name == _PARAMETER]
    # Two are refused like any parameter that is given twice.
    if len(given) == 1:
        scope[TICKET] = given[0].value.decode("utf-8", "replace")
        scope["query_string"] = b"&".join(item.received for item in items if item.name != _PARAMETER)
