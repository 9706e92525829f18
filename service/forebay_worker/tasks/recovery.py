"""Recovery: brings replicas to the ends of their logs by whatever means necessary.

A replica is followed from its committed offset on; restored in bulk first if it is far behind; and rebuilt from
its log's beginning if its content cannot be trusted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forebay.clock import boot_ms
from forebay.errors import ChangelogError
from forebay.lag import EndOffset, EndOffsets
from forebay.logs import LogThrottle
from forebay.state_store import CommittedOffset, StateStore, StoreCorrupted
from forebay.task_ids import TopicPartition
from forebay_changelog import Changelog
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.fsync import sync_directory
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.storage_faults import storage_fault
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.applier_thread import Applier
from forebay_worker.tasks.apply import observe_end
from forebay_worker.tasks.bulk_restore import BulkRestore
from forebay_worker.tasks.log_continuity import NotContinued, replaced_log
from forebay_worker.tasks.phases import ReplicaPhase
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_view import LostRecords
from forebay_worker.tasks.restoration import CopyProgress, CopyStore, Restoration

log = logging.getLogger(__name__)

BULK_RESTORE_RECORDS = 50_000
"""A replica further behind than this is restored in bulk."""
_FALLEN_BEHIND = 10
"""This many times further if it is already being followed: a second or two of applying needs no process."""
_RETRY_MS = 2_000.0
_NOT_IN_BULK_MS = 600_000.0
_NOT_COPIED_MS = 600_000.0
_ENDS_AT_ONCE = 100
"""Ends asked for at a time, of logs that restore processes read."""
_PAUSE_BY_POLL = 20
"""The next look waits this many times as long as the last one took."""


@dataclass(frozen=True)
class RecoveryPolicy:
    """The settings for bringing replicas forward, each under its name."""

    apply_records_per_second: int
    restore_processes: int
    copy_store: CopyStore | None = None
    """Gets copies of other workers' stores, None if none may be had."""
    schema_registry: str | None = None
    """The URL of the registry that has the schemas of values."""
    headed: frozenset[str] = frozenset()
    """The topics whose records are kept with their headers."""


class Recovery:
    """Brings replicas forward; everything in the applier's thread, which calls ``housekeeping`` now and then."""

    def __init__(
        self,
        changelog: Changelog,
        directory: StateDirectory,
        opener: StoreFactory,
        policy: RecoveryPolicy,
        housekeeping: Callable[[], None],
    ) -> None:
        self._changelog = changelog
        self._directory = directory
        self._opener = opener
        self._copy_store = policy.copy_store
        self._logged = LogThrottle()
        self.applier = Applier(
            changelog,
            policy.apply_records_per_second,
            self.storage_fault_in,
            self.on_damaged,
            self._finish_rebuild,
            housekeeping,
            policy.headed,
        )
        self.bulk_restore = BulkRestore(
            changelog.url,
            policy.restore_processes,
            directory.path / ".restore",
            self.applier.run,
            self.storage_fault_in,
            self._copied,
            self._adopt,
            self._follow_restored,
            self.on_damaged,
            policy.schema_registry,
            policy.headed,
        )
        self._in_bulk = policy.restore_processes > 0 and policy.apply_records_per_second == 0
        self._ends_to_poll: deque[TopicPartition] = deque()
        self._ends_due_boot_ms = 0.0

    def on_damaged(self, replica: Replica, error: StoreCorrupted) -> None:
        """Rebuild a store whose content cannot be trusted, or is lost. Of the error only the words are kept."""
        _forget_frames(error)
        if isinstance(error, NotContinued):
            self._rebuild(replica, str(error), as_it_once_was=True, has_lost=error.has_lost)
        else:
            self._rebuild(replica, str(error))

    def on_unreadable(self, replica: Replica, store: StateStore, reason: str) -> None:
        """Rebuild a store that a read found damaged, unless another has taken its place since."""
        if replica.view.store is store and replica.writable:
            self._rebuild(replica, reason)

    def _on_predecessor_unreadable(self, replica: Replica, former: Replica, reason: str) -> None:
        """Serve nothing until a rebuild is done if what was served meanwhile cannot be read."""
        if replica.predecessor is former:
            log.error("%s: %s; it is not served while it is rebuilt", replica.topic_partition, reason)
            _drop_predecessor(replica)

    def begin(self, replica: Replica) -> None:
        """Follow the log, or restore in bulk first if it is far ahead; a store found damaged is rebuilt."""
        try:
            self._begin(replica)
        except StoreCorrupted as corrupted:
            self.on_damaged(replica, corrupted)

    def _begin(self, replica: Replica) -> None:
        self.applier.follow(replica)
        if self._takes_files(replica):
            tp = replica.topic_partition
            committed = replica.view.store.committed_offset(tp) or CommittedOffset(0)
            behind = self._changelog.end_offsets([tp]).get(tp, 0) - committed.position
            if behind > BULK_RESTORE_RECORDS and not self._rebuilt_if_replaced(replica):
                self._restore_in_bulk(replica, behind)

    def end(self, replica: Replica) -> None:
        """Stop bringing a replica forward, and close its store."""
        is_open = replica.phase is not ReplicaPhase.REBUILDING
        try:
            self._detach(replica)
        finally:
            replica.enter(ReplicaPhase.CLOSED)
            if is_open:
                replica.view.store.close()

    def _detach(self, replica: Replica) -> None:
        self._leave_alone(replica)
        _drop_predecessor(replica)

    def _leave_alone(self, replica: Replica) -> None:
        self.bulk_restore.cancel(replica)
        self.applier.unfollow(replica)

    def keep_up(self, replicas: Iterable[Replica]) -> None:
        """Retry rebuilds, publish the ends of logs being restored, restore in bulk replicas that fell far
        behind."""
        now = boot_ms()
        for replica in replicas:
            if replica.phase is ReplicaPhase.REBUILDING and replica.retry_boot_ms <= now:
                self._begin_anew(replica)
        self.bulk_restore.kill_unresponsive()
        self._observe_ends_of_restored()
        for replica in replicas:
            self._restore_if_far_behind(replica)

    def storage_fault_in(self, error: Exception) -> str | None:
        """What the machine refuses, and the remedy, if that is behind an error."""
        return storage_fault(error, self._directory.path)

    def _takes_files(self, replica: Replica) -> bool:
        return self._in_bulk and isinstance(replica.view.store, RocksDbStore)

    def _restore_if_far_behind(self, replica: Replica) -> None:
        """Restore in bulk replicas that fell far behind since they were opened, or whose lag was not known
        then."""
        progress = replica.view.progress
        if progress.end_offset is None or replica.failure is not None or not self._takes_files(replica):
            return
        behind = progress.end_offset - progress.position
        idle = replica.phase in (ReplicaPhase.FOLLOWING, ReplicaPhase.SUSPENDED)
        may_be_in_bulk = boot_ms() >= replica.not_in_bulk_until_boot_ms
        if behind > _FALLEN_BEHIND * BULK_RESTORE_RECORDS and idle and may_be_in_bulk:
            self._restore_in_bulk(replica, behind)

    def _restore_in_bulk(self, replica: Replica, behind: int) -> None:
        try:
            replica.view.store.commit({})  # the identity, before any file is ingested
        except StoreCorrupted as corrupted:
            self.on_damaged(replica, corrupted)
            return
        except Exception as error:
            log.error("%s cannot be restored in bulk, so record by record: %s", replica.topic_partition, error)
            return
        self.applier.unfollow(replica)
        try:
            self.bulk_restore.submit(replica, may_copy=self._is_worth_a_copy(replica, behind))
        except RuntimeError as error:
            log.error("%s cannot be restored in bulk, so record by record: %s", replica.topic_partition, error)
            replica.not_in_bulk_until_boot_ms = boot_ms() + _NOT_IN_BULK_MS
            self.applier.follow(replica)
            return
        replica.enter(ReplicaPhase.RESTORING)
        log.info("%s: %d records behind, restored in bulk", replica.topic_partition, behind)

    def _is_worth_a_copy(self, replica: Replica, behind: int) -> bool:
        """Whether more of its log is ahead than what it has, and no copy was taken just now."""
        is_young = boot_ms() - replica.copied_boot_ms < _NOT_COPIED_MS
        return self._copy_store is not None and behind > replica.view.progress.position and not is_young

    def _copied(self, restoration: Restoration, path: Path, stopped: Callable[[], bool]) -> str | None:
        """Copy a store to a path; in the thread of a restore. Returns what was copied, None if nobody gives one
        that is of use."""
        replica = restoration.replica
        tp, spec = replica.topic_partition, replica.spec
        assert self._copy_store is not None
        progress = restoration.copy = CopyProgress(replica.view.log, replica.view.progress.position)
        source = self._copy_store(spec.name, tp, path, stopped, progress)
        if source is None:
            return None
        try:
            committed = self._opener.check_copy(path, replica.task, spec)
        except StoreCorrupted as corrupted:
            log.error("%s: the copy of %s is of no use: %s", tp, source, corrupted)
            return None
        return source if committed.position > progress.position else None

    def _adopt(self, restoration: Restoration, copy: Path, source: str) -> None:
        """Go on with a copy of a store in place of a replica's own.

        That one, or what already answers for it, serves until the log has confirmed the copy.
        """
        if restoration.cancelled:
            shutil.rmtree(copy, ignore_errors=True)
            return
        replica = restoration.replica
        log.info("%s: goes on from a copy of %s", replica.topic_partition, source)
        self.bulk_restore.cancel(replica)
        replica.copied_boot_ms = boot_ms()
        former = self._predecessor_of(replica) if replica.predecessor is None else None
        self._replace(replica, former, copy)

    def _follow_restored(self, restoration: Restoration) -> None:
        """Go on with a replica record by record."""
        tp = restoration.replica.topic_partition
        if restoration.given_up:
            restoration.replica.not_in_bulk_until_boot_ms = boot_ms() + _NOT_IN_BULK_MS
            log.error("%s: restore processes keep failing, so it is restored record by record", tp)
        else:
            log.info(
                "%s: %d records restored at %.0f records/s",
                tp,
                restoration.records,
                restoration.records_per_second,
            )
        try:
            self.applier.follow(restoration.replica)
        except Exception as error:
            # Nothing else would take it up again.
            self._rebuild(restoration.replica, str(error) or repr(error))

    def _observe_ends_of_restored(self) -> None:
        """For those that no consumer follows meanwhile; in turn if there are very many."""
        sent = boot_ms()
        if sent < self._ends_due_boot_ms:
            return
        restorations = self.bulk_restore.restorations
        if not self._ends_to_poll:
            self._ends_to_poll.extend(restorations)
        taken = [self._ends_to_poll.popleft() for _ in range(min(_ENDS_AT_ONCE, len(self._ends_to_poll)))]
        polled = [tp for tp in taken if tp in restorations]
        ends = self._changelog.end_offsets(polled) if polled else {}
        for tp, end in ends.items():
            replica = restorations[tp].replica
            if not self._rebuilt_if_replaced(replica):
                observe_end(replica, EndOffset(end, sent))
        self._ends_due_boot_ms = boot_ms() + _PAUSE_BY_POLL * (boot_ms() - sent)

    def _rebuilt_if_replaced(self, replica: Replica) -> bool:
        """Rebuild a replica with content of a log that was replaced; nothing follows the log that would notice."""
        topic, partition = replica.topic_partition
        if replica.view.progress.position == 0:
            return False
        try:
            replaced = replica.view.log not in (None, self._changelog.identity(topic, partition))
        except ChangelogError:
            return False
        if replaced:
            self._rebuild(replica, replaced_log(topic))
        return replaced

    def _rebuild(
        self,
        replica: Replica,
        reason: str,
        *,
        as_it_once_was: bool = False,
        has_lost: LostRecords | None = None,
    ) -> None:
        """Begin anew in place of a store whose content cannot be trusted, or that is lost.

        One that is ``as_it_once_was`` at some point of its log serves until the new one has reached the end: its
        lag grows, or is unknown if the log ``has_lost`` records.
        """
        if replica.phase is ReplicaPhase.CLOSED:
            return
        log.error("%s: %s; it is rebuilt", replica.topic_partition, reason)
        # Such as where a copy's log was cut: what serves until the copy is confirmed goes on.
        serving = replica.predecessor if as_it_once_was and not replica.view.restored else None
        if serving is None:
            self._detach(replica)
        else:
            self._leave_alone(replica)
            if serving.view.log_has_lost != "newest":
                serving.publish(log_has_lost=has_lost or serving.view.log_has_lost)
        may_serve = as_it_once_was and replica.view.restored and isinstance(replica.view.store, RocksDbStore)
        former = self._predecessor_of(replica) if may_serve else None
        if former is not None:
            former.publish(log_has_lost=has_lost)
        self._replace(replica, former)

    def _replace(self, replica: Replica, former: Replica | None, copy: Path | None = None) -> None:
        """Begin anew, with a copy of another's store or without, in place of a replica's store; if there is a
        ``former`` state of the replica, that store serves meanwhile."""
        replica.invalidate()
        replica.enter(ReplicaPhase.REBUILDING)
        try:
            replica.view.store.close()
        except Exception as error:
            log.warning("%s was not closed properly: %s", replica.topic_partition, error)
        replica.in_place = replica.view.store.persistent
        if former is not None:
            replica.in_place = not self._serve_set_aside(replica, former)
        self._begin_anew(replica, copy)

    def _predecessor_of(self, replica: Replica) -> Replica:
        """The same replica as it is now, which nothing brings forward any more."""

        def report(former: Replica, _: StateStore, reason: str) -> None:
            self.applier.run(partial(self._on_predecessor_unreadable, replica, former, reason))

        phase = ReplicaPhase.CLOSED
        return dataclasses.replace(
            replica, phase=phase, ends=EndOffsets(), admitted=None, walk=None, on_corrupted=report
        )

    def _serve_set_aside(self, replica: Replica, former: Replica) -> bool:
        """Set a replica's store aside and serve it from there; returns whether that was possible."""
        try:
            path = self._directory.set_aside(replica.task, replica.spec.name)
        except OSError as error:
            log.warning("%s is not served while it is rebuilt: %s", replica.topic_partition, error)
            return False
        self._discard_earlier(replica, path)
        try:
            former.publish(store=self._opener.open_set_aside(path, replica.spec.name))
        except Exception as error:
            log.warning("%s is not served while it is rebuilt: %s", replica.topic_partition, error)
        else:
            replica.serve_predecessor(former)
        return True

    def _discard_earlier(self, replica: Replica, path: Path | None) -> None:
        """Delete what was set aside of a replica before what is at a path now, unless it is served."""
        kept = [] if path is None else [path]
        if replica.predecessor is not None and isinstance(replica.predecessor.view.store, RocksDbStore):
            kept.append(replica.predecessor.view.store.path)
        try:
            self._directory.discard_set_aside(replica.spec.name, replica.task.partition, kept)
        except OSError as error:
            log.warning("what was set aside of %s before could not be deleted: %s", replica.topic_partition, error)

    def _begin_anew(self, replica: Replica, copy: Path | None = None) -> None:
        """Open an empty store, or a copy of another's, in the place of one that was closed; failures are retried.

        An untrusted one that is still there makes way first: if opened again, it would be trusted for a moment.
        """
        try:
            if replica.in_place:
                # Its directory may be what was lost.
                with contextlib.suppress(FileNotFoundError):
                    path = self._directory.make_way(replica.task, replica.spec.name)
                    # Nobody reads it where something else serves meanwhile.
                    self._discard_earlier(replica, path if replica.predecessor is None else None)
                replica.in_place = False
            if copy is not None:
                path = self._directory.store_path(replica.task, replica.spec.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(copy, path)
                sync_directory(path.parent)
            opened = self._opener.open(replica.task, replica.spec)
        except Exception as error:
            self._try_again(replica, error)
            return
        replica.enter(ReplicaPhase.CREATED)
        replica.failure = replica.storage_fault = None
        replica.identify = opened.identify
        replica.publish(store=opened.store, log=opened.log)
        try:
            self._begin(replica)
        except Exception as error:
            self._detach(replica)
            with contextlib.suppress(Exception):
                replica.view.store.close()
            self._try_again(replica, error)

    def _try_again(self, replica: Replica, error: Exception) -> None:
        """Log why a rebuild cannot start, and postpone it."""
        tp = replica.topic_partition
        found = replica.storage_fault = self.storage_fault_in(error)
        replica.failure = found or str(error) or repr(error)
        replica.retry_boot_ms = boot_ms() + _RETRY_MS
        replica.enter(ReplicaPhase.REBUILDING)
        if self._logged.allow(f"{tp}: {replica.failure}" if found is None else found):
            every_s = _RETRY_MS / 1000
            log.error(
                "the rebuild of %s could not be started; retrying every %.0f s: %s", tp, every_s, replica.failure
            )

    def _finish_rebuild(self, replica: Replica) -> None:
        """Serve the replica itself from now on, and delete what was set aside of it."""
        _drop_predecessor(replica)
        try:
            self._directory.discard_set_aside(replica.spec.name, replica.task.partition)
        except OSError as error:
            # It is deleted after the next rebuild or start; the replica is to be followed all the same.
            log.warning("what was set aside of %s could not be deleted: %s", replica.topic_partition, error)


def _drop_predecessor(replica: Replica) -> None:
    """Stop serving the store that a replica had before."""
    predecessor, replica.predecessor = replica.predecessor, None
    if predecessor is not None:
        # They refer to each other by way of what reads keep.
        predecessor.admitted = None
        predecessor.view.store.close()


def _forget_frames(error: StoreCorrupted) -> None:
    """Clear the frames of an error: they have what was being read, such as an iterator, which would hold the store
    open."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
