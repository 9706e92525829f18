"""Changes of many keys at one worker: what a router's polls are answered with, and a stream's source here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from forebay.clock import boot_ms
from forebay.errors import BadParameter, Problem
from forebay.event_loop_turns import in_turn
from forebay.lag import Tolerance
from forebay.wire.key_changes import is_transient
from forebay.wire.parameters import ReadParameters
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.requests import PagesRequest
from forebay_web.store_changes.selection import KeySelection, make_selection
from forebay_worker.reads.change_polls import ChangeTicks, Seen
from forebay_worker.reads.changes_pages import ChangesReads
from forebay_worker.reads.staleness_check import Admission, Refused


class StoreChanges:
    """The changes of the stores of which this worker holds replicas."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._reads = ChangesReads(admission)
        self._ticks = ChangeTicks()

    def selection(self, store: str, parameters: ReadParameters) -> KeySelection:
        """What a request follows; raises ``UnknownStore``, ``BadParameter`` or ``BadKey``."""
        return make_selection(parameters.written(self._admission.spec(store)), parameters)

    def held(self, selection: KeySelection, partition: int | None) -> list[int]:
        """The partitions to follow: the requested one, or those held; raises ``Problem`` if there are none."""
        spec, followed = selection.spec, selection.partitions
        if partition is not None:
            if partition not in followed:
                raise BadParameter(f"Nothing that is followed is in partition {partition}.", parameter="partition")
            followed = [partition]
        held = [one for one in followed if self._admission.held(spec, one) is not None]
        if not held:
            # It names who does.
            self._admission.replica(spec, followed[0])
        return held

    def tolerance(self, selection: KeySelection, parameters: ReadParameters) -> Tolerance:
        """The bounds of a stream."""
        return self._admission.tolerance(selection.spec, parameters)

    async def page(
        self,
        selection: KeySelection,
        parameters: ReadParameters,
        partition: int,
        cursor: ChangesCursor | None,
        *,
        state: bool,
        page_bytes: int,
    ) -> ChangesPage:
        """The next page of one partition as it is now, read when it is its turn; raises ``Problem``."""
        read = partial(
            self._reads.page, selection, partition, cursor, parameters, state=state, page_bytes=page_bytes
        )
        try:
            return await in_turn(read)
        except Refused as refused:
            raise refused.with_replica_info() from None

    async def poll(
        self, selection: KeySelection, parameters: ReadParameters, request: PagesRequest, page_bytes: int
    ) -> tuple[dict[int, ChangesPage | Problem], float]:
        """The changes of some partitions since their cursors, once there are any or the time to wait is over.

        The answer has the partitions with changes, those that cannot be read, those that are due and, at the end
        of the wait, all; and how long it was waited before they were read. Raises ``Problem`` if the request is at
        fault.
        """
        begun = boot_ms()
        until = begun + request.wait_ms
        page_bytes = min(page_bytes, request.most_bytes)
        known = sorted(request.cursors.items(), key=lambda item: item[0] not in request.due)
        cursors = {partition: cursor for partition, cursor in known if cursor is not None}
        while True:
            await self._ticks.wait(self._seen(selection, cursors), until - boot_ms())
            read_boot_ms = boot_ms()
            late = read_boot_ms >= until
            found: dict[int, ChangesPage | Problem] = {}
            size_bytes = 0
            for partition, cursor in cursors.items():
                if size_bytes >= request.most_bytes:
                    # The others are due, and first, in a later poll.
                    break
                if late or self._has_moved(selection, partition, cursor):
                    outcome = await self._outcome(selection, parameters, partition, cursor, page_bytes)
                    size_bytes += outcome.size_bytes if isinstance(outcome, ChangesPage) else 0
                    found[partition] = outcome
            if late or any(isinstance(one, Problem) or _is_news(one) for one in found.values()):
                break
            # What was read has nothing that is followed: the poll continues after it.
            pages = {partition: one for partition, one in found.items() if isinstance(one, ChangesPage)}
            cursors.update({partition: page.cursor for partition, page in pages.items()})
        for partition in request.due & cursors.keys() - found.keys():
            found[partition] = await self._outcome(
                selection, parameters, partition, cursors[partition], page_bytes
            )
        return found, read_boot_ms - begun

    async def _outcome(
        self,
        selection: KeySelection,
        parameters: ReadParameters,
        partition: int,
        cursor: ChangesCursor,
        page_bytes: int,
    ) -> ChangesPage | Problem:
        try:
            return await self.page(selection, parameters, partition, cursor, state=False, page_bytes=page_bytes)
        except Problem as problem:
            if not is_transient(problem):
                raise
            return problem

    def _has_moved(self, selection: KeySelection, partition: int, cursor: ChangesCursor) -> bool:
        """Whether there may be changes, or the replica is gone."""
        replica = self._admission.held(selection.spec, partition)
        return replica is None or replica.view.recent_changes.end != cursor.since

    def _seen(self, selection: KeySelection, cursors: Mapping[int, ChangesCursor]) -> Seen:
        held = [(self._admission.held(selection.spec, partition), cursor) for partition, cursor in cursors.items()]
        return [(replica.view.recent_changes, cursor.since) for replica, cursor in held if replica is not None]


def _is_news(page: ChangesPage) -> bool:
    return bool(page.items or page.gone or page.more or page.reset)
