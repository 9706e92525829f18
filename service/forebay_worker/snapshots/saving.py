"""Saves what a worker's actives hold, one after the other, in a thread."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from forebay.clock import boot_ms, duration, epoch_ms
from forebay.errors import NotReady, Overloaded
from forebay_web.health.findings import Finding
from forebay_worker.snapshots.giving import PIECE_HEAD, Snapshots, sound_store
from forebay_worker.snapshots.repository import Manifest, SavedFile, SnapshotRepository
from forebay_worker.tasks.log_continuity import TOMBSTONES_TRUSTED
from forebay_worker.tasks.manager import TaskManager
from forebay_worker.tasks.replica import Replica

if TYPE_CHECKING:
    from forebay_worker.reads.admission import Admission

log = logging.getLogger(__name__)

_POLL_S = 1.0
_RETRY_MS = 60_000.0
Key: TypeAlias = tuple[str, int]
_Inode: TypeAlias = tuple[int, int, int]
"""By which a file that RocksDB will not change is recognised: its number, size and time."""


class SnapshotSaver:
    """Has a snapshot of each active in a repository once an interval; whoever was active before counts, too."""

    def __init__(
        self,
        repository: SnapshotRepository,
        snapshots: Snapshots,
        tasks: TaskManager,
        admission: Admission,
        interval_ms: int,
    ) -> None:
        self._repository, self._snapshots, self._admission, self._tasks = repository, snapshots, admission, tasks
        self._interval_ms = interval_ms
        self._due_boot_ms: dict[Key, float] = {}
        self._digests: dict[Key, dict[_Inode, str]] = {}
        self._failures: dict[Key, str] = {}
        self.saved_epoch_ms: dict[Key, int] = {}
        """When the newest snapshot of each active was taken."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-snapshots", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within what a request to the file system takes."""
        self._stopped.set()
        self._thread.join(_POLL_S)

    def findings(self) -> list[Finding]:
        """Which snapshots could not be saved, and why."""
        return [
            Finding(
                "snapshot-failed",
                "warning",
                f"No snapshot of {store}-{number} could be saved at {self._repository.url}: {reason}",
                "See that it can be reached and written. It is tried again every minute.",
                store,
                (number,),
            )
            for (store, number), reason in sorted(dict(self._failures).items())
        ]

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            replicas = self._tasks.replicas
            for key in {*self._due_boot_ms, *self.saved_epoch_ms} - replicas.keys():
                self._forget(key)
            for key, replica in list(replicas.items()):
                if self._stopped.is_set():
                    return
                self._attempt(key, replica)

    def _forget(self, key: Key) -> None:
        """Of a partition that is not active here, another worker saves snapshots."""
        for known in (self._due_boot_ms, self._digests, self._failures, self.saved_epoch_ms):
            known.pop(key, None)

    def _attempt(self, key: Key, replica: Replica) -> None:
        try:
            if self._admission.lag(replica)[0] != "active":
                self._forget(key)
            elif boot_ms() >= self._due_boot_ms.get(key, 0.0):
                self._save_if_due(key, replica)
                self._failures.pop(key, None)
        except (NotReady, Overloaded) as error:
            log.debug("%s: no snapshot now: %s", replica.topic_partition, error)
            self._due_boot_ms[key] = boot_ms() + min(self._interval_ms, 1000 * (error.retry_after_s or 1))
        except Exception as error:
            # Of pyarrow, RocksDB or the disk; reads are none of its concern.
            self._failures[key] = self._repository.reason(error)
            log.error("%s: no snapshot could be saved: %s", replica.topic_partition, self._failures[key])
            self._due_boot_ms[key] = boot_ms() + min(self._interval_ms, _RETRY_MS)

    def _save_if_due(self, key: Key, replica: Replica) -> None:
        store = sound_store(replica, self._admission.doubt(replica.view))
        log_identity = replica.view.log
        if key not in self.saved_epoch_ms:
            newest = self._repository.newest(*key, log_identity)
            if newest is not None:
                self._note_saved(key, newest.created_epoch_ms)
                if boot_ms() < self._due_boot_ms[key]:
                    return
        created_epoch_ms, position = int(epoch_ms()), replica.view.progress.position
        name, checkpoint = self._snapshots.take(store, kept=True)
        try:
            digests, content = self._digests.get(key, {}), partial(self._content, name)
            files, seen = {}, {}
            for file, size in checkpoint.files.items():
                status = (checkpoint.path / file).stat()
                inode = (status.st_ino, status.st_size, status.st_mtime_ns)
                seen[inode] = digests.get(inode) or _digest(content(file), self._pause)
                files[file] = SavedFile(seen[inode], size)
            # Once, whatever becomes of the rest: it takes reading all of the store.
            self._digests[key] = seen
            life_ms = replica.tombstone_life_ms
            usable_ms = None if life_ms is None else created_epoch_ms + int(TOMBSTONES_TRUSTED * life_ms)
            manifest = Manifest(created_epoch_ms, position, usable_ms, log_identity, files)
            written = self._repository.save(*key, manifest, content, self._pause)
        finally:
            self._snapshots.drop(name)
        self._note_saved(key, created_epoch_ms)
        took = duration(epoch_ms() - created_epoch_ms)
        log.info(
            "%s: snapshot saved at offset %d: %d bytes in %s", replica.topic_partition, position, written, took
        )

    def _note_saved(self, key: Key, created_epoch_ms: int) -> None:
        self.saved_epoch_ms[key] = created_epoch_ms
        left_ms = created_epoch_ms + self._interval_ms - epoch_ms()
        # It may be of a clock that was ahead.
        self._due_boot_ms[key] = boot_ms() + min(max(0.0, left_ms), self._interval_ms)

    def _content(self, snapshot: str, file: str) -> Iterator[bytes]:
        offset = 0
        while piece := self._snapshots.piece(snapshot, file, offset)[PIECE_HEAD.size :]:
            yield piece
            offset += len(piece)

    def _pause(self, count: int) -> None:
        """Wait until so many bytes may be written; raises ``NotReady`` if the worker ends meanwhile."""
        if self._stopped.wait(self._snapshots.pace.delay_s(count)):
            raise NotReady("The worker is shutting down.")


def _digest(pieces: Iterator[bytes], pause: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        pause(len(piece))
        digest.update(piece)
    return digest.hexdigest()
