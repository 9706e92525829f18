"""Kafka URLs: the brokers and the connection properties, for each of the clients in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from forebay.errors import SettingError
from forebay.file_access import cause
from forebay.networks import parse_port

_FORM = "kafka://HOST:PORT,HOST:PORT?name=value&properties=FILE"
_SUPPORTED_BY_ALL = {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}
_OAUTH = "OAUTHBEARER"
_MSK_IAM = "AWS_MSK_IAM"
_MECHANISMS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", _OAUTH, _MSK_IAM}
_OF_OIDC = "sasl.oauthbearer."
_NEEDED_FOR_OIDC = tuple(f"{_OF_OIDC}{name}" for name in ("client.id", "client.secret", "token.endpoint.url"))
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The JVM's property that lists the token endpoints which Java's client may ask, from version 4 on."""
_OWN = {
    "bootstrap.servers": "give the brokers before the question mark",
    "group.id": "a worker's group is its application_id",
    "isolation.level": "forebay reads committed records only",
    "enable.auto.commit": "offsets are kept with the state",
    "auto.offset.reset": "a log that lost unapplied records means a rebuild",
    "enable.partition.eof": "the ends of logs are always watched",
}
_OF_SPARK = {
    "client.id": "client.id",
    "message.max.bytes": "max.request.size",
    "compression.type": "compression.type",
    "batch.size": "batch.size",
    "linger.ms": "linger.ms",
    "request.timeout.ms": "request.timeout.ms",
    "delivery.timeout.ms": "delivery.timeout.ms",
}
"""Properties that concern writing, by librdkafka's names, and the names that Java's client has for them."""
_OF_AIOKAFKA = frozenset(
    {
        "client.id",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.service.name",
        *_NEEDED_FOR_OIDC,
        f"{_OF_OIDC}method",
        f"{_OF_OIDC}scope",
        f"{_OF_OIDC}extensions",
    }
)
_OF_CONNECTIONS = ("ssl.", "enable.ssl.", "sasl.", "enable.sasl.")
_OF_KERBEROS = frozenset(
    {
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
    }
)
"""How librdkafka renews a ticket, which the other clients then find."""
_DEFAULTS = {"log.connection.close": False, "reconnect.backoff.max.ms": 1000}


@dataclass(frozen=True)
class KafkaUrl:
    """A Kafka cluster and the client properties for it, by librdkafka's names.

    ``kafka://HOST:PORT,…?name=value&…``; ``properties=FILE`` names a file of ``name=value`` lines, where
    secrets belong.
    """

    url: str
    bootstrap_servers: str
    properties: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> KafkaUrl:
        """The parts of a URL; raises ``SettingError`` naming what is wrong with it."""
        scheme, _, rest = url.partition("://")
        rest, _, fragment = rest.partition("#")
        rest, _, query = rest.partition("?")
        # Not by urlsplit, which expects one host.
        netloc, _, path = rest.partition("/")
        servers = [server for server in netloc.split(",") if server]
        if scheme.lower() != "kafka" or not servers or path:
            raise SettingError(f"{_shown(url)!r} is not of the form {_FORM}.")
        if "@" in netloc:
            # The text before it is a secret, so it is not shown.
            raise SettingError("A kafka:// URL has no user@: give sasl.username and sasl.password as properties.")
        if fragment:
            raise SettingError(f"{_shown(url)!r}: write '#' as '%23' in a property.")
        for server in servers:
            _require_server(url, server)
        properties: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            properties.update(read_properties(Path(value)) if name == "properties" else {name: value})
        for name, reason in _OWN.items():
            if name in properties:
                raise SettingError(f"{_shown(url)!r} sets {name!r}, which it must not: {reason}.")
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _SUPPORTED_BY_ALL:
            known = ", ".join(sorted(_SUPPORTED_BY_ALL))
            raise SettingError(f"{_shown(url)!r}: security.protocol {protocol!r} is not one of {known}.")
        mechanism = _mechanism(properties)
        if protocol.startswith("SASL") and mechanism not in _MECHANISMS:
            known = ", ".join(sorted(_MECHANISMS))
            raise SettingError(f"{_shown(url)!r}: sasl.mechanism {mechanism!r} is not one of {known}.")
        if protocol.startswith("SASL") and mechanism == _OAUTH:
            _require_oidc(url, properties)
        if mechanism == _MSK_IAM:
            from forebay_changelog.kafka.msk_iam import msk_properties

            try:
                properties = msk_properties(",".join(servers), properties)
            except ValueError as error:
                raise SettingError(f"{_shown(url)!r}: {error}.") from None
        for name in properties:
            if name.startswith(_OF_CONNECTIONS) and name not in _OF_AIOKAFKA and name not in _OF_KERBEROS:
                raise SettingError(
                    f"{_shown(url)!r} sets {name!r}, which only one of the clients knows: the others could not "
                    "connect, or not as safely. Certificates and keys are PEM files, by ssl.ca.location, "
                    "ssl.certificate.location and ssl.key.location."
                )
        return cls(url, ",".join(servers), properties)

    def __str__(self) -> str:
        """The URL without its properties, fit for a log."""
        return _shown(self.url)

    def librdkafka(self, **own: Any) -> dict[str, Any]:
        """The configuration of a librdkafka client; underscores in ``own`` stand for dots.

        Raises ``KafkaException`` if it needs credentials of AWS, and there are none.
        """
        mine = {name.replace("_", "."): value for name, value in own.items()}
        if self._uses_msk_iam:
            from forebay_changelog.kafka.msk_iam import msk_callback, msk_region

            mine |= {"sasl.mechanism": _OAUTH, "oauth_cb": msk_callback(msk_region(self.bootstrap_servers))}
        return {**_DEFAULTS, **self.properties, "bootstrap.servers": self.bootstrap_servers, **mine}

    def aiokafka(self) -> dict[str, Any]:
        """The arguments of an aiokafka client that concern the connection."""
        from aiokafka.helpers import create_ssl_context

        properties = self.properties
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        arguments: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers, "security_protocol": protocol}
        if "client.id" in properties:
            arguments["client_id"] = properties["client.id"]
        if protocol.endswith("SSL"):
            context = create_ssl_context(
                cafile=properties.get("ssl.ca.location"),
                certfile=properties.get("ssl.certificate.location"),
                keyfile=properties.get("ssl.key.location"),
                password=properties.get("ssl.key.password"),
            )
            context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https") == "https"
            arguments["ssl_context"] = context
        if protocol.startswith("SASL"):
            arguments["sasl_mechanism"] = _mechanism(properties)
            arguments["sasl_plain_username"] = properties.get("sasl.username")
            arguments["sasl_plain_password"] = properties.get("sasl.password")
            arguments["sasl_kerberos_service_name"] = properties.get("sasl.kerberos.service.name", "kafka")
        if self.token_endpoint is not None:
            from forebay_changelog.kafka.oidc_tokens import OidcTokens

            arguments["sasl_oauth_token_provider"] = OidcTokens(properties, _extensions(properties))
        if self._uses_msk_iam:
            from forebay_changelog.kafka.msk_iam import MskTokens, msk_region

            tokens = MskTokens(msk_region(self.bootstrap_servers))
            arguments |= {"sasl_mechanism": _OAUTH, "sasl_oauth_token_provider": tokens}
        return arguments

    @property
    def _uses_msk_iam(self) -> bool:
        return _mechanism(self.properties) == _MSK_IAM

    @property
    def token_endpoint(self) -> str | None:
        """Where clients get their tokens, None if they use none."""
        is_used = _mechanism(self.properties) == _OAUTH
        return self.properties.get(f"{_OF_OIDC}token.endpoint.url") if is_used else None

    def spark(self) -> dict[str, str]:
        """The options of Spark's Kafka sink, whose client is Java's; properties of librdkafka alone are left out.

        Java's client takes a certificate's text (KIP-651): raises ``SettingError`` if it cannot be read.
        """
        properties = self.properties
        options = {"kafka.bootstrap.servers": self.bootstrap_servers}
        options |= {f"kafka.{java}": properties[name] for name, java in _OF_SPARK.items() if name in properties}
        if "security.protocol" in properties:
            options["kafka.security.protocol"] = properties["security.protocol"].upper()
        if properties.get("ssl.endpoint.identification.algorithm") == "none":
            # Java's client has no such value: an empty algorithm means that no host name is checked.
            options["kafka.ssl.endpoint.identification.algorithm"] = ""
        if "ssl.ca.location" in properties:
            options |= {
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": properties["ssl.ca.location"],
            }
        if "ssl.certificate.location" in properties and "ssl.key.location" in properties:
            options |= {
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.certificate.chain": _read(Path(properties["ssl.certificate.location"])),
                "kafka.ssl.keystore.key": _read_key(Path(properties["ssl.key.location"])),
            }
            if "ssl.key.password" in properties:
                options["kafka.ssl.key.password"] = properties["ssl.key.password"]
        if self.token_endpoint is not None:
            options |= _oidc_of_java(properties, self.token_endpoint)
        if self._uses_msk_iam:
            from forebay_changelog.kafka.msk_iam import OF_JAVA

            options |= {f"kafka.{name}": value for name, value in OF_JAVA.items()}
        if "sasl.username" in properties:
            mechanism = _mechanism(properties)
            module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
            options |= {
                "kafka.sasl.mechanism": mechanism,
                "kafka.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.{module} required "
                    f"username={_quoted(properties['sasl.username'])} "
                    f"password={_quoted(properties.get('sasl.password', ''))};"
                ),
            }
        return options


def _require_server(url: str, server: str) -> None:
    """Raises ``SettingError`` unless this is the address of a broker."""
    host, _, port = server.rpartition(":")
    in_brackets = host[:1] == "[" and host[-1:] == "]"
    try:
        parse_port(port)
    except ValueError as error:
        raise SettingError(f"{_shown(url)!r}: {server!r} is not HOST:PORT: {error}.") from None
    if not host or in_brackets != any(c in host for c in ":[]"):
        raise SettingError(f"{_shown(url)!r}: {server!r} is not HOST:PORT.")


def _require_oidc(url: str, properties: Mapping[str, str]) -> None:
    """Raises ``SettingError`` unless all clients can get tokens."""
    if properties.get(f"{_OF_OIDC}method", "").lower() != "oidc":
        raise SettingError(
            f"{_shown(url)!r}: sasl.mechanism OAUTHBEARER needs {_OF_OIDC}method=oidc: clients get "
            f"their tokens from the issuer. Amazon MSK's IAM is sasl.mechanism={_MSK_IAM}."
        )
    missing = [name for name in _NEEDED_FOR_OIDC if not properties.get(name)]
    if missing:
        raise SettingError(f"{_shown(url)!r}: sasl.mechanism OAUTHBEARER needs {' and '.join(missing)} as well.")
    endpoint = properties[f"{_OF_OIDC}token.endpoint.url"]
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise SettingError(f"{_shown(url)!r}: {_OF_OIDC}token.endpoint.url {endpoint!r} is no http or https URL.")
    try:
        _extensions(properties)
    except ValueError as error:
        raise SettingError(f"{_shown(url)!r}: {error}.") from None


def _extensions(properties: Mapping[str, str]) -> dict[str, str]:
    """The SASL extensions, ``name=value`` after a comma each; raises ``ValueError``."""
    pairs = [pair.partition("=") for pair in properties.get(f"{_OF_OIDC}extensions", "").split(",") if pair]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError(f"{_OF_OIDC}extensions is not of the form name=value,name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _oidc_of_java(properties: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """Java's client takes what identifies it from its login's options (KIP-768)."""
    login = {
        "clientId": properties[f"{_OF_OIDC}client.id"],
        "clientSecret": properties[f"{_OF_OIDC}client.secret"],
        **{f"extension_{name}": value for name, value in _extensions(properties).items()},
    }
    if f"{_OF_OIDC}scope" in properties:
        login["scope"] = properties[f"{_OF_OIDC}scope"]
    if "https.ca.location" in properties:
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": properties["https.ca.location"]}
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    given = " ".join(f"{name}={_quoted(value)}" for name, value in login.items())
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    return {
        "kafka.sasl.mechanism": _OAUTH,
        "kafka.sasl.jaas.config": f"{module} required {given};",
        "kafka.sasl.login.callback.handler.class": handler,
        "kafka.sasl.oauthbearer.token.endpoint.url": endpoint,
    }


def _mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _shown(url: str) -> str:
    return url.partition("?")[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"The file {path} of properties cannot be read: {cause(error, path)}.") from None


def _read_key(path: Path) -> str:
    """A private key in the form that Java's client accepts: PKCS #8, encrypted or not."""
    text = _read(path)
    if not any(f"-----BEGIN {kind}PRIVATE KEY-----" in text for kind in ("", "ENCRYPTED ")):
        raise SettingError(
            f"The key in {path} is not PKCS #8 in PEM, the only form that Spark's Kafka client reads: "
            f"openssl pkcs8 -topk8 -in {path} -out NEW"
        )
    return text


def read_properties(path: Path) -> dict[str, str]:
    """The properties in a file of ``name=value`` lines; raises ``SettingError``."""
    properties = {}
    lines = _read(path).splitlines()
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            # The line itself may contain a secret.
            raise SettingError(f"{path}:{number}: the line is not of the form name=value, with an equals sign.")
        properties[name.strip()] = value.strip()
    return properties
