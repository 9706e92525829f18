"""Changes of many keys at one worker: what a router's polls are answered with, and a stream's source here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from forebay.clock import boot_ms
from forebay.errors import BadParameter, Problem
from forebay.event_loop_turns import in_turn
from forebay.lag import Tolerance
from forebay.wire.key_changes import is_transient
from forebay.wire.parameters import ReadParameters
from forebay_web.follower_wakeups import wait_until
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.feed import PAGE_BYTES, POLLED_PAGE_BYTES
from forebay_web.store_changes.pages import ChangesPage, PagesRequest
from forebay_web.store_changes.selection import KeySelection
from forebay_worker.reads.admission import Admission, Refused
from forebay_worker.reads.changes_pages import changes_page

_BETWEEN_READS_MS = 50.0
"""Twenty values a second of a key are more than anyone can see."""
_PAUSE_BY_WORK = 3.0
"""A poll that finds nothing for its query rests for three times as long as it looked: others are busy, too."""

Cursors = dict[int, ChangesCursor]
Outcomes = dict[int, ChangesPage | Problem]


@dataclass(frozen=True)
class StoreChanges:
    """The ``Source`` of what one query follows in the replicas that this worker holds.

    ``partitions`` are those that a client follows. A router names them in each of its requests.
    """

    admission: Admission
    selection: KeySelection
    parameters: ReadParameters
    partitions: Sequence[int] = ()

    def tolerance(self) -> Tolerance:
        return self.admission.tolerance(self.selection.spec, self.parameters)

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        return await self._page(partition, cursor, state=state, page_bytes=PAGE_BYTES)

    async def poll(self, host: str, request: PagesRequest) -> Outcomes:
        outcomes, _ = await self.outcomes(request)
        return outcomes

    async def _page(
        self, partition: int, cursor: ChangesCursor | None, *, state: bool, page_bytes: int
    ) -> ChangesPage:
        """The next page of one partition as it is now, read when it is its turn; raises ``Problem``."""
        read = partial(
            changes_page,
            self.admission,
            self.selection,
            partition,
            cursor,
            self.parameters,
            state=state,
            page_bytes=page_bytes,
        )
        try:
            return await in_turn(read)
        except Refused as refused:
            raise refused.with_replica_info() from None

    async def outcomes(self, request: PagesRequest) -> tuple[Outcomes, float]:
        """The changes of some partitions since their cursors, once there are any or the time to wait is over.

        The answer has the partitions with changes, those that cannot be read and, at the end of the wait, all; and
        how long it was waited before they were read. Raises ``Problem`` if the request is at fault.
        """
        begun = boot_ms()
        until = begun + request.wait_ms
        cursors = {partition: cursor for partition, cursor in request.cursors.items() if cursor is not None}
        while True:
            await self._wait_for_change(cursors, until)
            read_boot_ms = boot_ms()
            is_over = read_boot_ms >= until
            moved = cursors if is_over else self._moved(cursors)
            found = await self._read(moved, request.max_bytes)
            if is_over or any(map(_is_news, found.values())):
                return found, read_boot_ms - begun
            # What was read has nothing that is followed: the poll continues after it.
            cursors |= {number: page.cursor for number, page in found.items() if isinstance(page, ChangesPage)}
            pause_ms = max(_BETWEEN_READS_MS, _PAUSE_BY_WORK * (boot_ms() - read_boot_ms))
            await asyncio.sleep(pause_ms / 1000)

    async def _wait_for_change(self, cursors: Cursors, until_boot_ms: float) -> None:
        woken = asyncio.Event()
        with ExitStack() as watches:
            for partition in cursors:
                replica = self.admission.held(self.selection.spec, partition)
                if replica is not None:
                    watches.enter_context(replica.key_watchers.watching(None, woken.set))
            # They may have moved before they were watched.
            if not self._moved(cursors):
                await wait_until(woken, until_boot_ms)

    async def _read(self, cursors: Cursors, max_bytes: int) -> Outcomes:
        """Pages until they take about ``max_bytes`` together: the other partitions have a later poll."""
        found: Outcomes = {}
        for partition, cursor in cursors.items():
            outcome = await self._outcome(partition, cursor, min(POLLED_PAGE_BYTES, max_bytes))
            found[partition] = outcome
            max_bytes -= outcome.size_bytes if isinstance(outcome, ChangesPage) else 0
            if max_bytes <= 0:
                break
        return found

    async def _outcome(self, partition: int, cursor: ChangesCursor, page_bytes: int) -> ChangesPage | Problem:
        try:
            return await self._page(partition, cursor, state=False, page_bytes=page_bytes)
        except Problem as problem:
            if not is_transient(problem):
                raise
            return problem

    def _moved(self, cursors: Cursors) -> Cursors:
        """The cursors after which there may be changes, or whose replica is gone."""
        return {
            partition: cursor
            for partition, cursor in cursors.items()
            if (replica := self.admission.held(self.selection.spec, partition)) is None
            or replica.view.recent_changes.moved_from(cursor.since, cursor.expired)
        }


def held_partitions(admission: Admission, selection: KeySelection, partition: int | None) -> list[int]:
    """The partitions to follow: the requested one, or those held; raises ``Problem`` if there are none."""
    spec, followed = selection.spec, selection.partitions
    if partition is not None:
        if partition not in followed:
            raise BadParameter(f"Nothing that is followed is in partition {partition}.", parameter="partition")
        followed = [partition]
    held = [one for one in followed if admission.held(spec, one) is not None]
    if not held:
        # It names who does.
        admission.replica(spec, followed[0])
    return held


def _is_news(outcome: ChangesPage | Problem) -> bool:
    if isinstance(outcome, Problem):
        return True
    return bool(outcome.items or outcome.gone or outcome.more or outcome.reset)
