"""Scans: the lists of entries, windows, sessions and versions that this worker holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from forebay.errors import NotHostedHere
from forebay.lag import Lag
from forebay.rest.answers import (
    JSON_HEAD,
    NO_STORE,
    Answer,
    Provenance,
    provenance_head,
    provenance_members,
)
from forebay.rest.lists import joined_position, list_head, list_tail
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import (
    FRAMES_MEDIA_TYPE,
    Cursor,
    Page,
    Scan,
    ScanRoute,
    make_scan,
)
from forebay.retention import oldest_kept_ms
from forebay_worker.queries.admission import Admission, Admitted
from forebay_worker.queries.values import oldest_version, unreadable
from forebay_worker.tasks.replica import Replica

_FRAMES_HEAD = b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n"
_MOST_PAGE_BYTES = 4 << 20
_CHUNK = 500


class Scans:
    """Answers the list routes from the replicas that this worker holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def answer(
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
        admission.require_completeness(admitted, scan.plain)
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
            raise unreadable(replica, error) from error
        # One more than asked for tells that there is more; a page cut for its size ends with what it has.
        page.keys, page.items = page.keys[: parameters.limit], page.items[: parameters.limit]
        page.source = _source(admission, admitted)
        return page


def _chunks(
    scan: Scan, replica: Replica, cursor: Cursor | None, size: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Stored keys and items of what is asked for, about so many at a time."""
    start, end = (scan.start, scan.end) if cursor is None else scan.after(cursor.last)
    if scan.route.items == "versions" and scan.plain is not None:
        start = max(start, oldest_version(replica, scan.plain) or start)
    found = replica.store.scan(start, end, reverse=scan.reverse)
    oldest = oldest_kept_ms(scan.spec, replica.stream_time_ms)
    while pairs := list(itertools.islice(found, size)):
        if scan.route.items == "entries":
            yield [stored for stored, _ in pairs], scan.entries(pairs)
            continue
        if oldest is not None:
            pairs = [pair for pair in pairs if scan.spec.stored_keys.parse(pair[0]).times_ms[0] >= oldest]
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
