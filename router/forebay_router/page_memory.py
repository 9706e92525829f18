"""What the pages of lists take of a router's memory, bounded over all lists that are under way."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import Overloaded

_MOST_BYTES = 64 << 20
_MOST_BYTES_FOR_READING_AHEAD = 32 << 20


@dataclass
class PageMemory:
    """Counts the pages that lists hold. Beyond a bound none are read ahead; beyond another no list is begun.

    A list that has begun goes on: its pages in hand, one a partition, come on top.
    """

    held_bytes: int = 0

    def require_room(self) -> None:
        """Raise ``Overloaded`` unless another list may begin."""
        if self.held_bytes >= _MOST_BYTES:
            raise Overloaded(
                "The lists under way hold as much as they may in this process; clients that read theirs slowly "
                "hold them for long.",
                retry_after_s=1,
            )

    @property
    def allows_reading_ahead(self) -> bool:
        """Whether pages may be asked for before they are needed."""
        return self.held_bytes < _MOST_BYTES_FOR_READING_AHEAD
