"""The query parameters of reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import unquote_to_bytes

from forebay.codecs.keys import MAX_KEY_BYTES
from forebay.errors import BadParameter
from forebay.lag import UNLIMITED, Tolerance
from forebay.position import Position, decode_position
from forebay.store_spec import StoreSpec

MAX_LIMIT = 100_000
_EPOCH_MS = re.compile(r"-?[0-9]{1,15}")
_EPOCH_S = re.compile(r"[1-9][0-9]{9}")
"""The seconds of the years 2001 to 2286. As milliseconds they are of January to April 1970."""
DEFAULT_LIMIT = 1_000
MAX_REQUEST_MS = 30_000
"""The longest that a request may take, whatever it states."""
_LONGEST_REMEMBERED = 1_024
_MAX_PARAMETERS = 64
DEFAULT_LAG_INTERVAL_MS = 5_000
MIN_LAG_INTERVAL_MS = 100

Prefer = Literal["active", "any"]
"""Which replica a router asks first: the active, or any within the tolerance."""
Numbers = Literal["json", "text"]
"""How answers write keys and values of the codec ``int64``: as numbers or as strings."""


@dataclass(frozen=True)
class ReadParameters:
    """The options of a read beyond the key; None if the request does not state them."""

    tolerance: Tolerance = UNLIMITED
    require_active: bool = False
    prefer: Prefer = "active"
    min_position: Position | None = None
    wait_ms: int = 0
    timeout_ms: int | None = None
    start: bytes | None = None
    end: bytes | None = None
    prefix: bytes | None = None
    keys: bytes | None = None
    as_of_ms: int | None = None
    max_record_age_ms: int | None = None
    skip_old: bool = False
    partition: int | None = None
    doubted: bool = False
    allow_partial: bool = False
    reverse: bool = False
    limit: int = DEFAULT_LIMIT
    cursor: str | None = None
    lag_interval_ms: int = DEFAULT_LAG_INTERVAL_MS
    numbers: Numbers = "json"
    headers: bool = False

    def written(self, spec: StoreSpec) -> StoreSpec:
        """A store with its numbers, and the headers of its records, as the request wants them.

        Raises ``BadParameter`` if it wants headers that the store does not keep.
        """
        if self.headers and not spec.record_headers:
            raise BadParameter(
                f"The store {spec.name!r} keeps no headers of records: set record_headers = true for it in the "
                "topology, or leave out headers=true.",
                parameter="headers",
            )
        written = spec.with_text_numbers if self.numbers == "text" else spec
        return written.with_headers if self.headers else written

    @property
    def of_a_reread(self) -> ReadParameters:
        """Those to read again what has left its bounds: a replica at their edge would soon leave them again."""
        return replace(self, prefer="active")

    def allowed_ms(self, default_ms: int) -> int:
        """How long the request may take: as it states, else the default and its wait; within the bound."""
        return min(self.timeout_ms or default_ms + self.wait_ms, MAX_REQUEST_MS)

    def tolerance_for(self, spec: StoreSpec) -> Tolerance:
        """The request's tolerance, or the store's own if the request has none."""
        return self.tolerance if self.tolerance != UNLIMITED else spec.default_tolerance


def parse_parameters(query: bytes, known: frozenset[str]) -> ReadParameters:
    """Read a raw query string; raises ``BadParameter`` naming the parameter.

    Unknown parameters are refused: a misspelt tolerance must not be ignored. Equal queries share the parsed
    result, unless they are long.
    """
    return _remembered(query, known) if len(query) <= _LONGEST_REMEMBERED else _parsed(query, known)


def _parsed(query: bytes, known: frozenset[str]) -> ReadParameters:
    given = _split(query)
    unknown = sorted(given.keys() - known)
    if unknown:
        raise _unknown_parameter(unknown[0], known)
    values = {name: _value(name, raw) for name, raw in given.items()}
    if values.get("skip_old") and "max_record_age_ms" not in values:
        raise BadParameter("skip_old=true needs max_record_age_ms, which says what is old.", parameter="skip_old")
    tolerance = Tolerance(*(values.pop(name, None) for name in Tolerance._fields))
    return ReadParameters(tolerance, **{_FIELDS.get(name, name): value for name, value in values.items()})


_remembered = lru_cache(maxsize=4096)(_parsed)


class QueryItem(NamedTuple):
    """One parameter of a query: its name and value, and both as received."""

    name: str
    value: bytes
    received: bytes


def has_too_many(query: bytes) -> bool:
    """Whether a raw query has more parameters than any path takes: to read them would take others' time."""
    return query.count(b"&") >= _MAX_PARAMETERS


def split_query(query: bytes) -> Iterator[QueryItem]:
    """The parameters of a raw query, in order; raises ``BadParameter`` if there are more than any path takes."""
    if has_too_many(query):
        raise BadParameter(f"The query has more than {_MAX_PARAMETERS} parameters.", parameter="query")
    for received in filter(None, query.split(b"&")):
        name, _, value = (unquote_to_bytes(part.replace(b"+", b" ")) for part in received.partition(b"="))
        yield QueryItem(name.decode("utf-8", "replace"), value, received)


def text_parameters(query: bytes, *known: str) -> dict[str, str]:
    """The values of a query, by name; raises ``BadParameter`` for other names than the known ones."""
    given = _split(query)
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise _unknown_parameter(unknown[0], known)
    return {name: raw.decode("utf-8", "replace") for name, raw in given.items()}


def natural_parameters(query: bytes, **defaults: int) -> dict[str, int]:
    """The whole numbers of a query, by name; raises ``BadParameter`` for others than those with a default."""
    given = text_parameters(query, *defaults)
    return {**defaults, **{name: _integer(name, text) for name, text in given.items()}}


def partition_parameter(query: bytes, partitions: int) -> int | None:
    """The partition that a query names, None if none; raises ``BadParameter`` unless there is such a one."""
    named = text_parameters(query, "partition").get("partition")
    if named is None:
        return None
    partition = _integer("partition", named)
    if partition >= partitions:
        raise BadParameter(f"partition={partition}: the store has {partitions}, from 0.", parameter="partition")
    return partition


def _unknown_parameter(name: str, known: Iterable[str]) -> BadParameter:
    accepted = ", ".join(sorted(known)) or "none"
    return BadParameter(f"There is no parameter {name!r} here; this path accepts {accepted}.", parameter=name)


def _split(query: bytes) -> dict[str, bytes]:
    given: dict[str, bytes] = {}
    for name, raw, received in split_query(query):
        if name in given:
            raise BadParameter(f"The parameter {name!r} is given twice.", parameter=name)
        if name in _KEY_BOUNDS and len(received) > MAX_KEY_BYTES:
            raise BadParameter(f"{name}= is longer than {MAX_KEY_BYTES} bytes.", parameter=name)
        given[name] = raw
    return given


def _value(name: str, raw: bytes) -> Any:
    """The value of a parameter of a read, as its schema has it; raises ``BadParameter``."""
    if name in _AS_RECEIVED:
        return raw
    if name == "as_of":
        return parse_time(name, raw)
    text = raw.decode("utf-8", "replace")
    if name == "min_position":
        return decode_position(text)
    schema, _ = PARAMETERS[name]
    match schema["type"]:
        case "integer":
            return _integer(name, text, schema["minimum"], schema.get("maximum"))
        case "boolean":
            return _choice(name, text, ("true", "false")) == "true"
    return _choice(name, text, schema["enum"]) if "enum" in schema else text


def _integer(name: str, text: str, minimum: int = 0, maximum: int | None = None) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadParameter(f"{name}={text!r} is not a whole number of at least {minimum}.", parameter=name)
    number = int(text)
    if number < minimum:
        raise BadParameter(f"{name}={number} is less than {minimum}.", parameter=name)
    if maximum is not None and number > maximum:
        remedy = "; continue with the cursor" if name == "limit" else ""
        raise BadParameter(f"{name}={number} is more than {maximum}{remedy}.", parameter=name)
    return number


def _choice(name: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise BadParameter(f"{name}={text!r} is neither {' nor '.join(map(repr, choices))}.", parameter=name)
    return text


def parse_time(name: str, raw: bytes) -> int:
    """Epoch milliseconds of a time given as such or as RFC 3339; raises ``BadParameter`` naming ``name``.

    Fractions of a millisecond are rounded up in ``from`` and ``to``: the same whole milliseconds are at or after
    them. Otherwise they are left out. Seconds are refused, which a query in milliseconds would take for 1970.
    """
    text = raw.decode("utf-8", "replace")
    if _EPOCH_S.fullmatch(text):
        raise BadParameter(
            f"{name}={text} would be in 1970, since times are epoch milliseconds. If these are seconds, give "
            f"{text}000. If 1970 is meant, write the time as in 1970-01-13T00:00:00Z.",
            parameter=name,
        )
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.upper())
        since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadParameter(
            f"{name}={text!r} is neither epoch milliseconds nor an RFC 3339 time such as 2013-01-01T05:00:00Z "
            "(in a URL, a plus is %2B).",
            parameter=name,
        ) from None
    if moment.tzinfo is None:
        raise BadParameter(f"{name}={text!r} has no time zone; add Z or an offset.", parameter=name)
    fraction_us = since.microseconds + (999 if name in ("from", "to") else 0)
    return (since.days * 86_400 + since.seconds) * 1000 + fraction_us // 1000


_KEY_BOUNDS = frozenset({"from", "to", "prefix"})
"""Keys, or times, by the kind of the store."""
_AS_RECEIVED = _KEY_BOUNDS | {"keys"}
_FIELDS = {"from": "start", "to": "end", "as_of": "as_of_ms"}

READ_PARAMETERS = frozenset(
    {
        "max_record_lag",
        "max_time_lag_ms",
        "max_age_ms",
        "require_active",
        "prefer",
        "min_position",
        "wait_ms",
        "timeout_ms",
        "numbers",
        "headers",
    }
)
WORKER_PARAMETERS = frozenset({"partition", "doubted"})
"""What only workers take."""
KEY_PARAMETERS = READ_PARAMETERS | {"as_of", "max_record_age_ms"}
CHANGES_PARAMETERS = READ_PARAMETERS | {"lag_interval_ms"}
STORE_CHANGES_PARAMETERS = CHANGES_PARAMETERS | {"keys", "prefix", "from", "to"}
SCAN_PARAMETERS = READ_PARAMETERS | {"from", "to", "reverse", "limit", "cursor", "max_record_age_ms", "skip_old"}
ALL_KEYS_SCAN_PARAMETERS = SCAN_PARAMETERS | {"allow_partial"}
ENTRIES_PARAMETERS = ALL_KEYS_SCAN_PARAMETERS | {"prefix"}

PARAMETERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "max_record_lag": ({"type": "integer", "minimum": 0}, "Maximum records that the answer may be behind."),
    "max_time_lag_ms": ({"type": "integer", "minimum": 0}, "Maximum milliseconds it may be behind the log."),
    "max_age_ms": ({"type": "integer", "minimum": 0}, "Maximum milliseconds it may be behind the source."),
    "require_active": ({"type": "boolean"}, "Only a running active answers."),
    "prefer": (
        {"type": "string", "enum": list(get_args(Prefer)), "default": "active"},
        "Which replica a router asks first: the active, or any within the tolerance, to spread the load; if the "
        "router has a rack, one there.",
    ),
    "min_position": ({"type": "string"}, "Position token of an earlier answer: read at least that."),
    "wait_ms": (
        {"type": "integer", "minimum": 0},
        "How long a replica may wait to meet the bound, instead of refusing at once.",
    ),
    "timeout_ms": (
        {"type": "integer", "minimum": 1},
        "Total time, waits and retries included; the server's default, and `wait_ms` beside it, if not given.",
    ),
    "as_of": ({"type": "string"}, "Versioned stores: the value at this time, epoch ms or RFC 3339."),
    "max_record_age_ms": (
        {"type": "integer", "minimum": 0},
        "Maximum milliseconds since the value's own record was written, by the worker's clock.",
    ),
    "skip_old": (
        {"type": "boolean", "default": False},
        "Leave out what is older than `max_record_age_ms`, and count it in `skipped_old`, instead of a refusal.",
    ),
    "from": ({"type": "string"}, "First key, or first time (epoch ms or RFC 3339), inclusive."),
    "to": ({"type": "string"}, "Where to stop: key or time, exclusive."),
    "prefix": ({"type": "string"}, "Prefix that keys begin with."),
    "keys": ({"type": "string"}, "Only these keys: a JSON array, such as `[\"UA\",\"AA\"]`, of at most 500."),
    "reverse": ({"type": "boolean", "default": False}, "Descending order: of keys, or newest first."),
    "limit": (
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        "Maximum number of entries in the answer.",
    ),
    "cursor": ({"type": "string"}, "The `next` of the previous page."),
    "allow_partial": ({"type": "boolean"}, "Answer with whatever partitions could be read."),
    "partition": ({"type": "integer", "minimum": 0}, "For workers: this partition only."),
    "doubted": (
        {"type": "boolean", "default": False},
        "For workers: another replica of the store has found keys in partitions that are not theirs, so no lag "
        "and no miss is proven. Routers say so.",
    ),
    "lag_interval_ms": (
        {"type": "integer", "minimum": MIN_LAG_INTERVAL_MS, "default": DEFAULT_LAG_INTERVAL_MS},
        "Time between two `lag` events.",
    ),
    "numbers": (
        {"type": "string", "enum": list(get_args(Numbers)), "default": "json"},
        "`text` writes keys and values of the codec int64 as strings, for programs such as JavaScript's whose "
        "numbers are exact up to 2^53 only. Keys in a body may then be strings.",
    ),
    "headers": (
        {"type": "boolean", "default": False},
        "Have the headers of the record that wrote a value beside it, of stores with `record_headers = true`.",
    ),
}  # fmt: skip
"""JSON schema and meaning of every parameter of a read."""


def openapi_parameters(known: frozenset[str]) -> list[dict[str, Any]]:
    """The OpenAPI parameter objects of a route."""
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
        for name, (schema, text) in PARAMETERS.items()
        if name in known
    ]
