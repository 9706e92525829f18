"""The plans of all reads: which requests in which order, and how answers are interpreted. No I/O is done here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from forebay.client.exchange import MALFORMED, Exchange, Opened, Plan, Request, not_of_a_read
from forebay.client.options import ALL_KEYS, ReadOptions, Time, check, epoch_ms_of
from forebay.client.positions import Positions
from forebay.client.problems import problem_of
from forebay.client.requested import Requested, batch_mismatch, spec_mismatch
from forebay.client.results import Answer, Change, Entry, Page, SessionWindow, Version, Window, answer_of, page_of
from forebay.client.store_changes import Absent, StoreChange, StoreChangesRequest, Values
from forebay.codecs import to_segment
from forebay.errors import BadKey, PartitionerMissing, Problem, UnknownKey
from forebay.position import later_position
from forebay.rest.answers import ReplicaInfo
from forebay.rest.batches import MOST_BODY_BYTES, MOST_KEYS
from forebay.rest.scans import posted_cursor
from forebay.topology import StoreSpec

REWRITTEN = ("", ".", "..")
"""Key segments that intermediaries rewrite."""
_LONGEST_SEGMENT = 4_096
"""Longer ones go in a body: proxies accept 8 kB of request head, and no server more than 64."""
_MOST_BATCH_BYTES = MOST_BODY_BYTES - 1_024

_ITEMS: dict[type, str] = {
    Entry: "entries",
    Window: "windows",
    SessionWindow: "sessions",
    Version: "versions",
}
"""The list routes' last segment, and the member that holds the items, by what the items are."""

T = TypeVar("T")


@dataclass(frozen=True)
class ListRequest(Generic[T]):
    """One list, for all its pages. ``start`` and ``end`` are keys for entries, else times."""

    kind: type[T]
    store: str
    key: Any
    start: Any
    end: Any
    reverse: bool
    options: ReadOptions
    allow_partial: bool = False
    prefix: str | bytes | None = None

    def __post_init__(self) -> None:
        check(self.options)


@dataclass(frozen=True)
class ChangesRequest:
    """One key to follow. Without ``lag_interval_ms`` its lag is not reported between changes."""

    store: str
    key: Any
    lag_interval_ms: int | None
    options: ReadOptions

    def __post_init__(self) -> None:
        check(self.options)

    @property
    def name(self) -> str:
        """What is followed, for messages."""
        return f"{self.key!r} of {self.store!r}"


class _BatchKey(NamedTuple):
    """A key of a batch: its place among the results, and its JSON."""

    place: int
    text: str
    requested: Requested


class ClientReads:
    """Plans every read; in a session, each read asks for at least what the session has read, and is recorded
    there."""

    def __init__(
        self, exchange: Exchange, specs: dict[str, StoreSpec] | None = None, positions: Positions | None = None
    ) -> None:
        self._exchange = exchange
        self._specs = {} if specs is None else specs
        self._positions = positions

    def in_session(self, positions: Positions) -> ClientReads:
        """The same, for a session."""
        return ClientReads(self._exchange, self._specs, positions)

    def get(self, store: str, key: Any, as_of: Time | None, options: ReadOptions) -> Plan[Answer]:
        """One key; raises ``Problem``."""
        check(options)
        deadline_ms = _deadline(self._exchange, options)
        spec = yield from self._spec(store, deadline_ms)
        plain = spec.key_codec.from_json(key)
        parameters = self._parameters(store, options, _partition(spec, plain), as_of=epoch_ms_of("as_of", as_of))
        requested = Requested(store, key, spec.key_codec)
        segment = to_segment(spec.key_codec, plain)
        result: Answer | Problem
        if segment in REWRITTEN or len(segment) > _LONGEST_SEGMENT:
            request = _batch(store, [requested], [_key_text(key)], parameters)
            document = yield from self._exchange.ask(request, deadline_ms, _refusal_of_the_only)
            result = _the_only(document)
        else:
            request = Request(f"{_path(store)}/keys/{segment}", parameters, requested.mismatch)
            try:
                result = _understood(answer_of, (yield from self._exchange.ask(request, deadline_ms)))
            except UnknownKey as miss:
                result = miss
        self.note(store, result)
        if isinstance(result, Problem):
            raise result
        return result

    def get_many(
        self, store: str, keys: Sequence[Any], as_of: Time | None, options: ReadOptions
    ) -> Plan[list[Answer | Problem]]:
        """Several keys, in as many requests as needed; raises ``Problem`` if one is refused as a whole."""
        check(options)
        if isinstance(keys, str | bytes):
            raise TypeError(f"get_many takes a list of keys, and {keys!r} is one.")
        deadline_ms = _deadline(self._exchange, options)
        spec = yield from self._spec(store, deadline_ms)
        results: list[Any] = [None] * len(keys)
        batch: list[_BatchKey] = []
        held_bytes = 0
        for index, key in enumerate(keys):
            try:
                spec.key_codec.from_json(key)
                text = _key_text(key)
                key_bytes = len(text.encode()) + 1
                if key_bytes > _MOST_BATCH_BYTES:
                    raise BadKey(
                        f"The key is {key_bytes} bytes long, more than a request may contain.", store=store
                    )
            except BadKey as problem:
                problem.members.setdefault("key", key)
                results[index] = problem
                continue
            if len(batch) == MOST_KEYS or held_bytes + key_bytes > _MOST_BATCH_BYTES:
                yield from self._read_some(store, batch, results, as_of, options, deadline_ms)
                batch, held_bytes = [], 0
            batch.append(_BatchKey(index, text, Requested(store, key, spec.key_codec)))
            held_bytes += key_bytes
        if batch or not keys:
            yield from self._read_some(store, batch, results, as_of, options, deadline_ms)
        return results

    def _read_some(
        self,
        store: str,
        batch: list[_BatchKey],
        results: list[Any],
        as_of: Time | None,
        options: ReadOptions,
        deadline_ms: float,
    ) -> Plan[None]:
        """Read the keys of one batch into their places among the results."""
        parameters = self._parameters(store, options, None, as_of=epoch_ms_of("as_of", as_of))
        request = _batch(store, [one.requested for one in batch], [one.text for one in batch], parameters)
        document = yield from self._exchange.ask(request, deadline_ms)
        for one, result in zip(batch, _understood(_results, document), strict=True):
            self.note(store, result)
            results[one.place] = result

    def open(
        self, wanted: ChangesRequest | StoreChangesRequest, last_event_id: str | None
    ) -> Plan[tuple[Opened, int, Requested]]:
        """A stream of changes, the server that it is from, and what it must be about; raises ``Problem``.

        The last event's id is None before the first; an empty one means that earlier positions no longer apply.
        """
        store, options = wanted.store, wanted.options
        deadline_ms = _deadline(self._exchange, options)
        spec = yield from self._spec(store, deadline_ms)
        interval = {"lag_interval_ms": wanted.lag_interval_ms}
        if isinstance(wanted, StoreChangesRequest):
            parameters = self._parameters(store, options, None, **interval, **wanted.parameters(spec))
            path, requested = f"{_path(store)}/changes", Requested(store)
        else:
            plain = spec.key_codec.from_json(wanted.key)
            parameters = self._parameters(store, options, _partition(spec, plain), **interval)
            if last_event_id == "":
                parameters["min_position"] = None
            path = f"{_key_path(spec, plain)}/changes"
            requested = Requested(store, wanted.key, spec.key_codec)
        request = Request(path, parameters, requested.mismatch, streamed=True, last_event_id=last_event_id)
        opened, server = yield from self._exchange.open(request, deadline_ms)
        return opened, server, requested

    def turn_from(self, server: int) -> None:
        """Ask another server first from now on, unless it is another already."""
        self._exchange.turn_from(server)

    @property
    def several(self) -> bool:
        """Whether there is another server to turn to."""
        return self._exchange.several

    def page(self, wanted: ListRequest[T], cursor: str | None, limit: int) -> Plan[Page[T]]:
        """One page of a list; raises ``Problem``."""
        store, items = wanted.store, _ITEMS[wanted.kind]
        deadline_ms = _deadline(self._exchange, wanted.options)
        path, partition, requested = _path(store), None, Requested(store)
        if wanted.key is not ALL_KEYS:
            spec = yield from self._spec(store, deadline_ms)
            plain = spec.key_codec.from_json(wanted.key)
            partition = _partition(spec, plain)
            path = _key_path(spec, plain)
            requested = Requested(store, wanted.key, spec.key_codec)
        start, end = yield from self._bounds(wanted, deadline_ms)
        body = None if cursor is None else posted_cursor(cursor)
        parameters = self._parameters(
            store,
            wanted.options,
            partition,
            **{"from": start, "to": end},
            prefix=wanted.prefix,
            reverse=wanted.reverse,
            allow_partial=wanted.allow_partial,
            limit=limit,
            cursor=cursor if body is None else None,
        )
        request = Request(f"{path}/{items}", parameters, requested.mismatch, body)
        document = yield from self._exchange.ask(request, deadline_ms)
        page = _understood(lambda document: page_of(document, items, wanted.kind), document)
        if self._positions is not None:
            for source in page.partitions:
                self._positions.add(store, source.position)
        return page

    def _bounds(self, wanted: ListRequest[T], deadline_ms: float) -> Plan[tuple[bytes | int | None, ...]]:
        bounds = {"from": wanted.start, "to": wanted.end}
        if wanted.kind is not Entry:
            return tuple(epoch_ms_of(name, time) for name, time in bounds.items())
        codec = (yield from self._spec(wanted.store, deadline_ms)).key_codec
        return tuple(None if key is None else codec.to_text(codec.from_json(key)) for key in bounds.values())

    def _spec(self, store: str, deadline_ms: float) -> Plan[StoreSpec]:
        spec = self._specs.get(store)
        if spec is None:
            request = Request(_path(store), {}, partial(spec_mismatch, store), timed=False)
            document = yield from self._exchange.ask(request, deadline_ms)
            spec = self._specs[store] = _understood(StoreSpec.from_document, document)
        return spec

    def _parameters(
        self, store: str, options: ReadOptions, partition: int | None, **others: Any
    ) -> dict[str, Any]:
        parameters: dict[str, Any] = {**options, **others}
        if self._positions is not None:
            seen = self._positions.get(store, partition)
            parameters["min_position"] = later_position(seen, options.get("min_position"))
        return parameters

    def note(self, store: str, result: Change | StoreChange) -> None:
        """Record what was read: a miss counts, a refusal does not."""
        position = None
        if isinstance(result, Answer | ReplicaInfo):
            position = result.position
        elif isinstance(result, Values | Absent):
            position = result.source.position
        elif isinstance(result, UnknownKey):
            position = result.members.get("position")
        if self._positions is not None and position is not None:
            self._positions.add(store, position)


def _deadline(exchange: Exchange, options: ReadOptions) -> float:
    return exchange.deadline(options.get("timeout_ms"), options.get("wait_ms", 0))


def _path(store: str) -> str:
    return f"/v1/stores/{quote(store, safe='')}"


def _key_path(spec: StoreSpec, plain: bytes) -> str:
    """The path of a key; raises ``BadKey`` for one that no path can express."""
    segment = to_segment(spec.key_codec, plain)
    if not segment:
        raise BadKey("No path can express an empty key; only get and get_many can ask for it.", store=spec.name)
    # Segments of dots alone would be taken for relative path segments.
    return f"{_path(spec.name)}/keys/{segment.replace('.', '%2E')}"


def _key_text(key: Any) -> str:
    """A key's JSON; raises ``BadKey`` if it has none."""
    try:
        return json.dumps(key, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise BadKey(f"The key {key!r} is not a JSON value.") from None


def _partition(spec: StoreSpec, plain: bytes) -> int | None:
    """The partition of a key; None if its partitioner is unknown, or not installed here."""
    try:
        partitioner = spec.stream_partitioner
    except PartitionerMissing:
        return None
    return None if partitioner is None else partitioner.partition(plain, spec.partitions)


def _batch(store: str, requested: Sequence[Requested], keys: Sequence[str], parameters: dict[str, Any]) -> Request:
    """A request for keys whose JSON is given."""
    body = f'{{"keys": [{",".join(keys)}]}}'.encode()
    return Request(f"{_path(store)}/batch-get", parameters, partial(batch_mismatch, store, requested), body)


def _refusal_of_the_only(batch: dict[str, Any]) -> Problem | None:
    """The problem of a batch's only key."""
    result = _the_only(batch)
    return result if isinstance(result, Problem) else None


def _the_only(batch: dict[str, Any]) -> Answer | Problem:
    (result,) = _understood(_results, batch)
    return result


def _results(batch: dict[str, Any]) -> list[Answer | Problem]:
    return [_result(result) for result in batch["results"]]


def _result(document: dict[str, Any]) -> Answer | Problem:
    if "problem" not in document:
        return answer_of(document)
    return problem_of({"key": document["key"], **document["problem"]})


def _understood(read: Callable[[dict[str, Any]], T], document: dict[str, Any]) -> T:
    """What is read in an answer; raises ``Problem`` if that is not there."""
    try:
        return read(document)
    except MALFORMED:
        raise not_of_a_read() from None
