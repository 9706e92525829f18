"""What a client returns: answers, list items and pages, all frozen. Times are epoch milliseconds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeAlias, TypeVar

from forebay.errors import Problem, UnknownKey
from forebay.lag import Lag
from forebay.store_kinds import STORE_KINDS
from forebay.unproven import UnprovenRange
from forebay.wire.answers import ReplicaInfo, problem_of
from forebay.wire.server_sent_events import Event

_LISTS = ("results", *sorted({kind.items for kind in STORE_KINDS.values()}))
"""The members of documents that have keys in their items."""


def parse_document(text: str | bytes, *, decimals: bool) -> Any:
    """The JSON value of a text; raises ``ValueError``.

    With ``decimals``, values have a ``Decimal`` for a number with a fraction or an exponent. Keys have floats all
    the same, since a key must be what it is requested by.
    """
    if not decimals:
        return json.loads(text)
    document = json.loads(text, parse_float=Decimal)
    _restore_keys(document)
    return document


def _restore_keys(document: Any) -> None:
    if not isinstance(document, dict):
        return
    if "key" in document:
        document["key"] = _with_floats(document["key"])
    _restore_keys(document.get("problem"))
    for name in _LISTS:
        items = document.get(name)
        for item in items if isinstance(items, list) else ():
            _restore_keys(item)


def _with_floats(key: Any) -> Any:
    match key:
        case Decimal():
            return float(key)
        case list():
            return [_with_floats(part) for part in key]
        case dict():
            return {name: _with_floats(part) for name, part in key.items()}
    return key


T = TypeVar("T")
Document = Mapping[str, Any]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The headers of a record, in their order: name and content of each."""


@dataclass(frozen=True)
class Answer:
    """The value of one key, a JSON value, with the replica that read it and its lag."""

    store: str
    key: Any
    value: Any
    timestamp_ms: int
    """The timestamp of the record that wrote it."""
    partition: int
    position: str
    """Position token: a read with it as ``min_position`` sees no less than this one."""
    role: str
    """``active``, ``restoring`` or ``standby``."""
    host: str
    lag: Lag
    schema_id: int | None = None
    """The schema that a registry has for the value, of stores whose values carry it."""
    headers: Headers = ()
    """With ``headers=True``, those of the record that wrote it."""


Change: TypeAlias = Answer | ReplicaInfo | Problem
"""What following a key yields: its value, ``UnknownKey`` if there is none, the replica and its lag, or the problem
that prevents an answer."""


@dataclass(frozen=True)
class Entry:
    """A key, its value, and the timestamp of the record that wrote it.

    Keys that carry the id of a schema have an entry for each form in which they were written.
    """

    key: Any
    value: Any
    timestamp_ms: int
    schema_id: int | None = None
    headers: Headers = ()
    key_schema_id: int | None = None


@dataclass(frozen=True)
class Window:
    """A key's value in the window ``[start_ms, end_ms)``."""

    key: Any
    start_ms: int
    end_ms: int
    value: Any
    timestamp_ms: int
    schema_id: int | None = None
    headers: Headers = ()


@dataclass(frozen=True)
class SessionWindow:
    """A key's value in the session window from ``start_ms`` to ``end_ms``."""

    key: Any
    start_ms: int
    end_ms: int
    value: Any
    timestamp_ms: int
    schema_id: int | None = None
    headers: Headers = ()


@dataclass(frozen=True)
class Version:
    """A key's value from ``valid_from_ms`` on; None if the key was deleted then."""

    key: Any
    valid_from_ms: int
    value: Any
    timestamp_ms: int
    schema_id: int | None = None
    headers: Headers = ()


@dataclass(frozen=True)
class ReplicaLag:
    """One replica of a partition: its worker, its role, and how far behind it is."""

    store: str
    partition: int
    task: str
    role: str
    """``active``, ``restoring`` or ``standby``."""
    host: str
    end_offset: int | None
    """The end of what can be read of its log, None while that is unknown."""
    lag: Lag
    failure: str | None
    """Why records are not applied, None while they are."""


ITEM_TYPES: Mapping[str, type[Any]] = {
    "key-value": Entry,
    "window": Window,
    "session": SessionWindow,
    "versioned": Version,
}
"""What the items of lists are, by the kind of store."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """One answer of a list: its items, the cursor of the next page if any, and where they came from.

    ``lag`` is, figure by figure, the worst of ``partitions``; ``missing`` are the partitions left out because
    ``allow_partial`` was asked for. Windows or sessions that ended in an ``unproven`` range may be missing.
    ``complete`` says that there are neither. ``skipped_old`` is how many entries ``skip_old`` has left out.
    """

    items: tuple[T, ...]
    cursor: str | None
    lag: Lag
    partitions: tuple[ReplicaInfo, ...]
    missing: tuple[int, ...]
    complete: bool
    unproven: tuple[UnprovenRange, ...] = ()
    skipped_old: int = 0


# Unknown members are ignored: a newer server may add some.


def lag_of(document: Document) -> Lag:
    """The three figures of a document's ``lag`` member."""
    return Lag(*(document["lag"].get(figure) for figure in Lag._fields))


def answer_of(document: Document) -> Answer:
    """The answer in a document."""
    store, key, value, timestamp_ms = (document[name] for name in ("store", "key", "value", "timestamp_ms"))
    schema_id, headers = document.get("schema_id"), headers_of(document)
    return Answer(store, key, value, timestamp_ms, *provenance_of(document), schema_id, headers)


def headers_of(document: Document) -> Headers:
    """The headers in a document, none if it has no such member."""
    return tuple([(header["name"], _content(header)) for header in document.get("headers", ())])


def _content(header: Document) -> bytes | None:
    if "value_base64" in header:
        return base64.b64decode(header["value_base64"])
    value: str | None = header["value"]
    return None if value is None else value.encode()


def replica_lag_of(row: Document) -> ReplicaLag:
    """A row of ``/v1/lags``."""
    store, partition, task, role, host = (row[name] for name in ("store", "partition", "task", "role", "host"))
    lag = Lag(*(row.get(figure) for figure in Lag._fields))
    return ReplicaLag(store, partition, task, role, host, row.get("end_offset"), lag, row.get("failure"))


def change_of(event: Event, *, decimals: bool) -> Change:
    """The content of an event."""
    document = parse_document(event.data, decimals=decimals)
    match event.name:
        case "value":
            return answer_of(document)
        case "absent":
            key = json.dumps(document["key"], ensure_ascii=False)
            detail = f"The store {document['store']!r} has no key {key}."
            return problem_of({"type": f"urn:forebay:problem:{UnknownKey.name}", "detail": detail, **document})
        case "lag":
            return provenance_of(document)
    return problem_of(document)


def provenance_of(document: Document) -> ReplicaInfo:
    """The replica named in a document."""
    partition, position, role, host = (document[name] for name in ("partition", "position", "role", "host"))
    return ReplicaInfo(partition, position, role, host, lag_of(document))


def page_of(document: Document, items: str, kind: type[T]) -> Page[T]:
    """The page in a document; the items in its member ``items`` become ``kind``, a dataclass."""
    # A list of one key gives the key once, beside the items. Few carry the id of a schema, or headers.
    shared = {"key": document.get("key"), "schema_id": None, "key_schema_id": None}
    names = kind.__match_args__  # type: ignore[attr-defined]
    found = [{**shared, **item, "headers": headers_of(item)} for item in document[items]]
    return Page(
        items=tuple([kind(*(item[name] for name in names)) for item in found]),
        cursor=document["next"],
        lag=lag_of(document),
        partitions=tuple([provenance_of(partition) for partition in document["partitions"]]),
        missing=tuple(document.get("missing", ())),
        complete=document["complete"],
        unproven=tuple([UnprovenRange(one["from_ms"], one["to_ms"]) for one in document.get("unproven", ())]),
        skipped_old=document.get("skipped_old", 0),
    )
