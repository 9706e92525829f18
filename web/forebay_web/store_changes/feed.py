"""What all who follow the same share: how far each partition is, and its newest changes, polled and encoded once.

Followers that keep up send the page that was polled last. One that does not reads by itself what it has missed, of
each key only the newest value, and is up to date then: nobody waits for it, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.lag import Lag, Tolerance, worst_lag
from forebay.request_trace import context_of
from forebay_web.follower_wakeups import Waker, follower_turns
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import MAX_POLL_BYTES, MAX_WAIT_MS, ChangesPage, PagesRequest
from forebay_web.store_changes.selection import KeySelection

PAGE_BYTES = 64 << 10
"""What a page of a follower's own may take."""
POLLED_PAGE_BYTES = 256 << 10
"""What a page for all followers may take."""
_FEEDS_BYTES = 64 << 20
"""The newest pages of all feeds of a process."""
_DUE_MS = 1_000.0
"""How old what is known of a partition may become while others change."""
_BETWEEN_POLLS_MS = 50.0
"""Twenty values a second of a key are more than anyone can see."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0
_REFUSED_PAUSE_S = 0.25
_JOINING_S = 0.02
"""Partitions join one after the other: those that do within this time are polled together."""


class Source(Protocol):
    """Where a stream's pages come from: this worker's replicas, or through a router those of all workers.

    It reads what one selection followed within one set of bounds has.
    """

    @property
    def selection(self) -> KeySelection:
        """What is followed."""

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions that are followed, in order."""

    def tolerance(self) -> Tolerance:
        """The bounds, which may become stricter."""

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        """The next page of a partition, of its state or of what changed since; raises ``Problem``."""

    async def poll(self, host: str, request: PagesRequest) -> Mapping[int, ChangesPage | Problem]:
        """What changed at a worker, as soon as there is anything; raises ``OSError`` or ``Problem``."""


@dataclass
class PartitionFeed:
    """One partition, as it was polled last."""

    page: ChangesPage
    """The last page, maybe without items: how far its replica is."""
    begin: ChangesCursor
    """The cursor that the newest page with items follows."""
    end: ChangesCursor
    """The cursor after that page: nothing has changed since."""
    version: int
    """The feed's when that page came."""
    problem: Problem | None = None
    """Why the partition cannot be read at the moment."""


class ChangesFeed:
    """The polls of one query, by the worker that answers for each partition."""

    def __init__(self, source: Source, max_bytes: Callable[[], int]) -> None:
        self.source = source
        self.version = 0
        """Grows with each change that followers have to send or to read."""
        self.partitions: dict[int, PartitionFeed] = {}
        """Those that are polled. One that has to be read again from its beginning is not."""
        self.wakers: set[Waker] = set()
        self._max_bytes = max_bytes
        self._buffer: dict[int, ChangesPage] = {}
        """The newest page of each partition, the oldest first, as far as there is memory."""
        self._buffer_bytes = 0
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._recoveries: dict[int, asyncio.Task[None]] = {}

    def follow(self, partition: int, page: ChangesPage) -> PartitionFeed:
        """The partition's feed, from a page on unless it is polled already."""
        if partition not in self.partitions:
            self.partitions[partition] = PartitionFeed(page, page.cursor, page.cursor, self.version)
            self._start_poll(page.host)
        return self.partitions[partition]

    def missed_by(self, partition: int, cursor: ChangesCursor) -> ChangesPage | None:
        """The page with all that a follower has missed; raises ``LookupError`` if it must read that by itself.

        None if it has missed nothing.
        """
        fed = self.partitions[partition]
        if cursor.reaches(fed.end):
            return None
        page = self._buffer[partition]
        # Its values must be no older than any that the follower has sent.
        is_later = cursor == fed.begin or page.cursor.since >= cursor.upper
        if not (cursor.reaches(fed.begin) and is_later):
            raise LookupError
        return page

    def lag_at(self, now_boot_ms: float) -> Lag:
        return worst_lag([fed.page.lag_at(now_boot_ms) for fed in self.partitions.values()])

    def close(self) -> None:
        for task in [*self._polls.values(), *self._recoveries.values()]:
            task.cancel()

    def _start_poll(self, host: str) -> None:
        """Poll a worker for all its partitions, instead of those that it is polled for."""
        if (polling := self._polls.get(host)) is not None:
            polling.cancel()
        # For all followers, so in the context of none's request.
        self._polls[host] = asyncio.create_task(self._poll(host), context=context_of(None))

    async def _poll(self, host: str) -> None:
        await asyncio.sleep(_JOINING_S)
        while request := self._request(host):
            before = self.version
            for partition, outcome in (await self._outcomes(host, request)).items():
                if isinstance(outcome, ChangesPage):
                    self._take(partition, outcome)
                else:
                    self._recover(partition)
            if self.version != before:
                await self._wake()
        del self._polls[host]

    def _request(self, host: str) -> PagesRequest | None:
        """The poll of a worker, those first of which nothing is known for longest; None if it has no partition."""
        pages = [
            fed.page
            for partition, fed in self.partitions.items()
            if fed.page.host == host and partition not in self._recoveries
        ]
        if not pages:
            return None
        pages.sort(key=lambda page: page.as_of_boot_ms)
        is_due = boot_ms() - pages[0].as_of_boot_ms >= _DUE_MS
        return PagesRequest(
            {page.partition: page.cursor for page in pages},
            wait_ms=1 if is_due else MAX_WAIT_MS,
            max_bytes=min(MAX_POLL_BYTES, self._max_bytes()),
        )

    async def _outcomes(self, host: str, request: PagesRequest) -> Mapping[int, ChangesPage | Problem | None]:
        """What a poll found of each partition, None if the worker is lost."""
        try:
            outcomes = await self.source.poll(host, request)
        except OSError:
            return dict.fromkeys(request.cursors)
        except Problem as problem:
            # The worker is there, but takes no polls at the moment.
            await asyncio.sleep(_REFUSED_PAUSE_S)
            return dict.fromkeys(request.cursors, problem)
        return {partition: outcomes[partition] for partition in outcomes if partition in request.cursors}

    async def _wake(self) -> None:
        """Wake all: a page that came before all have the last one would leave them to read alone."""
        await asyncio.gather(follower_turns().wake(self.wakers), asyncio.sleep(_BETWEEN_POLLS_MS / 1000))

    def _recover(self, partition: int) -> None:
        """Read a partition from whichever replica can, until one answers."""
        if partition in self.partitions and partition not in self._recoveries:
            task = self._recoveries[partition] = asyncio.ensure_future(self._recovery(partition))
            task.add_done_callback(lambda _: self._recoveries.pop(partition, None))

    async def _recovery(self, partition: int) -> None:
        fed, pause_s = self.partitions[partition], _MIN_PAUSE_S
        while True:
            try:
                page = await self.source.page(partition, fed.page.cursor, state=False)
            except Problem as problem:
                fed.problem = problem
                follower_turns().add(*self.wakers)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            break
        fed.problem = None
        del self._recoveries[partition]
        self._take(partition, page)
        if partition in self.partitions:
            self._start_poll(page.host)
        follower_turns().add(*self.wakers)

    def _take(self, partition: int, page: ChangesPage) -> None:
        fed = self.partitions.get(partition)
        if fed is None:
            return
        begin, fed.page = fed.page.cursor, page
        if not (page.reset or page.items or page.gone):
            return
        self.version += 1
        self._drop(partition)
        if page.reset:
            del self.partitions[partition]
        else:
            fed.begin, fed.end, fed.version = begin, page.cursor, self.version
            self._keep(partition, page)

    def _keep(self, partition: int, page: ChangesPage) -> None:
        """Keep a page for followers, instead of the oldest ones if they take too much memory."""
        self._buffer[partition] = page
        self._buffer_bytes += page.size_bytes
        while self._buffer_bytes > self._max_bytes():
            self._drop(next(iter(self._buffer)))

    def _drop(self, partition: int) -> None:
        if (page := self._buffer.pop(partition, None)) is not None:
            self._buffer_bytes -= page.size_bytes


class ChangesFeeds:
    """The feeds of a process, each for as long as somebody follows it."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, ChangesFeed] = {}

    @contextlib.contextmanager
    def joined(self, query: Hashable, source: Source, wake: Waker) -> Iterator[ChangesFeed]:
        """The feed of all who follow the same, with the same bounds; ``wake`` is called when it has news."""
        feed = self._feeds.get(query) or self._feeds.setdefault(query, ChangesFeed(source, self._max_bytes))
        feed.wakers.add(wake)
        try:
            yield feed
        finally:
            feed.wakers.discard(wake)
            if not feed.wakers:
                del self._feeds[query]
                feed.close()

    def _max_bytes(self) -> int:
        return _FEEDS_BYTES // max(1, len(self._feeds))
