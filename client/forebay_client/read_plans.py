"""The plans of all reads, and the lists that they read page by page. No I/O is done here.

A plan says which requests are sent in which order, and how answers are interpreted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from forebay.codecs.keys import to_segment
from forebay.errors import BadKey, PartitionerMissing, Problem, UnknownKey
from forebay.lag import UNKNOWN_LAG, Lag
from forebay.position import later_position
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.store_spec import StoreSpec
from forebay.unproven import UnprovenRange
from forebay.wire.answers import ReplicaInfo
from forebay.wire.scans import posted_cursor
from forebay_client.exchange import Exchange, Opened, Plan, Request, understood
from forebay_client.key_batches import (
    BatchKey,
    batch_request,
    batches,
    key_text,
    require_size,
    results_in,
)
from forebay_client.options import ALL_KEYS, ReadOptions, Time, check, epoch_ms_of, range_parameters, store_path
from forebay_client.positions import Positions
from forebay_client.request_identity import Requested, spec_mismatch
from forebay_client.results import ITEM_TYPES, Answer, Change, Page, answer_of, page_of
from forebay_client.store_changes import Absent, StoreChange, StoreChangesRequest, Values

REWRITTEN = ("", ".", "..")
"""Key segments that intermediaries rewrite."""
_LONGEST_SEGMENT = 4_096
"""Longer ones go in a body: proxies accept 8 kB of request head, and no server more than 64."""

_KINDS: dict[type, StoreKind] = {ITEM_TYPES[name]: kind for name, kind in STORE_KINDS.items()}
"""The kinds of stores, by what the items of their lists are."""

T = TypeVar("T")


class RecordAge(NamedTuple):
    """How old a list's records may be, and whether older ones are left out instead of refused."""

    max_record_age_ms: int | None = None
    skip_old: bool = False


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
    age: RecordAge
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


class ClientReads:
    """Plans every read; in a session, each read asks for at least what the session has read, and is recorded
    there."""

    def __init__(
        self,
        exchange: Exchange,
        specs: dict[str, StoreSpec] | None = None,
        positions: Positions | None = None,
    ) -> None:
        self.exchange = exchange
        self._specs = {} if specs is None else specs
        self._positions = positions

    def in_session(self, positions: Positions) -> ClientReads:
        """The same, for a session."""
        return ClientReads(self.exchange, self._specs, positions)

    def get(
        self, store: str, key: Any, as_of: Time | None, max_record_age_ms: int | None, options: ReadOptions
    ) -> Plan[Answer]:
        """One key; raises ``Problem``."""
        check(options)
        deadline_ms = _deadline(self.exchange, options)
        spec = yield from self._spec(store, deadline_ms)
        plain = spec.key_codec.from_json(key)
        bounds = {"as_of": epoch_ms_of("as_of", as_of), "max_record_age_ms": max_record_age_ms}
        parameters = self._parameters(store, options, _partition(spec, plain), **bounds)
        requested = Requested(store, key, spec.key_codec)
        segment = to_segment(spec.key_codec, plain)
        result: Answer | Problem
        if segment in REWRITTEN or len(segment) > _LONGEST_SEGMENT:
            only = BatchKey(0, key_text(key), requested)
            request = batch_request(store, [only], parameters)
            document = yield from self.exchange.ask(request, deadline_ms, _refusal_of_the_only)
            result = _the_only(document)
        else:
            path = f"{store_path(store)}/keys/{segment}"
            request = Request(path, parameters, requested.mismatch)
            try:
                result = understood(answer_of, (yield from self.exchange.ask(request, deadline_ms)))
            except UnknownKey as miss:
                result = miss
        self.note(store, result)
        if isinstance(result, Problem):
            raise result
        return result

    def get_many(
        self,
        store: str,
        keys: Sequence[Any],
        as_of: Time | None,
        max_record_age_ms: int | None,
        options: ReadOptions,
    ) -> Plan[list[Answer | Problem]]:
        """Several keys, in as many requests as needed; raises ``Problem`` if one is refused as a whole."""
        check(options)
        if isinstance(keys, str | bytes):
            raise TypeError(f"get_many takes a list of keys, and {keys!r} is one.")
        deadline_ms = _deadline(self.exchange, options)
        bounds = {"as_of": epoch_ms_of("as_of", as_of), "max_record_age_ms": max_record_age_ms}
        spec = yield from self._spec(store, deadline_ms)
        results: list[Any] = [None] * len(keys)
        to_read: list[BatchKey] = []
        for place, key in enumerate(keys):
            try:
                to_read.append(self._batch_key(spec, place, key))
            except BadKey as problem:
                problem.members.setdefault("key", key)
                results[place] = problem
        # The options of an empty batch are checked by the server, too.
        for batch in batches(to_read) if keys else [[]]:
            found = yield from self._read_batch(store, batch, bounds, options, deadline_ms)
            for key, result in zip(batch, found, strict=True):
                self.note(store, result)
                results[key.place] = result
        return results

    def _batch_key(self, spec: StoreSpec, place: int, key: Any) -> BatchKey:
        """A key of a batch; raises ``BadKey``."""
        spec.key_codec.from_json(key)
        return require_size(BatchKey(place, key_text(key), Requested(spec.name, key, spec.key_codec)))

    def _read_batch(
        self,
        store: str,
        batch: Sequence[BatchKey],
        bounds: dict[str, int | None],
        options: ReadOptions,
        deadline_ms: float,
    ) -> Plan[list[Answer | Problem]]:
        """The answer or the problem of each key of one batch."""
        parameters = self._parameters(store, options, None, **bounds)
        document = yield from self.exchange.ask(batch_request(store, batch, parameters), deadline_ms)
        return understood(results_in, document)

    def open(
        self, wanted: ChangesRequest | StoreChangesRequest, last_event_id: str | None
    ) -> Plan[tuple[Opened, int, Requested]]:
        """A stream of changes, the server that it is from, and what it must be about; raises ``Problem``.

        The last event's id is None before the first; an empty one means that earlier positions no longer apply.
        """
        store, options = wanted.store, wanted.options
        deadline_ms = _deadline(self.exchange, options)
        spec = yield from self._spec(store, deadline_ms)
        interval = {"lag_interval_ms": wanted.lag_interval_ms}
        if isinstance(wanted, StoreChangesRequest):
            parameters = self._parameters(store, options, None, **interval, **wanted.parameters(spec))
            path, requested = f"{store_path(store)}/changes", Requested(store)
        else:
            plain = spec.key_codec.from_json(wanted.key)
            parameters = self._parameters(store, options, _partition(spec, plain), **interval)
            if last_event_id == "":
                parameters["min_position"] = None
            path = f"{_key_path(spec, plain)}/changes"
            requested = Requested(store, wanted.key, spec.key_codec)
        request = Request(path, parameters, requested.mismatch, streamed=True, last_event_id=last_event_id)
        opened, server = yield from self.exchange.open(request, deadline_ms)
        return opened, server, requested

    def page(self, wanted: ListRequest[T], cursor: str | None, limit: int) -> Plan[Page[T]]:
        """One page of a list; raises ``Problem``."""
        store, items = wanted.store, _KINDS[wanted.kind].items
        deadline_ms = _deadline(self.exchange, wanted.options)
        path, partition, requested = store_path(store), None, Requested(store)
        if wanted.key is not ALL_KEYS:
            spec = yield from self._spec(store, deadline_ms)
            plain = spec.key_codec.from_json(wanted.key)
            partition = _partition(spec, plain)
            path = _key_path(spec, plain)
            requested = Requested(store, wanted.key, spec.key_codec)
        codec = None
        if not _KINDS[wanted.kind].lists_by_time:
            codec = (yield from self._spec(store, deadline_ms)).key_codec
        parameters = self._parameters(
            store,
            wanted.options,
            partition,
            **range_parameters(codec, wanted.start, wanted.end),
            prefix=wanted.prefix,
            reverse=wanted.reverse,
            allow_partial=wanted.allow_partial,
            limit=limit,
            cursor=cursor,
            **wanted.age._asdict(),
        )
        body = None if cursor is None else posted_cursor(cursor)
        parameters["cursor"] = cursor if body is None else None
        request = Request(f"{path}/{items}", parameters, requested.mismatch, body)
        document = yield from self.exchange.ask(request, deadline_ms)
        page = understood(lambda document: page_of(document, items, wanted.kind), document)
        if self._positions is not None:
            for source in page.partitions:
                self._positions.add(store, source.position)
        return page

    def _spec(self, store: str, deadline_ms: float) -> Plan[StoreSpec]:
        spec = self._specs.get(store)
        if spec is None:
            request = Request(store_path(store), {}, partial(spec_mismatch, store), timed=False)
            document = yield from self.exchange.ask(request, deadline_ms)
            spec = self._specs[store] = understood(StoreSpec.from_document, document)
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


def _key_path(spec: StoreSpec, plain: bytes) -> str:
    """The path of a key; raises ``BadKey`` for one that no path can express."""
    segment = to_segment(spec.key_codec, plain)
    if not segment:
        raise BadKey("No path can express an empty key; only get and get_many can ask for it.", store=spec.name)
    # Segments of dots alone would be taken for relative path segments.
    return f"{store_path(spec.name)}/keys/{segment.replace('.', '%2E')}"


def _partition(spec: StoreSpec, plain: bytes) -> int | None:
    """The partition of a key; None if its partitioner is unknown, or not installed here."""
    try:
        partitioner = spec.stream_partitioner
    except PartitionerMissing:
        return None
    return None if partitioner is None else partitioner.partition(plain, spec.partitions)


def _refusal_of_the_only(batch: dict[str, Any]) -> Problem | None:
    """The problem of a batch's only key."""
    result = _the_only(batch)
    return result if isinstance(result, Problem) else None


def _the_only(batch: dict[str, Any]) -> Answer | Problem:
    (result,) = understood(results_in, batch)
    return result


_NO_PAGE: Page[Any] = Page((), None, UNKNOWN_LAG, (), (), complete=False)


class Listing(Generic[T]):
    """A list that is read page by page, as its items are consumed.

    ``lag`` and ``partitions`` describe the newest page. An entry present throughout is returned exactly once, but
    the pages are not a snapshot. After an error, the failed page is requested again.
    """

    def __init__(self, reads: ClientReads, wanted: ListRequest[T], limit: int | None, page_size: int) -> None:
        self._reads = reads
        self._request = wanted
        self._left = limit
        self._page_size = page_size
        self._in_hand: deque[T] = deque()
        self._over = limit == 0
        self._page: Page[T] = _NO_PAGE

    @property
    def lag(self) -> Lag:
        """Figure by figure the worst of the partitions; unknown before the first page."""
        return self._page.lag

    @property
    def partitions(self) -> tuple[ReplicaInfo, ...]:
        """Which replica answered for each partition, and how far it was."""
        return self._page.partitions

    @property
    def complete(self) -> bool:
        """Whether no partition is missing and nothing unproven; False before the first page."""
        return self._page.complete

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions left out, if ``allow_partial`` was requested."""
        return self._page.missing

    @property
    def unproven(self) -> tuple[UnprovenRange, ...]:
        """The ends of windows or sessions that may be missing; see ``Page``."""
        return self._page.unproven

    @property
    def skipped_old(self) -> int:
        """How many entries ``skip_old`` has left out of the newest page."""
        return self._page.skipped_old

    def _next_page(self) -> Plan[None]:
        limit = self._page_size if self._left is None else min(self._left, self._page_size)
        page = yield from self._reads.page(self._request, self._page.cursor, limit)
        self._page = page
        self._in_hand.extend(page.items)
        if self._left is not None:
            self._left -= len(page.items)
        self._over = page.cursor is None or self._left == 0
