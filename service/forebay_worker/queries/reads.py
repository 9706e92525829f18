"""Reads: one key, several keys, and scans.

Progress is taken before the content, so that the lag is never understated; the position token is made from what
was being applied after it, so that the token bounds from above what was read.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from forebay.codecs import from_segment
from forebay.errors import BadParameter, NotHostedHere, NotReady, Problem, UnknownKey
from forebay.lag import Lag
from forebay.rest.answers import (
    JSON_HEAD,
    NO_STORE,
    Answer,
    Provenance,
    Told,
    problem_answer,
    provenance_head,
    provenance_members,
)
from forebay.rest.lists import joined_position, list_head, list_tail
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import (
    DELETED_VERSION,
    FRAMES_MEDIA_TYPE,
    Cursor,
    Page,
    Scan,
    ScanRoute,
    make_scan,
    require_kind,
)
from forebay.topology import StoreSpec
from forebay_worker.queries.admission import Admission, Admitted, Refused
from forebay_worker.tasks.expiry import oldest_start_ms
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

_FRAMES_HEAD = b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n"
_MOST_PAGE_BYTES = 4 << 20
_CHUNK = 500


class Found(NamedTuple):
    """The stored value of a key, None where there is none, and where it is from."""

    value: bytes | None
    told: Told


class Batched(NamedTuple):
    """One key's answer or problem, and whether its replica may soon have a better one."""

    answer: Answer
    may_wait: bool


def key_document(spec: StoreSpec, plain: bytes, value: bytes | None, members: bytes) -> bytes:
    """The JSON of what was found of one key, without ``value`` where there is none.

    ``members`` are those of its provenance.
    """
    key = spec.key_codec.to_json(plain)
    if value is None:
        return b'{"store":"%b","key":%b,%b}' % (spec.name_bytes, key, members)
    shown = spec.value_codec.to_json(value)
    return b'{"store":"%b","key":%b,"value":%b,%b}' % (spec.name_bytes, key, shown, members)


class Reads:
    """Answers reads of the replicas that this worker holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def key(self, store: str, segment: bytes, parameters: ReadParameters) -> Answer:
        """Answer ``GET /v1/stores/{store}/keys/{key}``; raises ``Problem`` or ``Refused``."""
        spec = self._admission.spec(store)
        require_kind(spec, "key-value", "versioned")
        _require_versions(spec, parameters)
        plain = from_segment(spec.key_codec, segment)
        replica = self._admission.replica(spec, self._admission.partition(spec, plain, parameters.partition))
        admitted = self._admission.admit(replica, parameters)
        value = _value(replica, plain, parameters)
        told = self._admission.told(admitted)
        if value is None:
            raise Refused(self._miss(admitted, plain), told.source)
        return Answer(200, told.json_head, key_document(spec, plain, value, told.members))

    def look(self, replica: Replica, plain: bytes, parameters: ReadParameters) -> Found:
        """What a replica has of a key, also where it proves that there is nothing; raises ``Refused``."""
        admitted = self._admission.admit(replica, parameters)
        found = Found(_value(replica, plain, parameters), self._admission.told(admitted))
        if found.value is None:
            problem = self._miss(admitted, plain)
            if not isinstance(problem, UnknownKey):
                raise Refused(problem, found.told.source)
        return found

    def _miss(self, admitted: Admitted, plain: bytes) -> Problem:
        return self._admission.miss(admitted, admitted.replica.spec.key_codec.to_json(plain))

    def batch(self, store: str, keys: Sequence[Any], parameters: ReadParameters) -> list[Batched]:
        """One answer or problem per key, in order; raises ``UnknownStore`` and ``WrongStoreKind`` for all."""
        spec = self._admission.spec(store)
        require_kind(spec, "key-value", "versioned")
        results: dict[int, Batched] = {}
        places: dict[int, list[tuple[int, bytes]]] = {}
        for index, key in enumerate(keys):
            try:
                plain = spec.key_codec.from_json(key)
                partition = self._admission.partition(spec, plain, parameters.partition)
            except Problem as problem:
                results[index] = Batched(problem_answer(problem), False)
            else:
                places.setdefault(partition, []).append((index, plain))
        for partition, placed in places.items():
            found = self._batched(spec, partition, [plain for _, plain in placed], parameters)
            results |= {index: result for (index, _), result in zip(placed, found, strict=True)}
        return [results[index] for index in range(len(keys))]

    def _batched(
        self, spec: StoreSpec, partition: int, plains: list[bytes], parameters: ReadParameters
    ) -> list[Batched]:
        """What one partition has of several keys, or why it may not answer: judged once for all of them."""
        try:
            _require_versions(spec, parameters)
            admitted = self._admission.admit(self._admission.replica(spec, partition), parameters)
        except Refused as refused:
            return [Batched(refused.answer(), refused.may_wait)] * len(plains)
        except Problem as problem:
            return [Batched(problem_answer(problem), False)] * len(plains)
        try:
            values = _values(admitted.replica, plains, parameters)
        except Exception as error:
            return [Batched(problem_answer(_unreadable(admitted.replica, error)), True)] * len(plains)
        told = self._admission.told(admitted)
        return [
            self._batched_miss(admitted, plain, told)
            if value is None
            else Batched(Answer(200, b"", key_document(spec, plain, value, told.members)), False)
            for plain, value in zip(plains, values, strict=True)
        ]

    def _batched_miss(self, admitted: Admitted, plain: bytes, told: Told) -> Batched:
        refused = Refused(self._miss(admitted, plain), told.source)
        return Batched(refused.answer(), refused.may_wait)

    def scan(
        self, route: ScanRoute, store: str, segment: bytes | None, parameters: ReadParameters, *, frames: bool
    ) -> Answer:
        """Answer a list route over the partitions held here; raises ``Problem`` or ``Refused``.

        ``frames`` asks for one partition's page in the form that routers merge.
        """
        scan = make_scan(route, self._admission.spec(store), segment, parameters)
        cursor = None if parameters.cursor is None else Cursor.decode(parameters.cursor, scan)
        pages = [
            self._page(scan, partition, cursor, parameters) for partition in self._partitions(scan, parameters)
        ]
        if frames:
            return Answer(200, _FRAMES_HEAD + NO_STORE + _source_head(pages[0]), pages[0].encode())
        return Answer(200, JSON_HEAD + NO_STORE + _source_head(*pages), _merged(scan, pages, parameters.limit))

    def _partitions(self, scan: Scan, parameters: ReadParameters) -> list[int]:
        spec = scan.spec
        if parameters.partition is not None:
            return [parameters.partition]
        if scan.plain is not None:
            return [self._admission.partition(spec, scan.plain)]
        held = []
        for partition in range(spec.partitions):
            try:
                self._admission.replica(spec, partition)
                held.append(partition)
            except NotHostedHere:
                if not parameters.allow_partial:
                    raise
        return held

    def _page(self, scan: Scan, partition: int, cursor: Cursor | None, parameters: ReadParameters) -> Page:
        admission = self._admission
        replica = admission.replica(scan.spec, partition)
        admitted = admission.admit(replica, parameters)
        if cursor is not None and cursor.position is not None:
            admission.require_position(admitted, cursor.position)
        key_json = None if scan.plain is None else scan.spec.key_codec.to_json(scan.plain)
        admission.require_completeness(admitted, key_json)
        page, size = Page(), 0
        try:
            for keys, items in _chunks(scan, replica, cursor, min(_CHUNK, parameters.limit + 1)):
                page.keys += keys
                page.items += items
                size += sum(map(len, items))
                if len(page.keys) > parameters.limit or size > _MOST_PAGE_BYTES:
                    page.more = True
                    break
        except Exception as error:
            raise _unreadable(replica, error) from error
        # One more than asked for tells that there is more; a page cut for its size ends with what it has.
        page.keys, page.items = page.keys[: parameters.limit], page.items[: parameters.limit]
        page.source = _source(admission, admitted)
        return page


def _value(replica: Replica, plain: bytes, parameters: ReadParameters) -> bytes | None:
    """The value of a key, at the time asked for if it has versions; raises ``NotReady``."""
    keys = replica.spec.stored_keys
    try:
        if keys.kind == "key-value":
            return replica.store.get(keys.prefix(plain))
        return _version(replica, plain, parameters)
    except Exception as error:
        raise _unreadable(replica, error) from error


def _version(replica: Replica, plain: bytes, parameters: ReadParameters) -> bytes | None:
    keys = replica.spec.stored_keys
    end = (
        keys.stored(plain, parameters.as_of_ms + 1)
        if parameters.as_of_ms is not None
        else keys.prefix(plain) + b"\xff"
    )
    for _, value in replica.store.scan(keys.prefix(plain), end, reverse=True):
        return None if value[:1] == DELETED_VERSION else value[1:]
    return None


def _unreadable(replica: Replica, error: Exception) -> Problem:
    """What a store that cannot be read is to a client: it may just be closing, and another replica has it."""
    log.warning("%s of task %s could not be read: %r", replica.spec.name, replica.task, error)
    return NotReady("The store could not be read; it may be closing or being opened anew.", retry_after_s=1)


def _values(replica: Replica, plains: list[bytes], parameters: ReadParameters) -> list[bytes | None]:
    keys = replica.spec.stored_keys
    if keys.kind == "key-value":
        return replica.store.get_many([keys.prefix(plain) for plain in plains])
    return [_version(replica, plain, parameters) for plain in plains]


def _require_versions(spec: StoreSpec, parameters: ReadParameters) -> None:
    if parameters.as_of_ms is not None and spec.kind != "versioned":
        raise BadParameter(
            f"The store {spec.name!r} keeps no versions; only versioned stores take as_of.", parameter="as_of"
        )


def _chunks(
    scan: Scan, replica: Replica, cursor: Cursor | None, size: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Stored keys and items of what is asked for, about so many at a time."""
    start, end = (scan.start, scan.end) if cursor is None else scan.after(cursor.last)
    found = replica.store.scan(start, end, reverse=scan.reverse)
    oldest = oldest_start_ms(scan.spec, replica.stream_time_ms)
    while pairs := list(itertools.islice(found, size)):
        if scan.route.items == "entries":
            yield [stored for stored, _ in pairs], scan.entries(pairs)
            continue
        if oldest is not None:
            pairs = [pair for pair in pairs if scan.spec.stored_keys.parse(pair[0]).times_ms[-1] >= oldest]
        kept = [(stored, item) for stored, value in pairs if (item := scan.item(stored, value)) is not None]
        yield [stored for stored, _ in kept], [item for _, item in kept]


def _source(admission: Admission, admitted: Admitted) -> dict[str, Any]:
    return provenance_members(admission.told(admitted).source)


def _source_head(*pages: Page) -> bytes:
    """The replica's header lines where one replica answered; none where several did."""
    if len(pages) != 1:
        return b""
    source = pages[0].source
    return provenance_head(Provenance(**{**source, "lag": Lag(**source["lag"])}))


def _merged(scan: Scan, pages: list[Page], limit: int) -> bytes:
    """One list answer of several partitions' pages, cut where a page that has more ends."""
    ends = [page.keys[-1] for page in pages if page.more and page.keys]
    items = sorted((item for page in pages for item in page.take(len(page.keys))), reverse=scan.reverse)
    if ends:
        bound = max(ends) if scan.reverse else min(ends)
        items = [item for item in items if (item[0] >= bound if scan.reverse else item[0] <= bound)]
    more = bool(ends) or len(items) > limit
    items = items[:limit]
    sources = [page.source for page in pages]
    absent = set(range(scan.spec.partitions)) - {source["partition"] for source in sources}
    missing = absent if scan.plain is None else set()
    following = None
    if more and items:
        following = Cursor(scan.digest, items[-1][0], joined_position(sources), tuple(sorted(missing)))
    return list_head(scan) + b",".join([item for _, item in items]) + list_tail(sources, following, missing)
