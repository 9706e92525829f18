"""The newest changes of one selection, polled and encoded once for all who follow it.

Followers that keep up send the page that was polled last. One that does not reads by itself what it has missed, of
each key only the newest value, and is up to date then: nobody waits for it, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.lag import Lag, worst_lag
from forebay_web.follower_wakeups import Waker, paced_wakes
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.requests import MOST_WAIT_MS, PagesRequest
from forebay_web.store_changes.source import Source

_TAILS_BYTES = 64 << 20
"""The newest pages of all tails of a process."""
_DUE_MS = 1_000.0
"""How old the provenance of a partition may become while others change."""
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.02, 1.0
_REFUSED_PAUSE_S = 0.25
_JOINING_S = 0.02
"""Partitions join one after the other: those that do within this time are polled together."""


class NewestPage(NamedTuple):
    """The last page of a partition that has items, and the cursor that it follows."""

    version: int
    begin: ChangesCursor
    page: ChangesPage | None
    """None once it takes too much memory."""


class Tail:
    """The polls of one selection, by the worker that answers for each partition."""

    def __init__(self, source: Source, most_bytes: Callable[[], int]) -> None:
        self.source = source
        self.version = 0
        """Grows with each page that has items."""
        self.losses = 0
        """Grows whenever a partition has to be read by each follower again."""
        self.newest: OrderedDict[int, NewestPage] = OrderedDict()
        """By partition, the oldest first."""
        self.pages: dict[int, ChangesPage] = {}
        """The last page of each polled partition, maybe without items: how far its replica is."""
        self.problems: dict[int, Problem] = {}
        """Why partitions cannot be polled at the moment."""
        self.wakers: set[Waker] = set()
        self._most_bytes = most_bytes
        self._all_woken = asyncio.Event()
        """Set once all have the newest pages."""
        self._all_woken.set()
        self._held_bytes = 0
        self._quiet_from: dict[int, ChangesCursor] = {}
        """Since these cursors nothing has changed."""
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._joining: set[str] = set()
        self._recoveries: dict[int, asyncio.Task[None]] = {}

    def follow(self, partition: int, page: ChangesPage) -> None:
        """Poll a partition from a page on, unless that is done already."""
        if partition in self.pages:
            return
        self.pages[partition], self._quiet_from[partition] = page, page.cursor
        self._start_poll(page.host)

    def missed_by(self, partition: int, cursor: ChangesCursor) -> ChangesPage | None:
        """The page with all that a follower has missed; raises ``LookupError`` if it must read that by itself.

        None if it has missed nothing.
        """
        if cursor.reaches(self._quiet_from[partition]):
            return None
        newest = self.newest.get(partition)
        if newest is None or newest.page is None:
            raise LookupError
        # Its values must be no older than any that the follower has sent.
        is_later = newest.begin == cursor or newest.page.cursor.since >= cursor.upper
        if not (cursor.reaches(newest.begin) and is_later):
            raise LookupError
        return newest.page

    def news_since(self, version: int) -> list[int]:
        """The partitions whose newest page is newer than a version of the tail, the oldest first."""
        news = list(takewhile(lambda item: item[1].version > version, reversed(self.newest.items())))
        return [partition for partition, _ in reversed(news)]

    def cursor(self, partition: int) -> ChangesCursor:
        """Up to where a partition is polled."""
        return self.pages[partition].cursor

    def lag_at(self, now_boot_ms: float) -> Lag:
        """The worst lag of all polled partitions."""
        return worst_lag([page.lag_at(now_boot_ms) for page in self.pages.values()])

    def close(self) -> None:
        """End all polls."""
        for task in [*self._polls.values(), *self._recoveries.values()]:
            task.cancel()

    def _start_poll(self, host: str) -> None:
        polling = self._polls.get(host)
        if polling is not None:
            if host in self._joining:
                return
            polling.cancel()
        self._joining.add(host)
        task = self._polls[host] = asyncio.ensure_future(self._poll(host))
        task.add_done_callback(lambda _: self._polls.pop(host, None) if self._polls.get(host) is task else None)

    async def _poll(self, host: str) -> None:
        await asyncio.sleep(_JOINING_S)
        self._joining.discard(host)
        while cursors := self._polled_at(host):
            now = boot_ms()
            due = frozenset(one for one in cursors if now - self.pages[one].as_of_boot_ms >= _DUE_MS)
            request = PagesRequest(cursors, wait_ms=MOST_WAIT_MS, due=due, most_bytes=self._most_bytes())
            try:
                outcomes: Mapping[int, ChangesPage | Problem] = await self.source.poll(host, request)
            except (OSError, Problem) as error:
                if isinstance(error, Problem):
                    # The worker is there, but takes no polls at the moment.
                    await asyncio.sleep(_REFUSED_PAUSE_S)
                outcomes = {}
                for partition in cursors:
                    self._recover(partition)
            known = self.version, self.losses
            for partition, outcome in outcomes.items():
                if isinstance(outcome, Problem):
                    self._recover(partition)
                elif partition in cursors:
                    self._take(partition, outcome)
            if known != (self.version, self.losses):
                self._wake()
            # A page that came before all have the last one would leave them to read by themselves.
            await self._all_woken.wait()

    def _polled_at(self, host: str) -> dict[int, ChangesCursor | None]:
        return {
            partition: page.cursor
            for partition, page in self.pages.items()
            if page.host == host and partition not in self._recoveries
        }

    def _recover(self, partition: int) -> None:
        """Read a partition from whichever replica can, until one answers."""
        if partition in self.pages and partition not in self._recoveries:
            task = self._recoveries[partition] = asyncio.ensure_future(self._recovery(partition))
            task.add_done_callback(lambda _: self._recoveries.pop(partition, None))

    async def _recovery(self, partition: int) -> None:
        pause_s = _LEAST_PAUSE_S
        while True:
            try:
                page = await self.source.page(partition, self.cursor(partition), state=False)
            except Problem as problem:
                self.problems[partition] = problem
                self._wake()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
                continue
            break
        self.problems.pop(partition, None)
        self._recoveries.pop(partition, None)
        self._take(partition, page)
        if partition in self.pages:
            self._start_poll(page.host)
        self._wake()

    def _take(self, partition: int, page: ChangesPage) -> None:
        begin = self.cursor(partition)
        if page.reset:
            self.losses += 1
            self._drop_newest(partition)
            del self.pages[partition], self._quiet_from[partition]
            return
        self.pages[partition] = page
        if page.items or page.gone:
            self._drop_newest(partition)
            self.version += 1
            self.newest[partition] = NewestPage(self.version, begin, page)
            self._quiet_from[partition] = page.cursor
            self._held_bytes += page.size_bytes
            self._drop_oldest()

    def _drop_newest(self, partition: int) -> None:
        dropped = self.newest.pop(partition, None)
        if dropped is not None and dropped.page is not None:
            self._held_bytes -= dropped.page.size_bytes

    def _drop_oldest(self) -> None:
        """Drop pages that take too much memory, but not that there were some."""
        most_bytes = self._most_bytes()
        for partition, newest in self.newest.items():
            if self._held_bytes <= most_bytes or newest.version == self.version:
                return
            if newest.page is not None:
                self._held_bytes -= newest.page.size_bytes
                self.newest[partition] = newest._replace(page=None)

    def _wake(self) -> None:
        self._all_woken = paced_wakes().add(self.wakers)


class Tails:
    """The tails of a process, each for as long as somebody follows it."""

    def __init__(self) -> None:
        self._tails: dict[Hashable, Tail] = {}
        self._followers: dict[Hashable, int] = {}

    @contextlib.contextmanager
    def joined(self, query: Hashable, source: Source, wake: Waker) -> Iterator[Tail]:
        """The tail of all who follow the same, with the same bounds; ``wake`` is called when it has news."""
        tail = self._tails.get(query)
        if tail is None:
            tail = self._tails[query] = Tail(source, self._most_bytes)
        self._followers[query] = self._followers.get(query, 0) + 1
        tail.wakers.add(wake)
        try:
            yield tail
        finally:
            tail.wakers.discard(wake)
            self._followers[query] -= 1
            if not self._followers[query]:
                del self._followers[query], self._tails[query]
                tail.close()

    def _most_bytes(self) -> int:
        return _TAILS_BYTES // max(1, len(self._tails))
