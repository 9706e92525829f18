"""Lists being read: the items at hand, and the next page."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from forebay.lag import UNKNOWN_LAG, Lag
from forebay.unproven import UnprovenRange
from forebay.wire.answers import ReplicaInfo
from forebay_client.exchange import Plan
from forebay_client.read_plans import ClientReads, ListRequest
from forebay_client.results import Page

T = TypeVar("T")


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
        self._page: Page[T] | None = None

    @property
    def lag(self) -> Lag:
        """Figure by figure the worst of the partitions; unknown before the first page."""
        return UNKNOWN_LAG if self._page is None else self._page.lag

    @property
    def partitions(self) -> tuple[ReplicaInfo, ...]:
        """Which replica answered for each partition, and how far it was."""
        return () if self._page is None else self._page.partitions

    @property
    def complete(self) -> bool:
        """Whether no partition is missing and nothing unproven; False before the first page."""
        return self._page is not None and self._page.complete

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions left out, if ``allow_partial`` was requested."""
        return () if self._page is None else self._page.missing

    @property
    def unproven(self) -> tuple[UnprovenRange, ...]:
        """The ends of windows or sessions that may be missing; see ``Page``."""
        return () if self._page is None else self._page.unproven

    @property
    def skipped_old(self) -> int:
        """How many entries ``skip_old`` has left out of the newest page."""
        return 0 if self._page is None else self._page.skipped_old

    def _next_page(self) -> Plan[None]:
        cursor = None if self._page is None else self._page.cursor
        limit = self._page_size if self._left is None else min(self._left, self._page_size)
        page = yield from self._reads.page(self._request, cursor, limit)
        self._page = page
        self._in_hand.extend(page.items)
        if self._left is not None:
            self._left -= len(page.items)
        self._over = page.cursor is None or self._left == 0
