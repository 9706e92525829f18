"""What happens to replicas: reported by any thread, handled by the applier's, one event after the other."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from forebay.state_store import StateStore, StoreCorrupted
from forebay_worker.tasks.log_continuity import NotContinued
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_view import LostRecords
from forebay_worker.tasks.restoration import Restoration
from forebay_worker.tasks.restore_process import RestoreReport


@dataclass(frozen=True)
class StoreDamaged:
    """A store's content cannot be trusted, or is lost.

    ``store`` is the one that was read, if another may have taken its place since. A store that is
    ``as_it_once_was`` at some point of its log may be served until the new one has reached the end. If its log
    ``has_lost`` some of its records, nobody knows how far it is behind that.
    """

    replica: Replica
    reason: str
    store: StateStore | None = None
    as_it_once_was: bool = False
    has_lost: LostRecords | None = None

    @classmethod
    def of(cls, replica: Replica, error: StoreCorrupted) -> StoreDamaged:
        """The event that follows from an error, of which only the words are kept.

        Its frames have what was being read, such as an iterator, which would hold the store open.
        """
        found: BaseException | None = error
        while found is not None:
            traceback.clear_frames(found.__traceback__)
            found = found.__cause__ or found.__context__
        if isinstance(error, NotContinued):
            return cls(replica, str(error), as_it_once_was=True, has_lost=error.has_lost)
        return cls(replica, str(error))


@dataclass(frozen=True)
class PredecessorDamaged:
    """What a replica serves until its rebuild is done cannot be read."""

    replica: Replica
    predecessor: Replica
    reason: str


@dataclass(frozen=True)
class EndReached:
    """A replica has reached an end of its log for the first time."""

    replica: Replica


@dataclass(frozen=True)
class FileMade:
    """A restore process has made a file; ``settled`` is told whether its job may go on."""

    restoration: Restoration
    report: RestoreReport
    settled: Callable[[bool], None]


@dataclass(frozen=True)
class RestoreFailed:
    """An attempt at a restore has failed; ``storage_fault`` is what the machine refused, if that is why."""

    restoration: Restoration
    reason: str
    storage_fault: str | None = None


@dataclass(frozen=True)
class RestoreEnded:
    """A restore process has come to its job's end, or was given up."""

    restoration: Restoration


@dataclass(frozen=True)
class CopyMade:
    """A copy of a store is at a path, to take the place of a replica's; ``source`` says of what."""

    restoration: Restoration
    path: Path
    source: str


RestoreEvent: TypeAlias = FileMade | RestoreFailed | RestoreEnded
ReplicaEvent: TypeAlias = StoreDamaged | PredecessorDamaged | EndReached | CopyMade | RestoreEvent
HandleEvent: TypeAlias = Callable[[ReplicaEvent], None]
