"""Bearer tokens that an issuer signs (RFC 7519), checked by the keys that it publishes (RFC 7517)."""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import (
    ExpiredTokenError,
    InvalidClaimError,
    InvalidKeyIdError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import JWKRegistry, KeySet

from forebay.bearer_tokens import BearerTokens, TokenHolder, token_of
from forebay.bounded_cache import remembered
from forebay.clock import boot_ms, epoch_ms
from forebay.errors import NotReady, Unauthenticated
from forebay.logs import LogThrottle

log = logging.getLogger(__name__)

LEEWAY_S = 30
"""How far the issuer's clock and this one may differ."""
_MAX_REMEMBERED = 4096
_MAX_REMEMBERED_BYTES = 4096
"""A longer header is checked each time: what is remembered must be bounded in bytes."""
_REFRESH_S = 300.0
_RETRY_S = 5.0
_MIN_BETWEEN_MS = 10_000.0
"""Between two fetches for keys that are not known: anyone can name some."""
_TIMEOUT_S = 10.0
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Those with a key of which a part is public."""
_ASYMMETRIC = frozenset({"RSA", "EC", "OKP"})
"""Types of keys with a public part. Of others a published key would let everyone sign."""


@dataclass(frozen=True)
class Trust:
    """Whose tokens are accepted, and for whom they must be.

    ``keys_url`` is where the issuer publishes its keys; None finds that by OpenID Connect's discovery.
    """

    issuer: str
    audience: str
    keys_url: str | None = None


class IssuerKeys:
    """The keys that an issuer publishes, fetched by a thread; the last good ones stay while it does not answer."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._authorities = ssl.create_default_context()
        self._wanted = threading.Event()
        self._closed = False
        self._fetched_boot_ms = float("-inf")
        self._published: Any = None
        self._logged = LogThrottle()
        self.current: KeySet | None = None
        """None until they were fetched once; another object once they have changed."""
        threading.Thread(target=self._fetch_again_and_again, name="forebay-issuer-keys", daemon=True).start()

    def want_newer(self) -> None:
        """Have them fetched soon, if they were not just now: a token names a key that is not among them."""
        if boot_ms() >= self._fetched_boot_ms + _MIN_BETWEEN_MS:
            self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _fetch_again_and_again(self) -> None:
        while not self._closed:
            pause_s = _REFRESH_S
            try:
                self._fetch()
            except Exception as error:
                pause_s = _RETRY_S
                if self._logged.allow(repr(error)):
                    log.error("the keys of %s could not be fetched: %r", self._trust.issuer, error)
            self._fetched_boot_ms = boot_ms()
            self._wanted.wait(pause_s)
            self._wanted.clear()

    def _fetch(self) -> None:
        with httpx.Client(verify=self._authorities, timeout=_TIMEOUT_S, follow_redirects=True) as client:
            url = self._trust.keys_url or self._discovered(client)
            published = client.get(url).raise_for_status().json()
        if published == self._published:
            return
        keys = [key for one in published["keys"] if (key := _key_of(one)) is not None]
        if not keys:
            raise ValueError(f"{url} has no key by which signatures can be checked")
        self._published, self.current = published, KeySet(keys)
        log.info("the keys of %s: %s", self._trust.issuer, ", ".join(str(key.kid) for key in keys))

    def _discovered(self, client: httpx.Client) -> str:
        issuer = self._trust.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        document = client.get(url).raise_for_status().json()
        if document.get("issuer") != issuer:
            raise ValueError(f"{url} is of another issuer, {document.get('issuer')!r}")
        return str(document["jwks_uri"])


def _key_of(published: Any) -> Any:
    """A key by which signatures are checked, None if this is none, or of a type that is not known."""
    if published.get("kty") not in _ASYMMETRIC or published.get("use", "sig") != "sig":
        return None
    try:
        return JWKRegistry.import_key(published)
    except (JoseError, ValueError):
        return None


class JwtTokens(BearerTokens):
    """Accepts every request with a token of an issuer.

    A token is checked once and then remembered until it expires, or the issuer's keys change.
    """

    def __init__(self, trust: Trust, clock: Callable[[], float] = epoch_ms) -> None:
        self._trust = trust
        self._clock = clock
        self._keys = IssuerKeys(trust)
        self._check_with(None)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": trust.issuer},
            aud={"essential": True, "value": trust.audience},
            exp={"essential": True},
        )

    def holder(self, authorization: bytes) -> TokenHolder:
        """Raise ``Unauthenticated`` unless the request has a token of the issuer, and ``NotReady`` as long as the
        issuer's keys were never fetched."""
        if self._keys.current is not self._checked_with:
            self._check_with(self._keys.current)
        found = self._holder(authorization)
        return found if self.is_accepted(found, self._clock()) else self._checked(authorization)

    def _check_with(self, keys: KeySet | None) -> None:
        self._checked_with = keys
        self._holder = remembered(self._checked, _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES)

    def close(self) -> None:
        self._keys.close()

    def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
        return holder.until_ms is not None and now_epoch_ms < holder.until_ms

    def digests(self) -> frozenset[bytes]:
        """None: how long a token is accepted, it says itself."""
        return frozenset()

    def _checked(self, authorization: bytes) -> TokenHolder:
        token, keys = token_of(authorization), self._keys.current
        if token is None:
            raise Unauthenticated("The request has no token; send the header Authorization: Bearer TOKEN.")
        if keys is None:
            raise NotReady(
                f"The keys of {self._trust.issuer} are not known yet; the log of this process says why.",
                retry_after_s=1,
            )
        try:
            claims = jwt.decode(token.decode("ascii"), keys, algorithms=_ALGORITHMS).claims
            self._claims.validate(claims)
            until_ms = 1000 * (int(claims["exp"]) + LEEWAY_S)
        except InvalidKeyIdError:
            self._keys.want_newer()
            raise Unauthenticated(
                f"The request's token is signed with a key that {self._trust.issuer} does not publish, or has "
                "published only just now: then repeat the request in some seconds."
            ) from None
        except (JoseError, ValueError, OverflowError) as error:
            raise Unauthenticated(f"The request's token is not accepted: {self._reason(error)}.") from None
        return TokenHolder(hashlib.sha256(token).digest(), until_ms, str(claims.get("sub", "")), claims)

    def _reason(self, error: Exception) -> str:
        """What is wrong with a token; what is in it is not repeated."""
        match error:
            case ExpiredTokenError():
                return "it has expired; get another from its issuer"
            case MissingClaimError() | InvalidClaimError():
                trust = self._trust
                return (
                    f"{error.description or error.error}. It must be of the issuer {trust.issuer!r} and for the "
                    f"audience {trust.audience!r}, and say when it expires"
                )
            case UnsupportedAlgorithmError():
                return f"it is not signed by one of {', '.join(_ALGORITHMS)}"
        return "it is no signed token, or its signature is wrong"
