"""Where a partition's next page starts, as a request states it: in its query, or after a long key in its body."""

from __future__ import annotations

from typing import NamedTuple

from forebay.routing.scattered_list import PartitionPages
from forebay.wire.scans import Scan, posted_cursor


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
