"""Amazon MSK's IAM: which properties ask for it, and tokens that are signed with the credentials of AWS.

Java's client has a SASL mechanism of its own for it. The others present the signature as a token of OAUTHBEARER.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError
from confluent_kafka import KafkaError, KafkaException

from forebay.backend_registry import extra_missing
from forebay_changelog.kafka.client_close import CLIENT_LOG

try:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
except ImportError as error:
    raise extra_missing("sasl.mechanism=AWS_MSK_IAM", ["msk"], error) or error from error

OF_JAVA = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
"""The properties of Java's client."""
_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:", re.IGNORECASE)
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


class MskTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for the brokers of a region as aiokafka awaits them, each signed for its connection."""

    def __init__(self, region: str) -> None:
        self._region = region

    async def token(self) -> str:
        """A token; raises aiokafka's ``AuthenticationFailedError``."""
        try:
            return (await asyncio.to_thread(_sign, self._region))[0]
        except KafkaException as error:
            raise AuthenticationFailedError(error.args[0].str()) from None

    def extensions(self) -> dict[str, str]:
        """Nothing: the brokers want the token alone."""
        return {}


def msk_callback(region: str) -> Callable[[str], tuple[str, float]]:
    """What librdkafka calls for a token and when that expires, in seconds since 1970 (``oauth_cb``).

    The first is signed here: raises ``KafkaException`` if there are no credentials. Why: without a token a client
    takes ten seconds to fail, and does not say why.
    """
    first = [_sign(region)]

    def signed(_config: str) -> tuple[str, float]:
        try:
            token, expires_epoch_ms = first.pop() if first else _sign(region)
        except KafkaException as error:
            # The client drops the reason. It calls again after ten seconds, and the last token has minutes left.
            CLIENT_LOG.warning("TOKEN %s", error.args[0].str())
            raise
        return token, expires_epoch_ms / 1000

    return signed


def _sign(region: str) -> tuple[str, int]:
    """A token and when it expires, in milliseconds since 1970; raises ``KafkaException``."""
    try:
        token, expires_epoch_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:
        # Where it finds no credentials, the signer asks None for its key.
        why = "there are none" if isinstance(error, AttributeError) else str(error)
        message = (
            f"AWS credentials for Amazon MSK in {region} cannot be had: {why}. Give each process a role, or name "
            "a profile by AWS_PROFILE"
        )
        raise KafkaException(KafkaError(KafkaError._AUTHENTICATION, message)) from error
    return token, expires_epoch_ms


def msk_region(bootstrap_servers: str) -> str:
    """The region of brokers by their names, else that of the environment; raises ``ValueError``."""
    of_names = (match[1].lower() for match in map(_HOST.search, bootstrap_servers.split(",")) if match)
    of_environment = (os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name))
    region = next(of_names, None) or next(of_environment, None)
    if region is None:
        raise ValueError(
            "no broker's name has the region for sasl.mechanism=AWS_MSK_IAM, as in "
            f"b-1.….kafka.REGION.amazonaws.com: set {_REGION_VARIABLES[0]}"
        )
    return region


def msk_properties(bootstrap_servers: str, properties: Mapping[str, str]) -> dict[str, str]:
    """A Kafka URL's properties without what only repeats the mechanism; raises ``ValueError``."""
    if properties.get("security.protocol", "").upper() != "SASL_SSL":
        raise ValueError("sasl.mechanism=AWS_MSK_IAM needs security.protocol=SASL_SSL")
    msk_region(bootstrap_servers)
    others = {name: value for name, value in properties.items() if not name.startswith("sasl.")}
    for name in sorted(properties.keys() - others.keys() - {"sasl.mechanism", "sasl.mechanisms"}):
        if " ".join(properties[name].split()) != OF_JAVA.get(name):
            # The value may be a secret.
            known = f"it takes only {OF_JAVA[name]!r}" if name in OF_JAVA else "it takes no such property"
            raise ValueError(
                f"{name} with sasl.mechanism=AWS_MSK_IAM: {known}. A profile or a role is named by AWS_PROFILE, "
                "or by AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, in the environment of each process"
            )
    return {**others, "sasl.mechanism": OF_JAVA["sasl.mechanism"]}
