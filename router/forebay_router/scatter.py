"""Reads of many partitions: scattered to the replicas of each, merged in stored order, streamed.

Memory is bounded whatever the limit: two pages of each partition, and no more.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.codecs import from_segment
from forebay.errors import NoReplica
from forebay.lag import Lag, boot_ms, worst_lag
from forebay.rest.answers import Answer
from forebay.rest.lists import joined_position, list_head, list_tail
from forebay.rest.parameters import ReadParameters, split_query
from forebay.rest.scans import FRAMES_MEDIA_TYPE, Cursor, Page, Scan, ScanRoute, make_scan
from forebay_router.replica_read import ReplicaRequest
from forebay_router.router import Router

_FIRST_PAGE = 1_000
"""Entries; each page is twice the one before, so that merging begins early and pages are few."""
_LARGEST_PAGE = 4_000
_MOST_AT_ONCE = 64
"""Partitions asked at once: one scan of a large store must not take all that a worker is given."""
_FRAMES = FRAMES_MEDIA_TYPE.encode()
_NOT_FORWARDED = frozenset({"limit", "cursor", "allow_partial", "timeout_ms"})


class ScanRefused(Exception):
    """A partition could not be read; ``answer`` is what its replicas said."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class ScanBroken(Exception):
    """A partition was lost in the middle of a scan whose answer had begun: the body is cut, never completed."""


@dataclass
class _PartitionScan:
    """One partition's part of a scan: a page in hand, one on its way, and where it begins."""

    partition: int
    page: Page | None = None
    last: bytes | None = None
    at: str | None = None
    coming: asyncio.Task[Answer] | None = None
    size: int = _FIRST_PAGE
    lag: Lag | None = None
    """The most that any page of it was behind when it came."""
    came_boot_ms: float = 0.0

    def take(self, page: Page) -> None:
        """Go on with the next page; what the earlier ones were behind stays in the answer's lag."""
        lag = Lag(**page.source["lag"])
        self.lag = lag if self.lag is None else worst_lag([self._aged(self.lag), lag])
        self.page, self.at, self.came_boot_ms = page, page.source["position"], boot_ms()
        if page.keys:
            self.last = page.keys[-1]

    def source(self) -> dict[str, Any]:
        """Where it came from, by its last page, and how far behind the answer is now."""
        assert self.page is not None
        assert self.lag is not None
        return {**self.page.source, "lag": self._aged(self.lag).document()}

    def _aged(self, lag: Lag) -> Lag:
        return lag.aged(boot_ms() - self.came_boot_ms)

    @property
    def drained(self) -> bool:
        """Whether the page in hand is used up, and there is another."""
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
    parts: dict[int, _PartitionScan] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MOST_AT_ONCE))

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
    ) -> Gather:
        """Fetch every partition's first page; raises ``Problem``, or ``ScanRefused`` if one cannot be had."""
        scan = make_scan(route, router.spec(store), segment, parameters)
        gather = cls(router, scan, parameters, path, query, router.deadline(parameters))
        cursor = None if parameters.cursor is None else Cursor.decode(parameters.cursor, scan)
        gather.missing.update(cursor.missing if cursor else ())
        for partition in gather._partitions(segment):
            if partition not in gather.missing:
                last, at = (None, None) if cursor is None else (cursor.last, cursor.at)
                gather.parts[partition] = _PartitionScan(partition, None, last, at)
        try:
            await gather._fetch(list(gather.parts.values()))
        except BaseException:
            gather._drop()
            raise
        if not gather.parts:
            raise NoReplica(f"No partition of {store!r} could be read.", retry_after_s=1, store=store)
        return gather

    async def body(self) -> AsyncGenerator[bytes, None]:
        """The answer's body, piece by piece; raises ``ScanBroken`` where a partition is lost on the way."""
        try:
            async for piece in self._pieces():
                yield piece
        finally:
            self._drop()

    def _drop(self) -> None:
        """Ask for nothing more."""
        for part in self.parts.values():
            if part.coming is not None:
                part.coming.cancel()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield list_head(self.scan)
        sent, last = 0, b""
        first, cut, limit = True, False, self.parameters.limit
        while sent < limit:
            items = self._merge()
            taken = items[: limit - sent]
            if taken:
                yield (b"" if first else b",") + b",".join([item for _, item in taken])
                first, sent, last = False, sent + len(taken), taken[-1][0]
            if len(taken) < len(items):
                cut = True
                break
            drained = [part for part in self.parts.values() if part.drained]
            if not drained:
                break
            try:
                await self._fetch(drained)
            except ScanRefused as refused:
                raise ScanBroken(f"a partition answered {refused.answer.status} in the middle of a scan") from None
        yield list_tail(self._sources(), self._cursor(last, sent, cut), self.missing)

    def lag(self) -> Lag:
        """The most that any partition was behind."""
        return worst_lag([Lag(**source["lag"]) for source in self._sources()])

    def _partitions(self, segment: bytes | None) -> Sequence[int]:
        if segment is None:
            return range(self.scan.spec.partitions)
        return self.router.partitions(self.scan.spec, from_segment(self.scan.spec.key_codec, segment))

    def _merge(self) -> list[tuple[bytes, bytes]]:
        """Every item in hand that no page still to come can precede, in order; taken off the pages."""
        reverse = self.scan.reverse
        pages = [part.page for part in self.parts.values() if part.page is not None]
        bounds = [page.keys[-1] for page in pages if page.more and page.keys]
        if not bounds:
            return _in_order([page.take(len(page.keys)) for page in pages], reverse)
        bound = max(bounds) if reverse else min(bounds)
        return _in_order([page.take(_count_to(page.keys, bound, reverse)) for page in pages], reverse)

    async def _fetch(self, parts: list[_PartitionScan]) -> None:
        """Get the next page of some partitions at once; a refused one is left out where that is allowed."""
        answers = await asyncio.gather(*(part.coming or self._ask(part) for part in parts))
        for part, answer in zip(parts, answers, strict=True):
            part.coming = None
            if answer.status == 200:
                page = Page.decode(answer.body)
                part.take(page)
                if page.more:
                    # The next one is read while this one is merged and sent.
                    part.coming = asyncio.create_task(self._ask(part))
            elif self.parameters.allow_partial and answer.status in (412, 503, 504):
                self.missing.add(part.partition)
                del self.parts[part.partition]
            else:
                raise ScanRefused(answer)

    async def _ask(self, part: _PartitionScan) -> Answer:
        limit = min(part.size, self.parameters.limit + 1)
        part.size = min(2 * part.size, _LARGEST_PAGE)
        query = [item.received for item in split_query(self.query) if item.name not in _NOT_FORWARDED]
        query.append(b"limit=%d" % limit)
        if part.last is not None:
            query.append(b"cursor=" + Cursor(self.scan.digest, part.last, part.at).encode().encode())
        request = ReplicaRequest(
            self.scan.spec, part.partition, self.path + b"?" + b"&".join(query), accept=_FRAMES, alone=True
        )
        async with self.turns:
            return await self.router.ask(request, self.parameters, self.deadline_boot_ms)

    def _sources(self) -> list[dict[str, Any]]:
        return [part.source() for part in self.parts.values() if part.page is not None]

    def _cursor(self, last: bytes, sent: int, cut: bool) -> Cursor | None:
        left = cut or any(part.page and (part.page.keys or part.page.more) for part in self.parts.values())
        if not left or not sent:
            return None
        return Cursor(self.scan.digest, last, joined_position(self._sources()), tuple(sorted(self.missing)))


def _count_to(keys: list[bytes], bound: bytes, reverse: bool) -> int:
    """How many keys of a page come no later than the bound."""
    if reverse:
        return bisect.bisect_right(keys, False, key=lambda key: key < bound)
    return bisect.bisect_right(keys, bound)


def _in_order(runs: list[list[tuple[bytes, bytes]]], reverse: bool) -> list[tuple[bytes, bytes]]:
    """Runs in order as one; sorting finds and merges them."""
    merged = [item for run in runs for item in run]
    if sum(map(bool, runs)) > 1:
        merged.sort(reverse=reverse)
    return merged
