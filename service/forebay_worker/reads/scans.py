"""Scans: the lists of entries, windows, sessions and versions that this worker holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from forebay.clock import boot_ms, epoch_ms
from forebay.errors import BadParameter, NoReplica, NotHostedHere, RecordTooOld
from forebay.event_loop_turns import in_turns
from forebay.lag import Lag
from forebay.state_store import StateStore
from forebay.stored_keys import TIME_SIZE, StoredKeys
from forebay.stored_values import decode_version
from forebay.wire.answer_aging import bounds_exceeded
from forebay.wire.answers import (
    JSON_HEAD,
    NO_STORE,
    HttpAnswer,
    ReplicaInfo,
    provenance_members,
    replica_info_head,
)
from forebay.wire.parameters import ReadParameters
from forebay.wire.scan_pages import (
    FRAMES_MEDIA_TYPE,
    SKIPPED_OLD,
    UNPROVEN,
    ScanPage,
    first_end,
    joined_position,
    list_head,
    list_tail,
    merging,
    provenance_alone,
)
from forebay.wire.scans import Cursor, Scan, ScanRoute, make_scan, scan_head
from forebay_web.large_answers import MAX_AT_ONCE_BYTES, LargeAnswer
from forebay_worker.reads.admission import Admission, Admitted
from forebay_worker.reads.disk_reads import DiskReads
from forebay_worker.reads.values import (
    Pair,
    all_unexpired,
    oldest_version,
    require_young,
    scanned_in_chunks,
    why_unproven,
)

_FRAMES_HEAD = b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n"
MAX_PAGE_BYTES = 4 << 20
_LOWEST = b"\x00" * TIME_SIZE
_HIGHEST = b"\xff" * TIME_SIZE
_MAX_SCANNED = 10_000
"""Entries scanned per page, matching or not: one that finds little says how far it is."""


class Entries(NamedTuple):
    """A part of a list: its entries, how many stored ones it took, and up to which stored key it is complete."""

    pairs: list[Pair]
    scanned: int
    last: bytes


def latest_entries(chunks: Iterable[list[Pair]], keys: StoredKeys, *, reverse: bool) -> Iterator[Entries]:
    """The latest entries of a scan, chunk by chunk, with their values as they were written.

    The stored key of each is that of the last order that its key could have in the direction of the scan. Why: a
    later page, which begins after it, must not list the key again if a higher order was applied meanwhile.
    """
    return _backward(chunks, keys) if reverse else _forward(chunks, keys)


def _forward(chunks: Iterable[list[Pair]], keys: StoredKeys) -> Iterator[Entries]:
    """Only the next key shows that an order is the highest; a page that ends before it continues with it."""
    held: list[Pair] = []
    for chunk in chunks:
        found, last = held + chunk, b""
        pairs: list[Pair] = []
        for (stored, value), (following, _) in pairwise(found):
            last, prefix = stored, keys.prefix_of(stored)
            if prefix != keys.prefix_of(following):
                last = prefix + _HIGHEST
                pairs += _live(last, value)
        held = found[-1:]
        yield Entries(pairs, len(chunk), last)
    for stored, value in held:
        last = keys.prefix_of(stored) + _HIGHEST
        yield Entries(_live(last, value), 0, last)


def _backward(chunks: Iterable[list[Pair]], keys: StoredKeys) -> Iterator[Entries]:
    """The first of a key has the highest order; a page ends before the whole key."""
    last = b""
    for chunk in chunks:
        pairs: list[Pair] = []
        for stored, value in chunk:
            place = keys.prefix_of(stored) + _LOWEST
            if place != last:
                pairs += _live(place, value)
            last = place
        yield Entries(pairs, len(chunk), last)


def _live(stored: bytes, encoded: bytes) -> list[Pair]:
    """The entry, none if it is a deletion."""
    value = decode_version(encoded)
    return [] if value is None else [(stored, value)]


class Scans:
    """Answers the list routes from the replicas that this worker holds."""

    def __init__(self, admission: Admission, disk_reads: DiskReads) -> None:
        self._admission = admission
        self._disk_reads = disk_reads

    async def answer(
        self,
        route: ScanRoute,
        store: str,
        segment: bytes | None,
        parameters: ReadParameters,
        *,
        frames: bool,
        page_bytes: int = MAX_PAGE_BYTES,
    ) -> HttpAnswer | LargeAnswer:
        """Answer a list route over the partitions held here, in turns with other requests; raises ``Problem`` or
        ``Refused``.

        ``frames`` requests one partition's page in the form that routers merge, ``page_bytes`` how large a page
        may become before it ends.
        """
        scan = make_scan(route, parameters.written(self._admission.spec(store)), segment, parameters)
        cursor = None if parameters.cursor is None else Cursor.decode(parameters.cursor, scan)
        pages: list[ScanPage] = []
        read_boot_ms: list[float] = []
        for partition in self._partitions(scan, cursor, parameters):
            page = ScanPage()
            await self._disk_reads.bring(self._beginning(scan, partition, cursor))
            await in_turns(self._reading(page, read_boot_ms, scan, partition, cursor, parameters, page_bytes))
            pages.append(page)
        tolerance, lags = self._admission.tolerance(scan.spec, parameters), []
        for page, at_boot_ms in zip(pages, read_boot_ms, strict=True):
            lag = Lag(**page.source["lag"]).aged(boot_ms() - at_boot_ms)
            if not tolerance.met_by(lag):
                return bounds_exceeded(store, tolerance, lag, "the list had been read")
            page.source = {**page.source, "lag": lag.document()}
            lags.append(lag)
        self._admission.served.count_worst(store, lags)
        if frames:
            head = _FRAMES_HEAD + NO_STORE + _source_head(pages[0]) + scan_head(scan)
            return HttpAnswer(200, head, pages[0].encode())
        head = JSON_HEAD + NO_STORE + _source_head(*pages)
        parts = await in_turns(_merged(scan, pages, parameters.limit))
        if sum(map(len, parts)) > MAX_AT_ONCE_BYTES:
            return LargeAnswer(200, head, parts)
        return HttpAnswer(200, head, b"".join(parts))

    def _partitions(self, scan: Scan, cursor: Cursor | None, parameters: ReadParameters) -> list[int]:
        """Those to read; what one page had to leave out stays out of all that follow."""
        spec = scan.spec
        partition: int | None
        if scan.plain is not None:
            partition = self._admission.partition(spec, scan.plain, parameters.partition)
        else:
            partition = parameters.partition
        if partition is not None:
            _require_of(partition, cursor, scan)
            return [partition]
        held = []
        left_out = () if cursor is None else cursor.missing
        for partition in sorted({*range(spec.partitions)}.difference(left_out)):
            try:
                self._admission.replica(spec, partition)
                held.append(partition)
            except NotHostedHere:
                if not parameters.allow_partial:
                    raise
        if not held:
            # Without any replica nothing is known, also not how far behind that is.
            raise NoReplica(f"No partition of this list of {spec.name!r} is held here.", store=spec.name)
        return held

    def _beginning(self, scan: Scan, partition: int, cursor: Cursor | None) -> list[tuple[StateStore, bytes]]:
        """Where a page begins to read; what follows there RocksDB reads ahead."""
        replica = self._admission.held(scan.spec, partition)
        if replica is None or scan.reverse:
            return []
        start, _ = _range(scan, cursor)
        return [(replica.view.store, start)]

    def _reading(
        self,
        page: ScanPage,
        read_boot_ms: list[float],
        scan: Scan,
        partition: int,
        cursor: Cursor | None,
        parameters: ReadParameters,
        page_bytes: int,
    ) -> Iterator[None]:
        """Read one partition's page, and note when.

        Its replica is admitted in the step that begins to read: what was true before others had their turns need
        not be true any more.
        """
        admission = self._admission
        read_boot_ms.append(boot_ms())
        replica = admission.replica(scan.spec, partition)
        admitted = admission.admit(replica, parameters)
        if cursor is not None and cursor.position is not None:
            admission.require_position(admitted, cursor.position)
        problem = why_unproven(admitted, scan.spec, scan.plain)
        if problem is not None:
            raise admission.refusal(admitted, problem)
        try:
            yield from _read_page(page, scan, admitted, cursor, parameters, page_bytes)
        except RecordTooOld as too_old:
            raise admission.refusal(admitted, too_old) from None
        counted = page.source
        page.source = {**_source(admission, admitted), **_unproven(scan, admitted), **counted}


def _require_of(partition: int, cursor: Cursor | None, scan: Scan) -> None:
    """Raise ``BadParameter`` for a cursor of another partition: what is before it would be left out here."""
    if cursor is not None and (partition in cursor.missing or not _has_read(partition, cursor, scan)):
        raise BadParameter(
            f"The cursor is of another partition than {partition}. Repeat partition as it was, or begin the list "
            "again without a cursor.",
            parameter="cursor",
        )


def _has_read(partition: int, cursor: Cursor, scan: Scan) -> bool:
    """Whether one key's list was read from this partition so far; a list of all keys goes on in new ones too."""
    return scan.plain is None or cursor.position is None or partition in cursor.position.offsets


def _read_page(
    page: ScanPage,
    scan: Scan,
    admitted: Admitted,
    cursor: Cursor | None,
    parameters: ReadParameters,
    page_bytes: int,
) -> Iterator[None]:
    """Read the next matching items into a page, as many as requested; fewer if they are large or sparse."""
    limit = parameters.limit
    if parameters.skip_old:
        page.source[SKIPPED_OLD] = 0
    start, end = _range(scan, cursor)
    if scan.route.store_kind.keeps_versions and scan.plain is not None:
        start = max(start, oldest_version(admitted, scan.plain) or start)
    oldest_ms, expired_ms = admitted.replica.view.oldest_kept_ms, admitted.expired_for(parameters)
    scanned = size = 0
    for pairs, stored, last in _entries(scan, admitted, start, end, limit):
        scanned += stored
        page.last = last or page.last
        selected = all_unexpired(scan.selected(pairs, oldest_ms), expired_ms)
        if parameters.max_record_age_ms is not None and selected:
            selected = _young(page, scan, selected, parameters)
        together = max(1, len(selected) // scan.spec.byte_cost)
        for begin in range(0, len(selected), together):
            keys, values = map(list, zip(*selected[begin : begin + together], strict=True))
            items = scan.items(keys, values)
            page.keys += keys
            page.items += items
            size += sum(map(len, items))
            if begin + together < len(selected):
                yield
        page.more = len(page.keys) > limit or size > page_bytes or scanned >= _MAX_SCANNED
        if page.more:
            break
        yield
    if len(page.keys) > limit:
        # One more than requested shows that there is more.
        page.keys, page.items = page.keys[:limit], page.items[:limit]
        page.last = page.keys[-1]


def _young(page: ScanPage, scan: Scan, pairs: list[Pair], parameters: ReadParameters) -> list[Pair]:
    """Those whose records are young enough, of which the others are counted; raises ``RecordTooOld`` if there are
    others that the request has not left out."""
    timestamps_ms = scan.timestamps_ms(*map(list, zip(*pairs, strict=True)))
    if not parameters.skip_old:
        require_young(timestamps_ms, parameters)
        return pairs
    oldest_ms = epoch_ms() - (parameters.max_record_age_ms or 0)
    young = [pair for pair, timestamp_ms in zip(pairs, timestamps_ms, strict=True) if timestamp_ms >= oldest_ms]
    page.source[SKIPPED_OLD] += len(pairs) - len(young)
    return young


def _range(scan: Scan, cursor: Cursor | None) -> tuple[bytes, bytes]:
    """The stored keys, half-open, that are left to be read."""
    return (scan.start, scan.end) if cursor is None else scan.after(cursor.last)


def _entries(scan: Scan, admitted: Admitted, start: bytes, end: bytes, limit: int) -> Iterable[Entries]:
    """What a store has in a range, in parts."""
    chunks = scanned_in_chunks(admitted, start, end, reverse=scan.reverse, most=limit + 1)
    if scan.spec.latest_by is not None:
        return latest_entries(chunks, scan.spec.stored_keys, reverse=scan.reverse)
    return (Entries(chunk, len(chunk), chunk[-1][0]) for chunk in chunks)


def _source(admission: Admission, admitted: Admitted) -> dict[str, Any]:
    return provenance_members(admission.replica_info(admitted).source)


def _unproven(scan: Scan, admitted: Admitted) -> dict[str, Any]:
    """The ranges in which a page may lack entries, as they are now that it was read; nothing without any."""
    ranges = scan.unproven(admitted.replica.view.still_unproven)
    return {UNPROVEN: ranges} if ranges else {}


def _source_head(*pages: ScanPage) -> bytes:
    """The replica's header lines if one replica answered; none if several did."""
    if len(pages) != 1:
        return b""
    source = provenance_alone(pages[0].source)
    return replica_info_head(ReplicaInfo(**{**source, "lag": Lag(**source["lag"])}))


def _merged(scan: Scan, pages: list[ScanPage], limit: int) -> Iterator[bytes]:
    """The parts of one list answer of several partitions' pages, cut where a page that has more ends."""
    last, left, between = first_end(pages, reverse=scan.reverse), limit, b""
    last_listed = b""
    yield list_head(scan)
    for items, key_at in merging(pages, reverse=scan.reverse):
        listed = items[:left]
        if listed:
            yield between
            yield b",".join(listed)
            last_listed, between = key_at(len(listed) - 1), b","
        if len(items) > len(listed):
            last = last_listed
            break
        left -= len(listed)
    sources = [page.source for page in pages]
    absent = set(range(scan.spec.partitions)) - {source["partition"] for source in sources}
    missing = absent if scan.plain is None else set()
    following = None
    if last is not None:
        following = Cursor(scan.digest, last, joined_position(sources), tuple(sorted(missing)))
    yield list_tail(sources, following, missing)
