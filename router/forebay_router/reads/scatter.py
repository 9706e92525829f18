"""Reads of many partitions: scattered to the replicas of each, merged in stored order, streamed.

Memory is bounded whatever the limit: two pages per partition and list, and over all requests by ``Limits``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.event_loop_turns import decoded_in_turn, in_turn
from forebay.lag import Lag, Tolerance
from forebay.routing.scattered_list import PartitionPages, ScatteredList, page_bytes_of
from forebay.wire.answer_aging import bounds_exceeded, time_reserved_for_retry_ms
from forebay.wire.answers import TRANSIENT, HttpAnswer
from forebay.wire.parameters import ReadParameters, split_query
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE, ScanPage, list_head, list_tail
from forebay.wire.scans import Scan, ScanRoute, make_scan, posted_cursor, scan_head
from forebay_router.reads.refusals import nothing_read
from forebay_router.reads.replica_read import ask
from forebay_router.reads.replica_request import ReplicaRequest, TimedAnswer
from forebay_router.reads.send_window import SendWindow
from forebay_router.router import Router
from forebay_web.limits import Held

_FIRST_PAGE = 1_000
"""Entries; each page is twice as large as the previous one, so that merging starts early and pages are few."""
_LARGEST_PAGE = 4_000
_MAX_AT_ONCE = 64
"""Partitions asked at once: one scan of a large store must not use up a worker's request limit."""
_PIECE_BYTES = 256 << 10
_PART_FOR_ROOM = 0.25
"""Fraction of its time that a list may wait for memory."""
_LEFT_FOR_A_PAGE = 0.25
"""Fraction of the time that a list may take."""
_FRAMES = FRAMES_MEDIA_TYPE.encode()
_NOT_FORWARDED = frozenset({"limit", "cursor", "allow_partial", "timeout_ms"})


class SentCursor(NamedTuple):
    """What a cursor adds to a request's query, and its body, if any."""

    query: tuple[bytes, ...] = ()
    body: bytes | None = None

    @classmethod
    def of(cls, part: PartitionPages, scan: Scan) -> SentCursor:
        """That of a partition's next page."""
        cursor = part.cursor(scan)
        if cursor is None:
            return cls()
        body = posted_cursor(cursor)
        return cls((b"cursor=" + cursor.encode(),)) if body is None else cls(body=body)


class ScanRefused(Exception):
    """A partition could not be read; ``answer`` is its replicas' answer."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class ScanBroken(Exception):
    """A partition was lost in the middle of a scan whose answer had started: the body is cut, never completed."""


@dataclass
class _Fetch:
    """The fetching of one partition's pages: how large the next one is, one on its way, and the bytes held."""

    size: int = _FIRST_PAGE
    coming: asyncio.Task[TimedAnswer] | None = None
    page_bytes: int = 0

    def begin_again(self) -> None:
        """Forget the first page."""
        self.cancel()
        self.size = _FIRST_PAGE

    def cancel(self) -> None:
        """Stop the request for a page that is on its way."""
        if self.coming is not None:
            self.coming.cancel()
        self.coming = None


@dataclass
class Gather:
    """A scan under way through the router."""

    router: Router
    listed: ScatteredList
    parameters: ReadParameters
    path: bytes
    query: bytes
    deadline_boot_ms: float
    no_page_after_boot_ms: float
    """When to stop requesting pages: a list that ends with a cursor is better than one that is cut."""
    memory: Held
    window: SendWindow
    fetches: dict[int, _Fetch] = field(default_factory=lambda: defaultdict(_Fetch))
    refused: list[HttpAnswer] = field(default_factory=list)
    """Why partitions are missing."""
    page_bytes: int = 0
    """How large a page may become."""
    first_cursor: SentCursor | None = None
    """That of all partitions' first pages: a long one is encoded once."""

    @classmethod
    async def begin(
        cls,
        router: Router,
        route: ScanRoute,
        store: str,
        segment: bytes | None,
        path: bytes,
        query: bytes,
        parameters: ReadParameters,
        memory: Held,
    ) -> Gather:
        """Fetch every partition's first page; raises ``Problem``, or ``ScanRefused`` if one cannot be read.

        Pages are held in ``memory``.
        """
        scan = make_scan(route, parameters.written(router.spec(store)), segment, parameters)
        deadline = router.deadline(parameters)
        no_page_after = deadline - _LEFT_FOR_A_PAGE * (deadline - boot_ms())
        listed = ScatteredList.begin(scan, _partitions(router, scan), parameters.cursor)
        window = SendWindow(memory, _MAX_AT_ONCE)
        gather = cls(router, listed, parameters, path, query, deadline, no_page_after, memory, window)
        at_once = min(len(listed.parts), _MAX_AT_ONCE)
        gather.page_bytes = page_bytes_of(at_once)
        reserved_bytes = at_once * gather.page_bytes
        await memory.reserve(reserved_bytes, _PART_FOR_ROOM * (deadline - boot_ms()))
        try:
            await gather._reserve_first_cursors(_PART_FOR_ROOM * (deadline - boot_ms()))
            left_ms = time_reserved_for_retry_ms(router.tolerance(scan.spec, parameters), deadline - boot_ms())
            gather.deadline_boot_ms -= left_ms
            await gather._fetch(list(listed.parts.values()))
            gather.deadline_boot_ms += left_ms
            await gather._renew_early()
            gather._require_any()
        except BaseException:
            gather.drop()
            raise
        finally:
            # Those that came are held now.
            memory.adjust(-reserved_bytes)
            gather.window.release()
            gather.first_cursor = None
        gather.require_room()
        return gather

    def require_room(self) -> None:
        """Drop the list and raise ``Overloaded`` if its pages, which may be larger than asked for, were too
        much."""
        refusal = self.memory.refusal()
        if refusal is not None:
            self.drop()
            raise refusal

    async def _reserve_first_cursors(self, within_ms: float) -> None:
        """Hold what the first pages' requests take; raises ``Overloaded``."""
        parts = list(self.listed.parts.values())
        if parts and parts[0].max_cursor_bytes:
            await self.window.reserve(parts[0].max_cursor_bytes, len(parts), within_ms)
            self.first_cursor = SentCursor.of(parts[0], self.scan)

    def _require_any(self) -> None:
        """Raise the combined problem if no partition could be read."""
        if not self.listed.parts:
            raise ScanRefused(nothing_read(self.scan.spec.name, self.refused))

    async def _renew_early(self) -> None:
        """Request again, once, first pages that left their bounds while waiting for others."""
        early = self._begin_again()
        if early:
            self.parameters = self.parameters.of_a_reread
            await self._fetch([part for part, _ in early])
            for part, lag in self._begin_again():
                self._leave_out(part, bounds_exceeded(self.scan.spec.name, self._tolerance, lag))

    @property
    def scan(self) -> Scan:
        """What is listed."""
        return self.listed.scan

    @property
    def _tolerance(self) -> Tolerance:
        """The bounds, which may become stricter while the list is sent."""
        return self.router.tolerance(self.scan.spec, self.parameters)

    def _begin_again(self) -> list[tuple[PartitionPages, Lag]]:
        """Drop the first pages that have left their bounds; returns how far behind they are."""
        early = self.listed.begin_again(self._tolerance, boot_ms())
        for part, _ in early:
            self._count(part.partition, 0)
            self.fetches[part.partition].begin_again()
        return early

    def _leave_out(self, part: PartitionPages, answer: HttpAnswer) -> None:
        """Continue without a partition if that is allowed; raises ``ScanRefused`` otherwise."""
        if not (self.parameters.allow_partial and answer.status in TRANSIENT):
            raise ScanRefused(answer)
        self.refused.append(answer)
        self.listed.leave_out(part)
        self._count(part.partition, 0)

    def drop(self) -> None:
        """Stop all requests and drop all pages."""
        for partition, fetch in self.fetches.items():
            fetch.cancel()
            self._count(partition, 0)
        self.window.close()

    def _count(self, partition: int, page_bytes: int) -> None:
        fetch = self.fetches[partition]
        self.memory.adjust(page_bytes - fetch.page_bytes)
        fetch.page_bytes = page_bytes

    async def body(self) -> AsyncGenerator[bytes, None]:
        """The answer's body, piece by piece; raises ``ScanBroken`` if a partition is lost on the way.

        Before the first piece it may raise ``ScanRefused``: nothing has been sent yet. Each piece is sent only
        while the list's lag, as it is then, is within the bounds. A list that leaves them ends with a cursor after
        what was sent, and states the lag as of its last piece.
        """
        listed = self.listed
        head: bytes | None = list_head(self.scan)
        left = self.parameters.limit
        while True:
            items, key_at, up_to = await in_turn(listed.merge_some)
            if len(items) > left:
                items, up_to = items[:left], key_at(left - 1)
            sent = 0
            for count, piece in _in_pieces(items):
                if not self._keeps_bounds():
                    break
                yield b"," + piece if head is None else head + piece
                head = None
                sent += count
                listed.sent_up_to = key_at(sent - 1)
                if sent < len(items):
                    # A client that reads as fast as this sends would leave no turn to others.
                    await asyncio.sleep(0)
            left -= sent
            if not items and up_to is not None and self._keeps_bounds():
                # Nothing matches up to there, which is as old as the pages.
                listed.sent_up_to = up_to
            if sent < len(items) or up_to is None or not left:
                break
            drained = [part for part in listed.parts.values() if part.drained]
            if not drained:
                await asyncio.sleep(0)
                continue
            if boot_ms() >= self.no_page_after_boot_ms:
                break
            try:
                await self._fetch(drained)
            except ScanRefused as refused:
                if head is not None:
                    raise
                raise ScanBroken(f"a partition answered {refused.answer.status} in the middle of a scan") from None
        # The end of a list says that nothing follows, which is as old as everything else in it.
        if sent < len(items) or not self._keeps_bounds():
            if listed.sent_up_to is None:
                raise ScanRefused(bounds_exceeded(self.scan.spec.name, self._tolerance, self.lag()))
            up_to = listed.sent_up_to
        yield (head or b"") + list_tail(listed.sources, listed.cursor(up_to), listed.missing)

    def _keeps_bounds(self) -> bool:
        """Whether the list's present lag is within its bounds; it is then what the list states."""
        return self.listed.keeps_bounds(self._tolerance, boot_ms())

    def lag(self) -> Lag:
        """The largest lag of any partition that the list states."""
        return self.listed.lag

    async def _fetch(self, parts: list[PartitionPages]) -> None:
        """Get the next page of some partitions at once; a refused one is left out if that is allowed."""
        fetches = [self.fetches[part.partition] for part in parts]
        pages = (fetch.coming or self._ask(part) for part, fetch in zip(parts, fetches, strict=True))
        answers = await asyncio.gather(*pages)
        for part, fetch, (answer, as_of_boot_ms, page, page_bytes) in zip(parts, fetches, answers, strict=True):
            fetch.coming = None
            if answer.status == 200:
                part.take(page, as_of_boot_ms)
                self._count(part.partition, page_bytes)
                if page.more and self.memory.may_take(self.page_bytes):
                    # The next one is read while this one is merged and sent.
                    fetch.coming = asyncio.create_task(self._ask(part))
            else:
                self._leave_out(part, answer)

    async def _ask(self, part: PartitionPages) -> TimedAnswer:
        fetch = self.fetches[part.partition]
        limit = min(fetch.size, self.parameters.limit + 1)
        fetch.size = min(2 * fetch.size, _LARGEST_PAGE)
        query = [item.received for item in split_query(self.query) if item.name not in _NOT_FORWARDED]
        query.append(b"limit=%d" % limit)
        async with self.window.sending(part.max_cursor_bytes):
            # Encoded in its turn: those that wait take nothing.
            cursor = self.first_cursor if part.page is None else None
            cursor = cursor or SentCursor.of(part, self.scan)
            request = ReplicaRequest(
                self.scan.spec,
                part.partition,
                self.path + b"?" + b"&".join([*query, *cursor.query]),
                cursor.body,
                accept=_FRAMES,
                dedicated_connection=True,
                page_bytes=self.page_bytes,
                memory=self.memory,
                decode=partial(decoded_in_turn, ScanPage.decode),
                scan_head=scan_head(self.scan),
            )
            return await ask(self.router, request, self.parameters, self.deadline_boot_ms)


def _partitions(router: Router, scan: Scan) -> Sequence[int]:
    return range(scan.spec.partitions) if scan.plain is None else router.partitions(scan.spec, scan.plain)


def _in_pieces(items: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Items as JSON, in pieces of some size, each with its number of items.

    Items that a client has not read yet wait in pages, which are counted.
    """
    if items:
        count = max(1, _PIECE_BYTES * len(items) // (sum(map(len, items)) or 1))
        for at in range(0, len(items), count):
            piece = items[at : at + count]
            yield len(piece), b",".join(piece)
