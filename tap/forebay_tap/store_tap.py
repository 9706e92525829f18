"""One store's log, kept at the state of one table of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog
from forebay_tap.batch_rows import BatchRows
from forebay_tap.conversion import Conversion, StoreRecord, open_conversion
from forebay_tap.gap import Gap, gap_before, still_unproven
from forebay_tap.lineage import (
    TapPosition,
    is_continued,
    is_in_log,
    lineage_of,
    new_copy,
    unfinished_lineage,
    why_not_continued,
)
from forebay_tap.mapping import TableMapping
from forebay_tap.scratch import ContentIndex
from forebay_tap.spark_checkpoint.changes import StateEntry
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import (
    CheckpointError,
    CheckpointFileCorrupt,
    LineageMismatch,
    StateUnsupported,
    VersionNotCommitted,
    VersionPurged,
)
from forebay_tap.spark_checkpoint.operators import Operator
from forebay_tap.store_log import LogReplaced, StoreLog, content_differences

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 20_000
"""So many records of a copy are written together."""
_SIGN_OF_LIFE_MS = 10_000
"""So often a tap appends a heartbeat that says nothing else: as often as Spark reports an idle query."""
CANNOT_FOLLOW = (VersionPurged, LineageMismatch, CheckpointFileCorrupt)
"""What a batch's changes may be lost to: the state is copied anew."""
_MAX_LOST = 3
_REMEDY = "raise spark.sql.streaming.minBatchesToRetain of the query"


@dataclass
class _Table:
    """A table that is followed: where its log is, and what makes records of its state."""

    position: TapPosition
    conversion: Conversion
    content: ContentIndex | None = None
    """What the log holds, if batches can only be compared with it."""
    is_interrupted: bool = False
    """Whether something failed between reading changes and writing their records: what is remembered of the state
    is ahead of the log then."""

    @property
    def mapping(self) -> TableMapping:
        """How the table's columns become a store's."""
        return self.conversion.mapping

    @property
    def partitions(self) -> range:
        """The table's partitions."""
        return range(self.mapping.table.partitions)


class StoreTap:
    """Writes batch by batch what a table changed, and copies the whole table where that cannot be had.

    ``writer`` is the name under which it writes: a sink or another tap of that name takes its place, and the other
    way round. Methods raise ``CheckpointError``, ``ChangelogError`` and ``TopologyError``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: StoreSpec,
        changelog: Changelog,
        clock_ms: Callable[[], float],
        *,
        take_over: bool = False,
        writer: str | None = None,
        on_written: Callable[[int], None] = lambda records: None,
    ) -> None:
        assert spec.spark_state is not None
        self.spec = spec
        self.operator = spec.spark_state.operator
        self._checkpoint = checkpoint
        self._log = StoreLog(changelog, spec, writer or spec.name, on_written)
        self._clock_ms = clock_ms
        self._take_over = take_over
        self._written: TapPosition | None = None
        """What was found in the log, until the table is followed."""
        self._followed: _Table | None = None
        self._is_filling = False
        """Whether the log has never had all of this query's state."""
        self._operator: Operator | None = None
        self._as_of_ms: int | None = None
        self._beat_due_ms = 0

    @property
    def batch(self) -> int | None:
        """The batch up to which the log has the state; None before ``begin``."""
        position = self._last_position
        return None if position is None else position.batch

    @property
    def _last_position(self) -> TapPosition | None:
        return self._written if self._followed is None else self._followed.position

    @property
    def _table(self) -> _Table:
        assert self._followed is not None, "begin() comes first"
        return self._followed

    def begin(self, newest: int) -> None:
        """Go on from where the log is, or copy the state as the newest batch left it."""
        mapping = self._mapping(newest)
        self._log.open()
        written = self._log.last_position_of(self._checkpoint.id, take_over=self._take_over)
        if written is not None and is_continued(self._checkpoint, written, mapping.digest, self._log.identity):
            log.info("%s goes on after batch %d of %s", self.spec.name, written.batch, written.checkpoint_id)
            self._adopt(written, mapping)
            try:
                self._remember(written.batch)
            except CANNOT_FOLLOW as error:
                self.copy(newest, str(error))
            return
        has_all = written is not None and not written.filling and is_in_log(written, self._log.identity)
        self._is_filling = not has_all
        self._written, self._followed = written, None
        self.copy(newest, why_not_continued(written, self._log.identity))

    def has_batch(self) -> bool:
        """Whether the checkpoint still has the batch that the log has; it does not once the query was set back."""
        position, digest = self._table.position, self._table.mapping.digest
        return position.batch < 0 or is_continued(self._checkpoint, position, digest, self._log.identity)

    def follow(self, batch: int) -> int:
        """Write what a batch changed; it must be the next, and have ended. Returns how many records that took.

        Copies the whole state if the batch's changes are gone, do not follow, or are not kept. If it fails, it may
        be repeated.
        """
        try:
            return self._follow(batch)
        except LogReplaced as error:
            return self._copy_to_new_log(batch, error)

    def _follow(self, batch: int) -> int:
        table = self._table
        if table.is_interrupted and (table.position.batch < 0 or table.content is not None):
            return self.copy(batch, "a copy of it was interrupted", compares=table.content is not None)
        if self._checkpoint.ended_operator(self.operator, batch) != self._operator:
            return self.copy(batch, "the operator, its schema or its partitions have changed")
        if table.content is not None:
            try:
                return self._compare(table.content, batch, Gap())
            except CANNOT_FOLLOW as error:
                return self.copy(self._checkpoint.newest_batch(), str(error), compares=True)
        # Before it is read: if it is run again meanwhile, what was read is not continued.
        rows, lineage = BatchRows(self.spec), self._lineage(batch)
        try:
            self._remember_if_interrupted()
            table.is_interrupted = True
            of_table = table.mapping.table
            for partition in table.partitions:
                blocks = self._checkpoint.change_blocks(
                    self.operator, partition, batch + 1, of_table.store, of_table.family
                )
                rows.add_all(table.conversion.apply(blocks, self._now_ms()))
        except CANNOT_FOLLOW as error:
            return self.copy(self._checkpoint.newest_batch(), str(error))
        except StateUnsupported as error:
            log.warning("%s: %s Until then every batch is compared with the whole log.", self.spec.name, error)
            return self.copy(batch, "its changes are not kept", compares=True)
        self._append(batch, lineage, rows, batch_id=batch)
        return rows.count

    def copy(self, batch: int, reason: str, *, compares: bool = False) -> int:
        """Make the log equal to the state as a batch left it; returns how many records that took.

        What the log has already is not written again, and what the state no longer has is deleted. Until the log
        has had all of the state once, it says that it is being filled.
        """
        lost = 0
        while True:
            try:
                return self._copy(batch, reason, compares=compares)
            except LogReplaced as error:
                reason, self._is_filling = str(error), True
            except (VersionPurged, VersionNotCommitted) as error:
                lost += 1
                batch, reason = self._next_batch(batch, lost, error), str(error)

    def _next_batch(self, batch: int, lost: int, error: CheckpointError) -> int:
        """The newest batch, whose state is copied once that of ``lost`` batches was lost: what one copy wrote the
        next need not write, so each is faster.

        Raises the error if there is no other batch, and ``VersionPurged`` after the third loss.
        """
        newest, name = self._checkpoint.newest_batch(), self.spec.name
        if newest == batch:
            raise error
        if lost == _MAX_LOST:
            raise VersionPurged(
                f"{name}: Spark has deleted the state of {_MAX_LOST} batches while it was copied: {_REMEDY}. The "
                f"last was batch {batch}: {error}"
            ) from error
        log.warning(
            "%s: the state of batch %d was deleted while it was copied, and that of batch %d is copied instead. "
            "If that goes on, %s.",
            name,
            batch,
            newest,
            _REMEDY,
        )
        return newest

    def keep_log(self) -> int:
        """Copy the state if the log is no longer the one that was written, which every write notices as well;
        returns how many records that took."""
        try:
            self._log.require_same()
        except LogReplaced as error:
            return self._copy_to_new_log(self._checkpoint.newest_batch(), error)
        return 0

    def _copy_to_new_log(self, batch: int, error: LogReplaced) -> int:
        log.warning("%s: %s while the tap was running", self.spec.name, error)
        self._is_filling = True
        return self.copy(batch, str(error), compares=self._table.content is not None)

    def _copy(self, batch: int, reason: str, *, compares: bool) -> int:
        mapping = self._mapping(batch)
        self._log.open()
        # Then it may delete keys that the log has and the state lacks.
        if mapping.deletes or mapping.table.kind == "session":
            self._log.require_own(take_over=self._take_over)
        log.info("%s: the state of batch %d is copied to its log, as %s", self.spec.name, batch, reason)
        gap = self._gap(batch, mapping, compares=compares)
        lineage = unfinished_lineage(self._log.identity)
        position = TapPosition(
            self._checkpoint.id, new_copy(), -1, lineage, self._is_filling, gap.proven_ms, gap.unproven
        )
        table = self._adopt(position, mapping)
        table.is_interrupted = True
        # Whoever wrote under this name until now adds nothing behind what is read.
        self._log.write(position, BatchRows(self.spec), batch_id=None)
        table.content = content = self._log.content()
        written = self._compare(content, batch, gap)
        self._is_filling = False
        if not compares:
            table.content = None
        log.info(
            "%s: its log has the state of batch %d after %d records, of which %d delete what the state lacks",
            self.spec.name,
            batch,
            written,
            content.removed,
        )
        return written

    def _gap(self, batch: int, mapping: TableMapping, *, compares: bool) -> Gap:
        """What a copy cannot tell of entries that have left the state, and are to stay in the store."""
        position, spec = self._last_position, self.spec
        if not mapping.keeps_ended:
            return Gap()
        if compares and position is not None and position.batch == batch - 1:
            # No batch was left out.
            return Gap(position.watermark_ms, position.unproven)
        withdraws, has_all = not self._log.other_writers(), not self._is_filling
        return gap_before(self._checkpoint, spec, position, batch, has_all=has_all, withdraws=withdraws)

    def expire(self) -> int:
        """Delete what Spark hides from now on, though its state still holds it; returns how many records that
        took."""
        table = self._table
        try:
            self._remember_if_interrupted()
        except CANNOT_FOLLOW as error:
            return self.copy(self._checkpoint.newest_batch(), str(error))
        now_ms, due_ms = self._now_ms(), table.conversion.next_expiry_ms()
        if due_ms is None or due_ms > now_ms:
            return 0
        rows = BatchRows(self.spec)
        table.is_interrupted = True
        rows.add_all(table.conversion.expire(now_ms))
        try:
            self._log.write(table.position, rows, batch_id=None)
        except LogReplaced as error:
            return self._copy_to_new_log(self._checkpoint.newest_batch(), error)
        table.is_interrupted = False
        return rows.count

    def beat(self, as_of_ms: int | None) -> None:
        """State up to when the source is in the log; None says nothing new.

        Without news, state every ten seconds that the tap runs: workers name a writer that is silent.
        """
        now_ms = self._now_ms()
        is_news = as_of_ms is not None and (self._as_of_ms is None or as_of_ms > self._as_of_ms)
        if not is_news and now_ms < self._beat_due_ms:
            return
        self._as_of_ms = as_of_ms if is_news else self._as_of_ms
        self._beat_due_ms = now_ms + _SIGN_OF_LIFE_MS
        self._log.beat(self._table.position, self._as_of_ms)

    def _now_ms(self) -> int:
        return int(self._clock_ms())

    def _mapping(self, batch: int) -> TableMapping:
        self._operator = self._checkpoint.ended_operator(self.operator, batch)
        return TableMapping(self.spec, self._operator)

    def _adopt(self, position: TapPosition, mapping: TableMapping) -> _Table:
        self._followed = _Table(position, open_conversion(mapping))
        self._as_of_ms = None
        return self._followed

    def _remember(self, batch: int) -> None:
        """Load what later changes need of the state that the log has."""
        conversion = self._table.conversion
        if conversion.remembers:
            for partition in self._table.partitions:
                for _ in conversion.load(self._entries(partition, batch), self._now_ms()):
                    pass

    def _remember_if_interrupted(self) -> None:
        """Load anew what is remembered, if that is ahead of the log."""
        table = self._table
        if table.is_interrupted:
            table.conversion.clear()
            self._remember(table.position.batch)
            table.is_interrupted = False

    def _compare(self, content: ContentIndex, batch: int, gap: Gap) -> int:
        """Write where the log differs from the state as a batch left it, and withdraw what is in a gap."""
        table = self._table
        table.is_interrupted = True
        lineage = self._lineage(batch)
        table.conversion.clear()
        content.begin()
        partitions = (self._entries(each, batch) for each in table.partitions)
        is_withdrawn = partial(gap.is_withdrawn, self.spec)
        differences = content_differences(table.conversion, content, partitions, self._now_ms, is_withdrawn)
        written = 0
        while (rows := self._next_rows(differences)).count == _ROWS_AT_ONCE:
            self._log.write(table.position, rows, batch_id=None)
            written += rows.count
        self._append(batch, lineage, rows, batch_id=None)
        return written + rows.count

    def _next_rows(self, records: Iterator[StoreRecord]) -> BatchRows:
        rows = BatchRows(self.spec)
        rows.add_all(islice(records, _ROWS_AT_ONCE))
        return rows

    def _entries(self, partition: int, batch: int) -> Iterable[StateEntry]:
        table = self._table.mapping.table
        return self._checkpoint.snapshot(self.operator, partition, batch + 1, table.store, table.family)

    def _lineage(self, batch: int) -> str:
        checkpoint, digest = self._checkpoint, self._table.mapping.digest
        return lineage_of(checkpoint.ended_file, checkpoint.ended_status, batch, digest, self._log.identity)

    def _proven(self, batch: int) -> dict[str, Any]:
        """What a position says of entries that have ended, once the log has a batch."""
        if not self._table.mapping.keeps_ended:
            return {"watermark_ms": None, "unproven": ()}
        watermark_ms = self._checkpoint.ended_offsets(batch).watermark_ms
        unproven = still_unproven(self._table.position.unproven, self.spec, watermark_ms)
        return {"watermark_ms": watermark_ms, "unproven": unproven}

    def _append(self, batch: int, lineage: str, rows: BatchRows, *, batch_id: int | None) -> None:
        """Write the last rows of a batch, after which the log has it."""
        table = self._table
        reached = replace(table.position, batch=batch, lineage=lineage, filling=False, **self._proven(batch))
        self._log.write(reached, rows, batch_id=batch_id)
        table.position, table.is_interrupted = reached, False
