"""The memory of a router that pages of lists take, bounded over all lists in progress."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import Overloaded

_MOST_BYTES = 64 << 20
_MOST_BYTES_FOR_READING_AHEAD = 32 << 20


@dataclass
class PageMemory:
    """Counts the pages that lists hold. Above one bound none are read ahead; above another no list is started.

    A list that has started continues: its current pages, one per partition, come on top.
    """

    held_bytes: int = 0

    def require_room(self) -> None:
        """Raise ``Overloaded`` unless another list may start."""
        if self.held_bytes >= _MOST_BYTES:
            raise Overloaded(
                "Lists in progress already use all the memory allowed for them; slow clients hold it longest.",
                retry_after_s=1,
            )

    @property
    def allows_reading_ahead(self) -> bool:
        """Whether pages may be requested before they are needed."""
        return self.held_bytes < _MOST_BYTES_FOR_READING_AHEAD
