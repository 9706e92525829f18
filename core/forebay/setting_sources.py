"""Reads a setting's value from its flag, ``FOREBAY_<NAME>``, the ``--config`` file (TOML) or the default."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from forebay.errors import SettingError
from forebay.file_access import cause
from forebay.listen_addresses import ListenAddress, exposed_addresses, parse_listen_address
from forebay.settings import ENVIRONMENT_PREFIX, SETTINGS, Setting, Tier, settings_for
from forebay.streams_metadata import HostInfo
from forebay.toml_tables import did_you_mean

_OTHER_VARIABLES = {f"{ENVIRONMENT_PREFIX}{name}" for name in ("URL", "TOKEN")}
"""Those of commands that read from servers."""
_NOT_OURS = re.compile(
    ENVIRONMENT_PREFIX
    + r"(TEST_.*|.*_SERVICE_(HOST|PORT(_\w+)?)|(.*_)?PORT(_[0-9]+_[A-Z]+(_(PROTO|PORT|ADDR))?)?)"
)
"""The tests', and what Kubernetes sets for services whose names begin with this project's."""
_SEE_SETTINGS = "see docs/settings.md."


def load_settings(
    tier: Tier,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> dict[str, Any]:
    """Every setting of a tier, by name, each from the first source that has it; an empty variable counts as
    absent.

    ``flags`` holds what the command line gave, as text. Raises ``SettingError`` naming setting and source.
    """
    environment = os.environ if environment is None else environment
    _refuse_unknown(environment)
    values = load_some(tier, [setting.name for setting in settings_for(tier)], flags, environment, config)
    _check_together(values)
    return values


def load_some(
    tier: Tier,
    names: Collection[str],
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> dict[str, Any]:
    """Only the settings of these names; the config file may have all of the tier's. Raises ``SettingError``."""
    environment = os.environ if environment is None else environment
    table = settings_for(tier)
    file = _read_config(config, table) if config else {}
    values: dict[str, Any] = {}
    for setting in table:
        if setting.name not in names:
            continue
        if flags.get(setting.name) is not None:
            source, raw = setting.flag, flags[setting.name]
        elif environment.get(setting.environment):
            source, raw = setting.environment, environment[setting.environment]
        elif setting.name in file:
            source, raw = f"{config}: {setting.name}", file[setting.name]
        elif setting.required:
            raise SettingError(f"{setting.flag} is missing; give it, or set {setting.environment}.")
        else:
            source, raw = "default", setting.default
        values[setting.name] = None if raw is None else parse_setting(setting, raw, source)
    return values


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """Refuse variables that mean nothing: a process whose tokens are misspelt would serve without them."""
    known = {setting.environment for setting in SETTINGS} | _OTHER_VARIABLES
    for name in sorted(environment):
        ours = name.startswith(ENVIRONMENT_PREFIX) and environment[name] and not _NOT_OURS.fullmatch(name)
        if ours and name not in known:
            # All begin alike.
            meant = did_you_mean(name, known, _SEE_SETTINGS, cutoff=0.8)
            raise SettingError(f"The environment variable {name} is no setting; {meant}")


def _check_together(values: Mapping[str, Any]) -> None:
    """Refuse settings that contradict each other."""
    drain_ms, shutdown_ms = values["drain_ms"], values["shutdown_timeout_ms"]
    if drain_ms > shutdown_ms:
        raise SettingError(f"drain_ms is {drain_ms}, more than shutdown_timeout_ms, which is {shutdown_ms}.")
    advertise = values.get("advertise")
    if advertise is not None and advertise.is_unspecified:
        raise SettingError(f"advertise is {advertise}, which others cannot reach: give this machine's address.")
    if (values["tls_certificate_file"] is None) != (values["tls_key_file"] is None):
        raise SettingError("Of tls_certificate_file and tls_key_file there is only one; HTTPS needs both.")
    _refuse_everybody(values)
    for name in values["allowed_hosts"]:
        if name != "*" and not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise SettingError(
                f"allowed_hosts: {name!r} is neither a name without a port, such as reads.example.org, nor '*'."
            )
    for origin in values["cors_allow_origins"]:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/]+", origin):
            raise SettingError(
                f"cors_allow_origins: {origin!r} is neither an origin such as https://example.org nor '*'."
            )


def _refuse_everybody(values: Mapping[str, Any]) -> None:
    """Refuse to serve whoever reaches an address that is not this machine's alone, unless that is intended."""
    given = ("auth_tokens_file", "auth_jwt_issuer", "authenticator")
    authenticates = any(values[name] is not None for name in given)
    exposed = exposed_addresses(values["listen"])
    if exposed and not (authenticates or values["allow_anonymous"]):
        raise SettingError(
            f"listen is {exposed[0]}, which other machines may reach, and requests would not be "
            "authenticated: name the tokens that are accepted with --auth-tokens-file or --auth-jwt-issuer, or "
            "let everybody read with --allow-anonymous."
        )


def _read_config(config: Path, table: tuple[Setting, ...]) -> dict[str, Any]:
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"The config file {config} cannot be read: {cause(error, config)}.") from None
    known = {setting.name for setting in table}
    unknown = sorted(set(document) - known)
    if unknown:
        tiers = next((setting.tiers for setting in SETTINGS if setting.name == unknown[0]), ())
        meant = did_you_mean(unknown[0], known, _SEE_SETTINGS)
        if tiers:
            meant = f"it is one of a {' and a '.join(sorted(tiers))}."
        raise SettingError(f"{config}: there is no setting {unknown[0]!r}; {meant}")
    return document


def parse_setting(setting: Setting, raw: Any, source: str) -> Any:
    """A setting's value from text or from a TOML value; raises ``SettingError`` naming the source."""
    text = str(raw).strip()
    match setting.kind:
        case "integer":
            if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < setting.least:
                raise SettingError(f"{source}: {text!r} is not a whole number of at least {setting.least}.")
            if setting.most is not None and int(text) > setting.most:
                raise SettingError(f"{source}: {text} is more than {setting.most}.")
            return int(text)
        case "boolean":
            if text.lower() not in ("true", "false"):
                raise SettingError(f"{source}: {text!r} is neither 'true' nor 'false'.")
            return text.lower() == "true"
        case "choice":
            if text not in setting.choices:
                raise SettingError(f"{source}: {text!r} is not one of {', '.join(setting.choices)}.")
            return text
        case "names":
            return tuple(_items(raw))
        case "address":
            return _address(text, source)
        case "addresses":
            items = _items(raw)
            if not items:
                raise SettingError(f"{source}: no address given; give HOST:PORT,….")
            return tuple(_address(item, source) for item in items)
        case "listeners":
            items = _items(raw)
            if not items:
                raise SettingError(f"{source}: no address given; give HOST:PORT or unix:/PATH, ….")
            return tuple(_listen_address(item, source) for item in items)
        case "path":
            # A shell expands it on a command line, but not in a variable or a file.
            return Path(text).expanduser()
    return text


def _items(raw: Any) -> list[str]:
    parts = raw if isinstance(raw, list | tuple) else str(raw).split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def _address(text: str, source: str) -> HostInfo:
    try:
        return HostInfo.parse(text)
    except ValueError as error:
        raise SettingError(f"{source}: {error}.") from None


def _listen_address(text: str, source: str) -> ListenAddress:
    try:
        return parse_listen_address(text)
    except ValueError as error:
        raise SettingError(f"{source}: {error}.") from None
