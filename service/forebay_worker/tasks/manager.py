"""Which replicas this worker holds, and in which role: opened, followed, rebuilt and released here."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay.changelog import Changelog
from forebay.lag import EndOffset, boot_ms
from forebay.stores import CommittedOffset
from forebay.tasks import TaskId, TopicPartition
from forebay.topology import StoreSpec, Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.obstacles import obstacle
from forebay_worker.state.offset_record import read_positions, record_positions
from forebay_worker.state.offsets import OffsetCache
from forebay_worker.state.opening import StoreOpener
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.tasks.applier import Applier
from forebay_worker.tasks.bulk_restore import BulkRestore, Restoration
from forebay_worker.tasks.expiry import Expiry
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

BULK_RESTORE_RECORDS = 50_000
"""A replica further behind than this is restored in bulk."""
_FALLEN_BEHIND = 10
"""So many times further where it is followed already: what is applied in a second or two needs no process."""
_OPENING_TURN_MS = 100.0
"""So long are stores opened at a stretch, before records are applied and assignments heard again."""
_REOPEN_MS = 2_000.0
_ENDS_AT_ONCE = 100
"""Ends asked for at a time, of logs that restore processes read."""
_PAUSE_BY_ASKING = 20
"""So many times longer than it took does the next such look wait."""
_MOST_SWEEPING_MS = 10.0
_PATIENCE_WHERE_EXPIRED = 6
"""So many times longer may it take where something is deleted: a store must not grow faster than it is swept."""

ReplicaTable = Mapping[tuple[str, int], Replica]


@dataclass(frozen=True)
class TaskPolicy:
    """How tasks are kept; each is the setting of that name."""

    poll_interval_ms: int
    apply_records_per_second: int
    restore_processes: int
    state_cleanup_delay_ms: int


class TaskManager:
    """Holds tasks. Everything but reading ``replicas`` happens in the applier's thread.

    ``replicas`` maps (store, partition) to its replica and is replaced as a whole, so readers need no lock.
    """

    def __init__(
        self,
        topology: Topology,
        changelog: Changelog,
        directory: StateDirectory,
        opener: StoreOpener,
        policy: TaskPolicy,
    ) -> None:
        self._topology = topology
        self._changelog = changelog
        self._directory = directory
        self._opener = opener
        self._policy = policy
        self.applier = Applier(
            changelog,
            policy.poll_interval_ms,
            policy.apply_records_per_second,
            self._obstacle_in,
            self._rebuild,
            self._discard_set_aside,
            self._keep_house,
        )
        self.bulk_restore = BulkRestore(
            changelog.url,
            policy.restore_processes,
            directory.path / ".restore",
            self.applier.call,
            self._restored,
            self._obstacle_in,
        )
        self.replicas: ReplicaTable = {}
        self._wanted: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(), frozenset())
        self._on_disk = OffsetCache()
        self._expiry = Expiry()
        self._never_opened: set[TaskId] = set()
        """Tasks found on disk at the start and not opened since."""
        self._released_boot_ms: dict[TaskId, float] = {}
        self._rebuilding: dict[TopicPartition, Replica] = {}
        """Those whose store is closed, until another is open in its place."""
        self._to_ask: deque[TopicPartition] = deque()
        self._ends_due_boot_ms = 0.0
        self._to_sweep: deque[Replica] = deque()
        self._failed_sweeps: set[TopicPartition] = set()
        self._unopened: str | None = None
        self._unopenable: set[TaskId] = set()
        """Tasks that could not be opened, for a reason of their own, since it was last tried with all."""
        self._reopen_boot_ms: float | None = None

    def start(self) -> None:
        """Learn the offsets of what is on disk, and begin to hold it as standby, before any assignment."""
        on_disk = {task for task, store in self._directory.stores_on_disk() if self._belongs(task, store)}
        self._never_opened = set(on_disk)
        self._on_disk.load(read_positions(self._directory, self._topology))
        self._wanted = (frozenset(on_disk), frozenset())
        self.applier.start()
        self.applier.call(self._hold_wanted)

    def hold(self, active: Iterable[TaskId], standby: Iterable[TaskId]) -> None:
        """Take over an assignment: open what is new, change roles in place, release the rest."""
        actives = frozenset(active)
        self._wanted = (actives | frozenset(standby), actives)
        # Roles change at once, in the caller's thread: a lease must never vouch for a role already lost.
        self._designate(self.replicas, actives)
        self.applier.call(self._hold_wanted)

    def hold_as_standby(self) -> None:
        """Go on holding what is held, active for nothing."""
        self.hold((), self._wanted[0])

    def stop(self) -> None:
        """Close every store."""
        self._wanted = (frozenset(), frozenset())
        self.bulk_restore.stop()
        self.applier.call(self._hold_wanted).result()
        self.applier.stop()
        record_positions(self._directory, self._topology, self._on_disk.positions())

    @property
    def obstacle(self) -> str | None:
        """What keeps stores from being opened or written, and the remedy; None if nothing does."""
        return next(iter([*self.applier.obstacles.values(), self._unopened]), None)

    @property
    def settled(self) -> bool:
        """Whether what is held is what was last asked for."""
        return {replica.task for replica in self.replicas.values()} == self._wanted[0]

    def offsets(self) -> dict[TaskId, int]:
        """Sum of the store positions of every task on disk, held or not; an incomplete store counts 0.

        A task of which a store is not there, or not known, is left out unless it is held.
        """
        ordinals = len(self._topology.subtopologies)
        sums = {
            task: sum(stores.values())
            for task, stores in self._on_disk.positions().items()
            if task.ordinal < ordinals and stores.keys() >= {spec.name for spec in self._topology.stores_of(task)}
        }
        for task in {replica.task for replica in self.replicas.values()}:
            sums[task] = 0
        for replica in self.replicas.values():
            sums[replica.task] += replica.progress.position if replica.complete else 0
        return sums

    def _belongs(self, task: TaskId, store: str) -> bool:
        ordinal = self._topology.ordinal_by_store.get(store)
        if ordinal == task.ordinal and task.partition < self._topology.stores[store].partitions:
            return True
        log.warning("%s/%s is not of this topology and is left alone", task, store)
        return False

    def _hold_wanted(self) -> None:
        """Bring what is held to what was last asked for, whatever was asked for when this was queued."""
        tasks, active = self._wanted
        self._release_all_but(tasks)
        for task in self._never_opened - tasks:
            self._released_boot_ms.setdefault(task, boot_ms())
        until = boot_ms() + _OPENING_TURN_MS
        missing = tasks - {replica.task for replica in self.replicas.values()} - self._unopenable
        self._unopened = None
        if not self._rebuilding and not self._unopenable:
            self._reopen_boot_ms = None
        elif self._reopen_boot_ms is None:
            self._reopen_boot_ms = boot_ms() + _REOPEN_MS
        for task in sorted(missing, key=lambda task: (task not in active, task)):
            if not self._open_task(task):
                break
            if boot_ms() >= until:
                self.applier.call(self._hold_wanted)
                break
        # What was asked for meanwhile counts: a role that was lost must not come back.
        self._designate(self.replicas, self._wanted[1])

    def _release_all_but(self, tasks: frozenset[TaskId]) -> None:
        gone = [replica for replica in self.replicas.values() if replica.task not in tasks]
        self.replicas = {place: replica for place, replica in self.replicas.items() if replica.task in tasks}
        for replica in gone:
            try:
                self._close(replica)
            except Exception:
                log.exception("%s could not be closed properly", replica.topic_partition)

    def _open_task(self, task: TaskId) -> bool:
        """Open a task's stores, all or none; False where the machine refuses, which it would to any task."""
        self._released_boot_ms.pop(task, None)
        self._never_opened.discard(task)
        opened: dict[tuple[str, int], Replica] = {}
        try:
            for spec in self._topology.stores_of(task):
                opened[spec.name, task.partition] = self._open(task, spec)
        except Exception as error:
            for replica in opened.values():
                self._close(replica)
            self._unopened = self._obstacle_in(error)
            if self._unopened is None:
                self._unopenable.add(task)
            self._reopen_boot_ms = boot_ms() + _REOPEN_MS
            log.error(
                "task %s could not be opened; tried again in %.0f s. %s",
                task,
                _REOPEN_MS / 1000,
                self._unopened or error,
                exc_info=self._unopened is None,
            )
            return self._unopened is None
        self.replicas = {**self.replicas, **opened}
        self._on_disk.drop(task)
        return True

    def _obstacle_in(self, error: Exception) -> str | None:
        return obstacle(error, self._directory.path)

    def _designate(self, replicas: ReplicaTable, active: frozenset[TaskId]) -> None:
        now = boot_ms()
        for replica in replicas.values():
            if replica.task not in active:
                replica.designated_boot_ms = None
            elif replica.designated_boot_ms is None:
                replica.designated_boot_ms = now

    def _open(self, task: TaskId, spec: StoreSpec) -> Replica:
        opened = self._opener.open(task, spec)
        replica = Replica(spec, task, opened.store, opened.log, identify=opened.identify)
        self._bring_forward(replica)
        return replica

    def _close(self, replica: Replica) -> None:
        self.bulk_restore.cancel(replica)
        self.applier.unfollow(replica)
        self._expiry.forget(replica)
        self._failed_sweeps.discard(replica.topic_partition)
        if replica.store.persistent and replica.complete:
            self._on_disk.put(replica.task, replica.spec.name, replica.progress.position)
        self._released_boot_ms.setdefault(replica.task, boot_ms())
        if self._rebuilding.pop(replica.topic_partition, None) is None:
            replica.store.close()

    def _bring_forward(self, replica: Replica) -> None:
        """Follow the log, or restore in bulk first where it is far ahead."""
        committed = replica.store.committed_offset(replica.topic_partition) or CommittedOffset(0)
        self.applier.follow(replica)
        if self._takes_files(replica):
            end = self._changelog.end_offsets([replica.topic_partition]).get(replica.topic_partition, 0)
            if end - committed.position > BULK_RESTORE_RECORDS:
                self._restore_in_bulk(replica, end - committed.position)

    def _hasten(self, replica: Replica) -> None:
        """Restore in bulk what fell far behind since it was opened, or of which it was not known then."""
        progress = replica.progress
        if progress.end_offset is None or replica.failure is not None or not self._takes_files(replica):
            return
        behind = progress.end_offset - progress.position
        busy = replica.topic_partition in self._rebuilding or self.bulk_restore.restoring(replica) is not None
        if behind > _FALLEN_BEHIND * BULK_RESTORE_RECORDS and not busy:
            self._restore_in_bulk(replica, behind)

    def _takes_files(self, replica: Replica) -> bool:
        bulk = self._policy.restore_processes > 0 and self._policy.apply_records_per_second == 0
        return bulk and isinstance(replica.store, RocksDbStore)

    def _restore_in_bulk(self, replica: Replica, behind: int) -> None:
        try:
            replica.store.commit({})  # the identity, before any file is ingested
        except Exception as error:
            log.error("%s cannot be restored in bulk, so record by record: %s", replica.topic_partition, error)
            return
        self.applier.unfollow(replica)
        self.bulk_restore.submit(replica)
        log.info("%s: %d records behind, restored in bulk", replica.topic_partition, behind)

    def _restored(self, restoration: Restoration) -> None:
        log.info(
            "%s: %d records restored at %.0f records/s",
            restoration.replica.topic_partition,
            restoration.records,
            restoration.records_per_second,
        )
        self.applier.follow(restoration.replica)

    def _rebuild(self, replica: Replica, reason: str) -> None:
        log.error("%s: %s; it is rebuilt", replica.topic_partition, reason)
        self.bulk_restore.cancel(replica)
        self.applier.unfollow(replica)
        replica.diverged = True
        replica.complete = False
        replica.misplaced_key = None
        self._rebuilding[replica.topic_partition] = replica
        try:
            replica.store.close()
        except Exception as error:
            log.warning("%s was not closed properly: %s", replica.topic_partition, error)
        if replica.store.persistent:
            try:
                self._directory.set_aside(replica.task, replica.spec.name)
            except OSError as error:
                # Opened once more, it is found to be of another log once more.
                self._put_off(replica, error)
                return
        self._begin_anew(replica)

    def _begin_anew(self, replica: Replica) -> None:
        """Open an empty store in the place of one that was closed; what prevents it is tried again."""
        tp = replica.topic_partition
        try:
            opened = self._opener.open(replica.task, replica.spec)
        except Exception as error:
            self._put_off(replica, error)
            return
        del self._rebuilding[tp]
        self.applier.obstacles.pop(tp, None)
        replica.failure = None
        replica.store, replica.log, replica.identify = opened.store, opened.log, opened.identify
        self._bring_forward(replica)

    def _put_off(self, replica: Replica, error: Exception) -> None:
        """Say why a rebuild cannot begin, and try again later."""
        tp = replica.topic_partition
        found = self._obstacle_in(error)
        replica.failure = found or str(error) or repr(error)
        if found is not None:
            self.applier.obstacles[tp] = found
        self._reopen_boot_ms = boot_ms() + _REOPEN_MS
        log.error("%s could not be begun anew; tried again in %.0f s: %s", tp, _REOPEN_MS / 1000, replica.failure)

    def _discard_set_aside(self, replica: Replica) -> None:
        self._directory.discard_set_aside(replica.spec.name, replica.task.partition)

    def _keep_house(self) -> None:
        """Try again to open, publish the ends of logs being restored, delete what is expired or long released."""
        self._delete_released()
        if self._reopen_boot_ms is not None and boot_ms() >= self._reopen_boot_ms:
            self._reopen_boot_ms = None
            self._unopenable.clear()
            self._hold_wanted()
            for replica in list(self._rebuilding.values()):
                self._begin_anew(replica)
        self._observe_ends_of_restored()
        for replica in self.replicas.values():
            self._hasten(replica)
        self._sweep_some()

    def _observe_ends_of_restored(self) -> None:
        """Of those that no consumer follows meanwhile; of very many, in turn."""
        sent = boot_ms()
        if sent < self._ends_due_boot_ms:
            return
        restorations = self.bulk_restore.restorations
        if not self._to_ask:
            self._to_ask.extend(restorations)
        asked = [self._to_ask.popleft() for _ in range(min(_ENDS_AT_ONCE, len(self._to_ask)))]
        for tp, end in self._changelog.end_offsets([tp for tp in asked if tp in restorations]).items():
            self.applier.observe_end(restorations[tp].replica, EndOffset(end, sent))
        self._ends_due_boot_ms = boot_ms() + _PAUSE_BY_ASKING * (boot_ms() - sent)

    def _sweep_some(self) -> None:
        """Look for what is expired, replica by replica, for no longer than others can wait."""
        spent_ms = 0.0
        for _ in range(len(self.replicas)):
            if not self._to_sweep:
                self._to_sweep.extend(self.replicas.values())
            begun = boot_ms()
            removed = self._sweep(self._to_sweep.popleft())
            spent_ms += (boot_ms() - begun) / (_PATIENCE_WHERE_EXPIRED if removed else 1)
            if spent_ms >= _MOST_SWEEPING_MS:
                return

    def _sweep(self, replica: Replica) -> int:
        """Delete some of what is expired, and say how much that was; on a disk that refuses, it waits."""
        tp = replica.topic_partition
        held = self.replicas.get((replica.spec.name, replica.task.partition)) is replica
        if not held or tp in self.applier.obstacles or tp in self._rebuilding:
            return 0
        try:
            removed = self._expiry.sweep(replica)
        except Exception as error:
            if tp not in self._failed_sweeps:
                self._failed_sweeps.add(tp)
                log.error("%s: what is expired could not be deleted: %s", tp, self._obstacle_in(error) or error)
            return 0
        self._failed_sweeps.discard(tp)
        return removed

    def _delete_released(self) -> None:
        due = boot_ms() - self._policy.state_cleanup_delay_ms
        for task in [task for task, released in self._released_boot_ms.items() if released <= due]:
            del self._released_boot_ms[task]
            if task not in self._wanted[0]:
                self._on_disk.drop(task)
                for spec in self._topology.stores_of(task):
                    self._directory.delete_store(task, spec.name)
                    self._directory.discard_set_aside(spec.name, task.partition)
                log.info("the stores of task %s, released a while ago, were deleted", task)
