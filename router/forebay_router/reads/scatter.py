"""Reads of many partitions: scattered to the replicas of each, merged in stored order, streamed.

Memory is bounded whatever the limit: two pages per partition and list, and over all requests by ``Limits``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from forebay.clock import boot_ms
from forebay.codecs import from_segment
from forebay.lag import Lag, Tolerance, worst_lag
from forebay.rest.aging import bounds_exceeded
from forebay.rest.answers import HttpAnswer
from forebay.rest.limits import HeldMemory
from forebay.rest.lists import joined_position, list_head, list_tail
from forebay.rest.parameters import ReadParameters, split_query
from forebay.rest.scans import (
    FRAMES_MEDIA_TYPE,
    Cursor,
    Scan,
    ScanPage,
    ScanRoute,
    make_scan,
    merge,
    posted_cursor,
    window_end,
)
from forebay.rest.statuses import TRANSIENT
from forebay.rest.turns import decoded_in_turn, in_turn
from forebay_router.reads.attempts import nothing_read
from forebay_router.reads.replica_read import ask
from forebay_router.reads.replica_request import ReplicaRequest, TimedAnswer, time_reserved_for_retry_ms
from forebay_router.router import Router

_FIRST_PAGE = 1_000
"""Entries; each page is twice as large as the previous one, so that merging starts early and pages are few."""
_LARGEST_PAGE = 4_000
_MOST_AT_ONCE = 64
"""Partitions asked at once: one scan of a large store must not use up a worker's request limit."""
_PIECE_BYTES = 256 << 10
_FIRST_PAGES_BYTES = 2 << 20
"""What the first pages of a list may take together, unless its partitions are many: dozens of small lists that one
client has in flight, behind a worker that hangs, are no reason to refuse it."""
_LEAST_PAGE_BYTES = 64 << 10
_PART_FOR_ROOM = 0.25
"""Fraction of its time that a list may wait for memory."""
_LEFT_FOR_A_PAGE = 0.25
"""Fraction of the time that a list may take."""
_FRAMES = FRAMES_MEDIA_TYPE.encode()
_NOT_FORWARDED = frozenset({"limit", "cursor", "allow_partial", "timeout_ms"})


class ScanRefused(Exception):
    """A partition could not be read; ``answer`` is its replicas' answer."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class ScanBroken(Exception):
    """A partition was lost in the middle of a scan whose answer had started: the body is cut, never completed."""


@dataclass
class _PartitionScan:
    """One partition's part of a scan: the current page, one on its way, and where it starts."""

    partition: int
    first: tuple[bytes | None, str | None]
    """Where it starts: after this stored key, and at this position at least."""
    page: ScanPage | None = None
    last: bytes | None = field(init=False)
    at: str | None = field(init=False)
    coming: asyncio.Task[TimedAnswer] | None = None
    size: int = _FIRST_PAGE
    lag: Lag | None = None
    """The largest lag of any of its pages on arrival."""
    as_of_boot_ms: float = 0.0
    page_bytes: int = 0

    def __post_init__(self) -> None:
        self.last, self.at = self.first

    def take(self, page: ScanPage, as_of_boot_ms: float) -> None:
        """Continue with the next page; the lag of earlier ones remains part of the answer's lag."""
        lag = Lag(**page.source["lag"])
        if self.lag is not None:
            lag = worst_lag([self.lag.aged(as_of_boot_ms - self.as_of_boot_ms), lag])
        self.lag, self.as_of_boot_ms = lag, as_of_boot_ms
        self.page, self.at = page, page.source["position"]
        self.last = page.last

    def source(self) -> dict[str, Any]:
        """Its provenance, from its last page, with the answer's present lag."""
        assert self.page is not None
        return {**self.page.source, "lag": self.lag_now.document()}

    @property
    def lag_now(self) -> Lag:
        """Its present lag."""
        assert self.lag is not None
        return self.lag.aged(boot_ms() - self.as_of_boot_ms)

    def begin_again(self) -> None:
        """Forget the first page."""
        if self.coming is not None:
            self.coming.cancel()
        self.page = self.lag = self.coming = None
        self.last, self.at = self.first
        self.size = _FIRST_PAGE

    @property
    def drained(self) -> bool:
        """Whether the current page is used up and there is another."""
        return self.page is not None and self.page.more and not self.page.keys


@dataclass
class Gather:
    """A scan under way through the router."""

    router: Router
    scan: Scan
    parameters: ReadParameters
    path: bytes
    query: bytes
    deadline_boot_ms: float
    no_page_after_boot_ms: float
    """When to stop requesting pages: a list that ends with a cursor is better than one that is cut."""
    memory: HeldMemory
    parts: dict[int, _PartitionScan] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    lost: list[_PartitionScan] = field(default_factory=list)
    """Partitions lost on the way: some of their items are in the list."""
    refused: list[HttpAnswer] = field(default_factory=list)
    """Why partitions are missing."""
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))
    page_bytes: int = _LEAST_PAGE_BYTES
    """How large a page may become."""
    _sent_up_to: bytes | None = None
    """The stored key up to which everything was sent."""
    _sources: list[dict[str, Any]] = field(default_factory=list)
    """What the list states of its partitions, with their lag as of the last item sent."""

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
        memory: HeldMemory,
    ) -> Gather:
        """Fetch every partition's first page; raises ``Problem``, or ``ScanRefused`` if one cannot be read.

        Pages are held in ``memory``.
        """
        scan = make_scan(route, parameters.written(router.spec(store)), segment, parameters)
        deadline = router.deadline(parameters)
        no_page_after = deadline - _LEFT_FOR_A_PAGE * (deadline - boot_ms())
        gather = cls(router, scan, parameters, path, query, deadline, no_page_after, memory)
        cursor = None if parameters.cursor is None else Cursor.decode(parameters.cursor, scan)
        gather.missing.update(cursor.missing if cursor else ())
        for partition in gather._partitions(segment):
            if partition not in gather.missing:
                first = (None, None) if cursor is None else (cursor.last, cursor.at)
                gather.parts[partition] = _PartitionScan(partition, first)
        at_once = min(len(gather.parts), _MOST_AT_ONCE)
        gather.page_bytes = max(_LEAST_PAGE_BYTES, _FIRST_PAGES_BYTES // max(1, at_once))
        reserved_bytes = at_once * gather.page_bytes
        await memory.reserve(reserved_bytes, _PART_FOR_ROOM * (deadline - boot_ms()))
        try:
            left_ms = time_reserved_for_retry_ms(router.tolerance(scan.spec, parameters), deadline - boot_ms())
            gather.deadline_boot_ms -= left_ms
            await gather._fetch(list(gather.parts.values()))
            gather.deadline_boot_ms += left_ms
            await gather._renew_early()
            gather._require_any()
        except BaseException:
            gather.drop()
            raise
        finally:
            # Those that came are held now.
            memory.adjust(-reserved_bytes)
        return gather

    def _require_any(self) -> None:
        """Raise the combined problem if no partition could be read."""
        if not self.parts:
            raise ScanRefused(nothing_read(self.scan.spec.name, self.refused))

    async def _renew_early(self) -> None:
        """Request again, once, first pages that left their bounds while waiting for others."""
        early = self._begin_again()
        if early:
            await self._fetch([part for part, _ in early])
            for part, lag in self._begin_again():
                self._leave_out(part, bounds_exceeded(self.scan.spec.name, self._tolerance, lag))

    @property
    def _tolerance(self) -> Tolerance:
        """The bounds, which may become stricter while the list is sent."""
        return self.router.tolerance(self.scan.spec, self.parameters)

    def _begin_again(self) -> list[tuple[_PartitionScan, Lag]]:
        """Drop the first pages that have left their bounds; returns how far behind they are."""
        early = [(part, part.lag_now) for part in self.parts.values()]
        early = [(part, lag) for part, lag in early if not self._tolerance.met_by(lag)]
        for part, _ in early:
            self._count(part, 0)
            part.begin_again()
        return early

    def _leave_out(self, part: _PartitionScan, answer: HttpAnswer) -> None:
        """Continue without a partition if that is allowed; raises ``ScanRefused`` otherwise."""
        if not (self.parameters.allow_partial and answer.status in TRANSIENT):
            raise ScanRefused(answer)
        self.refused.append(answer)
        self.missing.add(part.partition)
        del self.parts[part.partition]
        self._count(part, 0)
        if part.page is not None:
            self.lost.append(part)

    def drop(self) -> None:
        """Stop all requests and drop all pages."""
        for part in [*self.parts.values(), *self.lost]:
            if part.coming is not None:
                part.coming.cancel()
            self._count(part, 0)

    def _count(self, part: _PartitionScan, page_bytes: int) -> None:
        self.memory.adjust(page_bytes - part.page_bytes)
        part.page_bytes = page_bytes

    async def body(self) -> AsyncGenerator[bytes, None]:
        """The answer's body, piece by piece; raises ``ScanBroken`` if a partition is lost on the way.

        Before the first piece it may raise ``ScanRefused``: nothing has been sent yet. Each piece is sent only
        while the list's lag, as it is then, is within the bounds. A list that leaves them ends with a cursor after
        what was sent, and states the lag as of its last piece.
        """
        head: bytes | None = list_head(self.scan)
        left = self.parameters.limit
        while True:
            items, key_at, up_to = await in_turn(self._merge)
            if len(items) > left:
                items, up_to = items[:left], key_at(left - 1)
            sent = 0
            for count, piece in _in_pieces(items):
                if not self._keeps_bounds():
                    break
                yield b"," + piece if head is None else head + piece
                head = None
                sent += count
                self._sent_up_to = key_at(sent - 1)
                if sent < len(items):
                    # A client that reads as fast as this sends would leave no turn to others.
                    await asyncio.sleep(0)
            left -= sent
            if not items and up_to is not None and self._keeps_bounds():
                # Nothing matches up to there, which is as old as the pages.
                self._sent_up_to = up_to
            if sent < len(items) or up_to is None or not left:
                break
            drained = [part for part in self.parts.values() if part.drained]
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
            if self._sent_up_to is None:
                raise ScanRefused(bounds_exceeded(self.scan.spec.name, self._tolerance, self.lag()))
            up_to = self._sent_up_to
        yield (head or b"") + list_tail(self._sources, self._cursor(up_to), self.missing)

    def _keeps_bounds(self) -> bool:
        """Whether the list's present lag is within its bounds; it is then what the list states."""
        sources = [part.source() for part in [*self.parts.values(), *self.lost] if part.page is not None]
        if self._tolerance.met_by(_worst(sources)):
            self._sources = sources
            return True
        if self._sent_up_to is None:
            # For the refusal.
            self._sources = sources
        return False

    def lag(self) -> Lag:
        """The largest lag of any partition that the list states."""
        return _worst(self._sources)

    def _partitions(self, segment: bytes | None) -> Sequence[int]:
        if segment is None:
            return range(self.scan.spec.partitions)
        return self.router.partitions(self.scan.spec, from_segment(self.scan.spec.key_codec, segment))

    def _merge(self) -> tuple[list[bytes], Callable[[int], bytes], bytes | None]:
        """Some thousand current items that no later page can precede, in order; removed from the pages.

        Items, the stored key of each by its place, and the one up to which they are complete, None for the end.
        """
        reverse = self.scan.reverse
        pages = [part.page for part in self.parts.values() if part.page is not None]
        bound = window_end(pages, reverse=reverse)
        return *merge([page.take_to(bound, reverse=reverse) for page in pages], reverse=reverse), bound

    async def _fetch(self, parts: list[_PartitionScan]) -> None:
        """Get the next page of some partitions at once; a refused one is left out if that is allowed."""
        answers = await asyncio.gather(*(part.coming or self._ask(part) for part in parts))
        for part, (answer, as_of_boot_ms, page, page_bytes) in zip(parts, answers, strict=True):
            part.coming = None
            if answer.status == 200:
                part.take(page, as_of_boot_ms)
                self._count(part, page_bytes)
                if page.more and self.memory.may_grow(self.page_bytes):
                    # The next one is read while this one is merged and sent.
                    part.coming = asyncio.create_task(self._ask(part))
            else:
                self._leave_out(part, answer)

    async def _ask(self, part: _PartitionScan) -> TimedAnswer:
        limit = min(part.size, self.parameters.limit + 1)
        part.size = min(2 * part.size, _LARGEST_PAGE)
        query = [item.received for item in split_query(self.query) if item.name not in _NOT_FORWARDED]
        query.append(b"limit=%d" % limit)
        body = None
        if part.last is not None:
            cursor = Cursor(self.scan.digest, part.last, part.at).encode()
            body = posted_cursor(cursor)
            if body is None:
                query.append(b"cursor=" + cursor.encode())
        request = ReplicaRequest(
            self.scan.spec,
            part.partition,
            self.path + b"?" + b"&".join(query),
            body,
            accept=_FRAMES,
            dedicated_connection=True,
            page_bytes=self.page_bytes,
            decode=partial(decoded_in_turn, ScanPage.decode),
        )
        async with self.turns:
            return await ask(self.router, request, self.parameters, self.deadline_boot_ms)

    def _cursor(self, up_to: bytes | None) -> Cursor | None:
        if up_to is None:
            return None
        return Cursor(self.scan.digest, up_to, joined_position(self._sources), tuple(sorted(self.missing)))


def _worst(sources: list[dict[str, Any]]) -> Lag:
    return worst_lag([Lag(**source["lag"]) for source in sources])


def _in_pieces(items: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Items as JSON, in pieces of some size, each with its number of items.

    Items that a client has not read yet wait in pages, which are counted.
    """
    if items:
        count = max(1, _PIECE_BYTES * len(items) // (sum(map(len, items)) or 1))
        for at in range(0, len(items), count):
            piece = items[at : at + count]
            yield len(piece), b",".join(piece)
