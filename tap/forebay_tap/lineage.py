"""Where a store's log is in the history of a checkpoint, as its newest heartbeat says."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forebay.unproven import UnprovenRanges
from forebay_changelog import Heartbeat
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.files import FileStatus

_DIGEST_DIGITS = 16
_SEPARATOR = "-"
_LOG_MEMBER, _TIME_MEMBER = 2, 3


@dataclass(frozen=True)
class TapPosition:
    """The batch up to which a log has a checkpoint's state, and the copy that it goes on from.

    ``copy`` changes whenever the whole state is compared with the log anew. ``lineage`` is that of the batch, see
    ``lineage_of``. ``batch`` is -1 until the first copy is whole. ``watermark_ms`` and ``unproven`` are those of
    ``Heartbeat``: until a copy is whole, of the position that it continues.
    """

    checkpoint_id: str
    copy: str
    batch: int
    lineage: str | None
    filling: bool = False
    watermark_ms: int | None = None
    unproven: UnprovenRanges = ()

    @property
    def query_id(self) -> str:
        """The query that the log names as its writer."""
        return f"{self.checkpoint_id}/{self.copy}"

    def heartbeat(self, as_of_ms: int | None) -> Heartbeat:
        """A heartbeat at this position."""
        return Heartbeat(
            as_of_ms,
            self.query_id,
            self.batch,
            self.filling,
            self.lineage,
            self.watermark_ms,
            self.unproven,
        )

    @classmethod
    def of(cls, heartbeat: Heartbeat) -> TapPosition:
        """The position that a heartbeat states; that of a sink has no copy, and may lack keys of the state."""
        checkpoint_id, _, copy = heartbeat.query_id.partition("/")
        return cls(
            checkpoint_id,
            copy,
            heartbeat.batch_id,
            heartbeat.lineage,
            heartbeat.filling or not copy,
            heartbeat.watermark_ms,
            heartbeat.unproven,
        )


def differ(beats: Sequence[Heartbeat | None]) -> bool:
    """Whether the partitions of a log have been left at several positions."""
    return len({beat and (beat.query_id, beat.batch_id, beat.lineage) for beat in beats}) > 1


def position_in_all(beats: Sequence[Heartbeat | None]) -> TapPosition:
    """The position that all partitions of a log have reached, of heartbeats that ``differ``.

    A writer of SQLite that was killed has left partitions one batch apart, or some of them before a copy: the
    batch is repeated, or the state copied. A partition that is further behind has lost records: no batch
    continues a position without lineage.
    """
    positions = sorted(map(TapPosition.of, filter(None, beats)), key=lambda position: position.batch)
    first, last = positions[0], positions[-1]
    is_next = first.query_id == last.query_id and first.batch + 1 == last.batch
    if None not in beats and (is_next or first.batch < 0):
        return first
    return replace(last, lineage=None, filling=True)


def new_copy() -> str:
    """A name for a new copy of the state."""
    return uuid.uuid4().hex[:12]


def lineage_of(
    read: Callable[[str], bytes], stat: Callable[[str], FileStatus], batch: int, mapping_digest: str, log: str
) -> str:
    """Identifies a batch's attempt, how its state is mapped, and the ``log`` that has it.

    The files that a batch leaves, which are ``read``, contain when it was planned and, in checkpoint format 2,
    which state it made: after a query was set back, a batch of the same number has others. A last batch that was
    run again has the same in format 1, but its commit has another time.
    """
    digest = hashlib.sha256()
    try:
        for directory in ("offsets", "commits"):
            digest.update(read(f"{directory}/{batch}"))
        modified_ms = stat(f"commits/{batch}").modified_ms
    except FileNotFoundError:
        return unfinished_lineage(log)
    return _SEPARATOR.join((digest.hexdigest()[:_DIGEST_DIGITS], mapping_digest, log, str(modified_ms)))


def unfinished_lineage(log: str) -> str:
    """The lineage while a log has no whole state, which no batch continues."""
    return _SEPARATOR.join(("", "", log))


def is_continued(checkpoint: Checkpoint, position: TapPosition, mapping_digest: str, log: str) -> bool:
    """Whether the checkpoint still has the batch as the log has it, so that later batches follow it."""
    lineage = position.lineage or ""
    if lineage.split(_SEPARATOR)[0] == "":
        return False
    files = checkpoint.files
    return lineage_of(files.read, files.stat, position.batch, mapping_digest, log) == lineage


def is_planned_alike(checkpoint: Checkpoint, position: TapPosition) -> bool:
    """Whether the checkpoint has the position's batch with the same plan and end, though it may have been run
    again."""
    current = lineage_of(checkpoint.files.read, checkpoint.files.stat, position.batch, "", "")
    return current.split(_SEPARATOR)[0] == (position.lineage or "").split(_SEPARATOR)[0] != ""


def ended_ms(position: TapPosition) -> int | None:
    """When the position's batch ended, in epoch milliseconds; None of one that no batch continues."""
    members = (position.lineage or "").split(_SEPARATOR)
    time = members[_TIME_MEMBER] if len(members) > _TIME_MEMBER else ""
    return int(time) if time.isdigit() else None


def is_in_log(position: TapPosition, log: str) -> bool:
    """Whether a position was written to this log, as far as it says."""
    members = (position.lineage or "").split(_SEPARATOR)
    return len(members) <= _LOG_MEMBER or members[_LOG_MEMBER] == log


def why_not_continued(position: TapPosition | None, log: str) -> str:
    """Why a log's state is copied instead, for the tap's log."""
    if position is None:
        return "nothing of it is in the log yet"
    if not is_in_log(position, log):
        return "a partition of its log was lost"
    if position.batch < 0 or position.lineage is None:
        return "no copy of it was finished, or a partition of its log has lost records since"
    return f"batch {position.batch} is no longer what the log has: purged, repeated, or mapped otherwise"
