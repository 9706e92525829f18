"""The options of every read, and their form in a URL."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias, TypedDict
from urllib.parse import quote, urlencode

from forebay.codecs.keys import KeyCodec
from forebay.errors import UnknownStore
from forebay.toml_tables import NAME, NAME_RULE
from forebay.wire.parameters import Prefer, parse_time

DEFAULT_TIMEOUT_MS = 5_000

Time: TypeAlias = datetime | int
"""A datetime with a time zone, or epoch milliseconds."""


class _AllKeys(enum.Enum):
    ALL_KEYS = "all keys"


ALL_KEYS: Final = _AllKeys.ALL_KEYS
"""Stands for no key, since a key may be any JSON value, None included."""


class ReadOptions(TypedDict, total=False):
    """How far behind an answer may be, and how long it may take; all bounds given must hold.

    Without any bound, the store's own apply.
    """

    max_record_lag: int
    """Maximum number of changelog records that the answer may be behind."""
    max_time_lag_ms: int
    """Maximum milliseconds that it may be behind the log."""
    max_age_ms: int
    """Maximum milliseconds that it may be behind the source."""
    require_active: bool
    """Only a running active answers."""
    prefer: Prefer
    """``"any"`` lets a router spread reads over all replicas within the bounds, or those of its rack if it has
    one; ``"active"`` asks the active first."""
    headers: bool
    """Have the headers of the record that wrote a value, of stores with ``record_headers = true``."""
    min_position: str
    """Position token of an answer or of a sink's batch: read at least that."""
    wait_ms: int
    """How long a replica may wait to meet the bounds or the position."""
    timeout_ms: int
    """Time for the call, waits and retries included; for a list, per page. By default the client's, and
    ``wait_ms`` beside it."""


def check(options: ReadOptions) -> None:
    """Raise ``TypeError`` for an unknown option: a misspelt bound must not be ignored."""
    unknown = sorted(options.keys() - ReadOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(ReadOptions.__annotations__)
        raise TypeError(f"There is no read option {unknown[0]!r}; there are {known}.")


def store_path(store: str) -> str:
    """The path of a store; raises ``UnknownStore`` for a name that no store has."""
    if not NAME.fullmatch(store):
        raise UnknownStore(f"There is no store {store!r}: a name is made of {NAME_RULE}.", store=store)
    return f"/v1/stores/{store}"


def query_string(parameters: Mapping[str, Any]) -> str:
    """The parameters that are not None, percent-encoded; flags are either set or left out."""
    given = {name: "true" if value is True else value for name, value in parameters.items()}
    return urlencode({k: v for k, v in given.items() if v is not None and v is not False}, quote_via=quote)


def epoch_ms_of(parameter: str, time: Time | None) -> int | None:
    """A time as a query parameter; raises ``BadParameter`` for a datetime without a time zone."""
    return parse_time(parameter, time.isoformat().encode()) if isinstance(time, datetime) else time


def range_parameters(codec: KeyCodec | None, start: Any, end: Any) -> dict[str, Any]:
    """The bounds of a list, of keys by their codec or else of times; raises ``BadKey`` or ``BadParameter``."""
    bounds = {"from": start, "to": end}
    if codec is None:
        return {name: epoch_ms_of(name, time) for name, time in bounds.items()}
    return {name: None if key is None else codec.to_text(codec.from_json(key)) for name, key in bounds.items()}
