"""The partitions that one client reads by itself, since it has not what all others have, a few at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.wire.key_changes import is_transient
from forebay_web.limits import Held
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.source import PAGE_BYTES, Source

PART_BYTES = 400
"""What a partition takes of a client's stream."""
_READS_AT_ONCE = 4
_BETWEEN_CHANGES_MS = 50.0
_LEAST_PAUSE_MS, _MOST_PAUSE_MS = 20.0, 1_000.0


class Part:
    """One partition as a client has it."""

    __slots__ = ("changes_due_boot_ms", "cursor", "due_boot_ms", "pause_ms", "problem", "reading", "reads_state")

    def __init__(self, cursor: ChangesCursor | None) -> None:
        self.cursor = cursor
        self.due_boot_ms = 0.0
        """When to read it again."""
        self.changes_due_boot_ms = 0.0
        """When to read its changes again while its state is sent."""
        self.pause_ms = _LEAST_PAUSE_MS
        self.reading: asyncio.Task[ChangesPage] | None = None
        self.reads_state = False
        self.problem: Problem | None = None

    def put_off(self, problem: Problem) -> None:
        """Read it again later, since there is a problem."""
        self.problem = problem
        self.due_boot_ms = boot_ms() + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, _MOST_PAUSE_MS)

    def pace_changes(self) -> None:
        """Read its changes no more often than they may be sent."""
        self.due_boot_ms = boot_ms() + _BETWEEN_CHANGES_MS


class OwnRead(NamedTuple):
    """A page that was read for one client."""

    partition: int
    part: Part
    page: ChangesPage


class OwnReads:
    """Reads the partitions added to it, in turn; ``wake`` is called when a page has come.

    Pages are counted in ``memory`` until they are taken.
    """

    def __init__(self, source: Source, parts: Mapping[int, Part], memory: Held, wake: Callable[[], None]) -> None:
        self._source = source
        self._parts = parts
        self._memory = memory
        self._wake = wake
        self._queue = deque(parts)

    def __contains__(self, partition: int) -> bool:
        return partition in self._queue

    def __iter__(self) -> Iterator[int]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, partition: int) -> None:
        """Read a partition from now on, as soon as it is its turn."""
        self._parts[partition].due_boot_ms = 0.0
        self._queue.append(partition)
        self._wake()

    def remove(self, partition: int) -> None:
        """Read a partition no more."""
        self._queue.remove(partition)

    def start(self) -> None:
        """Start to read what is due, as far as others are not being read."""
        free = self._free
        for _ in range(len(self._queue)):
            if not free:
                return
            partition = self._queue[0]
            self._queue.rotate(-1)
            part, now = self._parts[partition], boot_ms()
            if part.reading is None and part.due_boot_ms <= now:
                free -= self._start(partition, part, now)

    @property
    def _free(self) -> int:
        return _READS_AT_ONCE - sum(self._parts[one].reading is not None for one in self._queue)

    def _start(self, partition: int, part: Part, now: float) -> bool:
        try:
            self._memory.take(PAGE_BYTES)
        except Problem as problem:
            part.put_off(problem)
            return False
        part.reads_state = _reads_state(part, now)
        reading = self._source.page(partition, part.cursor, state=part.reads_state)
        part.reading = asyncio.ensure_future(reading)
        part.reading.add_done_callback(self._on_read)
        return True

    def _on_read(self, reading: asyncio.Task[ChangesPage]) -> None:
        if not reading.cancelled():
            # Nobody may be left to take it.
            reading.exception()
        self._wake()

    def take(self) -> OwnRead | None:
        """A page that has come, None if there is none; raises ``Problem`` if the request is at fault."""
        for partition in self._queue:
            part = self._parts[partition]
            if part.reading is None or not part.reading.done():
                continue
            reading, part.reading = part.reading, None
            self._memory.adjust(-PAGE_BYTES)
            try:
                page = reading.result()
            except Problem as problem:
                if not is_transient(problem):
                    raise
                part.put_off(problem)
                continue
            part.problem, part.pause_ms = None, _LEAST_PAUSE_MS
            return OwnRead(partition, part, page)
        return None

    def due_boot_ms(self) -> list[float]:
        """When the partitions are due that could be read then."""
        if self._free <= 0:
            return []
        parts = [self._parts[one] for one in self._queue]
        return [part.due_boot_ms for part in parts if part.reading is None]

    def close(self) -> None:
        """End all reads."""
        for partition in self._queue:
            reading = self._parts[partition].reading
            if reading is not None:
                reading.cancel()
        self._memory.release()


def _reads_state(part: Part, now: float) -> bool:
    """Whether the next page is of the state: changes of what was sent of it come in between."""
    if part.cursor is None or part.cursor.whole:
        return False
    if part.cursor.after and now >= part.changes_due_boot_ms:
        part.changes_due_boot_ms = now + _BETWEEN_CHANGES_MS
        return False
    return True
