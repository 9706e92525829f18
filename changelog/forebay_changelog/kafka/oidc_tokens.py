"""Access tokens for Kafka's OAUTHBEARER, got by OpenID Connect's client credentials.

librdkafka and Java's client fetch their own. This is for the group's client.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx
from aiokafka.abc import AbstractTokenProvider

from forebay.clock import boot_ms

_USED_OF_LIFE = 0.8
"""As librdkafka does: a token that is about to expire is not presented any more."""
_TIMEOUT_S = 10.0


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of an issuer's token endpoint (RFC 6749, section 4.4), each used for most of its life.

    ``properties`` are those of a Kafka URL, ``extensions`` what brokers want to know beside the token (KIP-342).
    """

    def __init__(self, properties: Mapping[str, str], extensions: Mapping[str, str]) -> None:
        self._url = properties["sasl.oauthbearer.token.endpoint.url"]
        self._credentials = (
            properties["sasl.oauthbearer.client.id"],
            properties["sasl.oauthbearer.client.secret"],
        )
        self._scope = properties.get("sasl.oauthbearer.scope")
        self._extensions = dict(extensions)
        self._authorities = ssl.create_default_context(cafile=properties.get("https.ca.location"))
        self._token = ""
        self._renewed_boot_ms = 0.0

    async def token(self) -> str:
        """A token that is valid; raises ``httpx.HTTPError`` or ``ValueError`` if none can be had."""
        if boot_ms() >= self._renewed_boot_ms:
            requested_boot_ms = boot_ms()
            self._token, life_s = await self._fetch()
            self._renewed_boot_ms = requested_boot_ms + 1000 * _USED_OF_LIFE * life_s
        return self._token

    def extensions(self) -> dict[str, str]:
        """What is sent beside the token."""
        return self._extensions

    async def _fetch(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        async with httpx.AsyncClient(verify=self._authorities, timeout=_TIMEOUT_S) as client:
            answer = await client.post(self._url, data=form, auth=self._credentials)
        answer.raise_for_status()
        document = answer.json()
        token, life_s = document.get("access_token"), document.get("expires_in", 0)
        if not isinstance(token, str):
            raise ValueError(f"{self._url} answered without an access_token.")
        return token, float(life_s)
