"""Where a stream's pages come from: this worker's replicas, or through a router those of all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from forebay.errors import Problem
from forebay.lag import Tolerance
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage, PagesRequest
from forebay_web.store_changes.selection import KeySelection

PAGE_BYTES = 64 << 10
"""What a page of a follower's own may take."""
POLLED_PAGE_BYTES = 256 << 10
"""What a page for all followers may take."""


class Source(Protocol):
    """Reads what one selection followed within one set of bounds has."""

    @property
    def selection(self) -> KeySelection:
        """What is followed."""
        ...

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions that are followed, in order."""
        ...

    def tolerance(self) -> Tolerance:
        """The bounds, which may become stricter."""
        ...

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        """The next page of a partition, of its state or of what changed since; raises ``Problem``."""
        ...

    async def poll(self, host: str, request: PagesRequest) -> Mapping[int, ChangesPage | Problem]:
        """What changed at a worker, as soon as there is anything; raises ``OSError`` or ``Problem``."""
        ...
