"""Which replicas this worker holds, and in which role: opened and released here."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from forebay.clock import boot_ms
from forebay.logs import LogThrottle
from forebay.state_store import StateStore
from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import OffsetCache, read_positions, record_positions
from forebay_worker.state.storage_faults import meets_all, require_room, storage_fault
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.expiry import Sweeper
from forebay_worker.tasks.recovery import Recovery, RecoveryPolicy
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_view import Doubt
from forebay_worker.tasks.task_cleanup import TaskCleanup

log = logging.getLogger(__name__)

_OPENING_TURN_MS = 100.0
"""How long stores are opened at a stretch before records are applied and assignments received again."""
_REOPEN_MS = 2_000.0

ReplicaTable = Mapping[tuple[str, int], Replica]


class Copy(NamedTuple):
    """What there is of a task on this worker."""

    positions: tuple[int, ...]
    """Of its stores in the topology's order."""
    checked: bool
    """Whether it is open, and a batch of each of its logs was found to continue it."""


class TaskManager:
    """Holds tasks. Everything except reading ``replicas`` happens in the applier's thread.

    ``replicas`` maps (store, partition) to its replica and is replaced as a whole, so readers need no lock.
    """

    def __init__(
        self,
        topology: Topology,
        changelog: Changelog,
        directory: StateDirectory,
        opener: StoreFactory,
        policy: RecoveryPolicy,
        state_cleanup_delay_ms: int,
    ) -> None:
        self._topology = topology
        self._directory = directory
        self._opener = opener
        self._logged = LogThrottle()
        self._recovery = Recovery(changelog, directory, opener, policy, self._keep_house)
        self.applier = self._recovery.applier
        self.bulk_restore = self._recovery.bulk_restore
        self.replicas: ReplicaTable = {}
        self.doubts: Mapping[str, Doubt] = {}
        """What is wrong with the keys of stores: what one partition should not have, another lacks."""
        self._assigned: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(), frozenset())
        self._designating = threading.Lock()
        """Held while roles are given by what is assigned: by a former assignment none must come back."""
        self._on_disk = OffsetCache()
        self._cleanup = TaskCleanup(directory, topology, self._on_disk, state_cleanup_delay_ms)
        self._sweeper = Sweeper(self._recovery.on_damaged, self._recovery.storage_fault_in)
        self._is_assigned = False
        """Whether an assignment said what to hold: until then nothing is known to be released."""
        self._is_stopping = False
        self._never_opened: set[TaskId] = set()
        """Tasks found on disk at the start and not opened since."""
        self._unopened: str | None = None
        self._unopenable: dict[TaskId, str | None] = {}
        """Tasks that could not be opened for reasons of their own since all were last tried, with the storage
        fault if it was one."""
        self._reopen_boot_ms: float | None = None

    def start(self) -> None:
        """Read the offsets of what is on disk, and start to hold it as standby, before any assignment."""
        found = list(self._directory.stores_on_disk())
        strays = [(task, store) for task, store in found if not self._belongs(task, store)]
        on_disk = {task for task, store in found if (task, store) not in strays}
        self._never_opened = set(on_disk)
        for task, store in strays:
            self._cleanup.add(task, store)
        self.bulk_restore.delete_leftovers()
        self._directory.delete_leftovers()
        self._on_disk.load(read_positions(self._directory, self._topology))
        self._assigned = (frozenset(on_disk), frozenset())
        self.applier.start()
        self.applier.run(self._reconcile)

    def hold(self, active: Iterable[TaskId], standby: Iterable[TaskId]) -> None:
        """Adopt an assignment: open what is new, change roles in place, release the rest."""
        self._is_assigned = True
        self._hold(active, standby)

    def _hold(self, active: Iterable[TaskId], standby: Iterable[TaskId]) -> None:
        actives = frozenset(active)
        with self._designating:
            self._assigned = (actives | frozenset(standby), actives)
            # Roles change at once, in the caller's thread: a lease must never cover a role already lost.
            self._designate(self.replicas, actives)
        self.applier.run(self._reconcile)

    def hold_as_standby(self) -> None:
        """Keep holding everything held, active for nothing."""
        self._hold((), self._assigned[0])

    def stop(self) -> None:
        """Close every store."""
        self._is_stopping = True
        self._assigned = (frozenset(), frozenset())
        self.bulk_restore.stop()
        self.applier.run(self._reconcile)
        self.applier.stop()
        record_positions(self._directory, self._topology, self._on_disk.positions())

    @property
    def storage_fault(self) -> str | None:
        """What keeps stores from being opened or written, and the remedy; None if nothing does."""
        of_single_tasks = [found for found in list(self._unopenable.values()) if found is not None]
        return self.machine_storage_fault or next(iter(of_single_tasks), None)

    @property
    def machine_storage_fault(self) -> str | None:
        """The same, of what any task would meet here."""
        of_replicas = (replica.storage_fault for replica in self.replicas.values())
        return next((found for found in of_replicas if found is not None), self._unopened)

    @property
    def matches_assignment(self) -> bool:
        """Whether the tasks held are those last requested."""
        return {replica.task for replica in self.replicas.values()} == self._assigned[0]

    @property
    def checked(self) -> bool:
        """Whether all that was found on disk at the start is open, and was compared with its logs."""
        return not self._never_opened and all(replica.view.checked for replica in self.replicas.values())

    def copies(self, position: Callable[[Replica], int]) -> dict[TaskId, Copy]:
        """The copy of every task on disk, held or not; ``position`` is asked for those of stores that are held.

        A task with a store that is missing or of unknown offset is left out unless it is held, and so is one that
        cannot be opened: another's copy must take over.
        """
        copies: dict[TaskId, Copy] = {}
        for task, on_disk in self._on_disk.positions().items():
            names = self._stores_of(task)
            if names and task not in self._unopenable and on_disk.keys() >= set(names):
                copies[task] = Copy(tuple(on_disk[name] for name in names), checked=False)
        replicas = self.replicas
        for task in {replica.task for replica in replicas.values()}:
            held = [replicas[name, task.partition] for name in self._stores_of(task)]
            copies[task] = Copy(tuple(map(position, held)), all(replica.view.checked for replica in held))
        return copies

    def _stores_of(self, task: TaskId) -> list[str]:
        """The names of a task's stores in the topology's order; none if the topology has no such task."""
        if task.ordinal >= len(self._topology.subtopologies):
            return []
        return [spec.name for spec in self._topology.stores_of(task)]

    def _belongs(self, task: TaskId, store: str) -> bool:
        ordinal = self._topology.ordinal_by_store.get(store)
        if ordinal == task.ordinal and task.partition < self._topology.stores[store].partitions:
            return True
        log.warning(
            "%s/%s does not belong to this topology: it is not opened, and deleted after state_cleanup_delay_ms",
            task,
            store,
        )
        return False

    def _reconcile(self) -> None:
        """Make the tasks held those last requested, whatever was requested when this was queued."""
        assigned = tasks, active = self._assigned
        released = self._release_all_but(tasks) | (self._never_opened - tasks)
        self._never_opened &= tasks
        if self._is_assigned and not self._is_stopping:
            for task in released:
                self._cleanup.add(task)
        until = boot_ms() + _OPENING_TURN_MS
        missing = tasks - {replica.task for replica in self.replicas.values()} - self._unopenable.keys()
        if not self._unopenable:
            self._reopen_boot_ms = None
        elif self._reopen_boot_ms is None:
            self._reopen_boot_ms = boot_ms() + _REOPEN_MS
        for task in sorted(missing, key=lambda task: (task not in active, task)):
            if not self._open_task(task):
                break
            if self._assigned is not assigned:
                # What was requested meanwhile is queued.
                break
            if boot_ms() >= until:
                self.applier.run(self._reconcile)
                break
        else:
            self._unopened = None if missing else self._unopened and self._refusal()
        # The latest request counts: a role that was lost must not come back.
        with self._designating:
            self._designate(self.replicas, self._assigned[1])

    def _release_all_but(self, tasks: frozenset[TaskId]) -> set[TaskId]:
        """Close the stores of all other tasks; returns which tasks these are."""
        gone = [replica for replica in self.replicas.values() if replica.task not in tasks]
        self.replicas = {place: replica for place, replica in self.replicas.items() if replica.task in tasks}
        self._close_all(gone)
        return {replica.task for replica in gone}

    def _close_all(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            try:
                self._close(replica)
            except Exception:
                log.exception("%s could not be closed properly", replica.topic_partition)

    def _open_task(self, task: TaskId) -> bool:
        """Open a task's stores, all or none; False if the machine refuses, as it would for any task."""
        opened: dict[tuple[str, int], Replica] = {}
        try:
            for spec in self._topology.stores_of(task):
                opened[spec.name, task.partition] = self._open(task, spec)
        except Exception as error:
            everywhere = meets_all(error)
            found = storage_fault(error, self._directory.path / ("" if everywhere else str(task)))
            if everywhere:
                self._unopened = found
            else:
                self._unopenable[task] = found
            self._reopen_boot_ms = boot_ms() + _REOPEN_MS
            self._close_all(opened.values())
            if self._logged.allow(f"{found or error}" if everywhere else f"{task}: {found or error}"):
                log.error(
                    "task %s could not be opened; retrying every %.0f s. %s",
                    task,
                    _REOPEN_MS / 1000,
                    found or error,
                    exc_info=found is None,
                )
            return not everywhere
        self.replicas = {**self.replicas, **opened}
        self._never_opened.discard(task)
        self._cleanup.discard(task)
        self._on_disk.drop(task)
        return True

    def _refusal(self) -> str | None:
        """What still keeps stores from being opened, now that none is to be: the disk, or nothing."""
        try:
            require_room(self._directory.path)
        except OSError as error:
            self._reopen_boot_ms = boot_ms() + _REOPEN_MS
            return self._recovery.storage_fault_in(error)
        return None

    def _designate(self, replicas: ReplicaTable, active: frozenset[TaskId]) -> None:
        now = boot_ms()
        for replica in replicas.values():
            if replica.task not in active:
                replica.designate(None)
            elif replica.designated_boot_ms is None:
                replica.designate(now)

    def _open(self, task: TaskId, spec: StoreSpec) -> Replica:
        opened = self._opener.open(task, spec)
        replica = Replica.opened(spec, task, opened.store, opened.log, opened.identify)
        replica.on_corrupted = self._report_damage
        try:
            self._recovery.begin(replica)
        except BaseException:
            # Left open, it would lock its directory.
            with contextlib.suppress(Exception):
                self._recovery.end(replica)
            raise
        return replica

    def _report_damage(self, replica: Replica, store: StateStore, reason: str) -> None:
        self.applier.run(partial(self._recovery.on_unreadable, replica, store, reason))

    def _close(self, replica: Replica) -> None:
        if replica.view.store.persistent and replica.view.restored:
            self._on_disk.put(replica.task, replica.spec.name, replica.view.progress.position)
        # They refer to each other, which nothing collects of what was there when serving began.
        replica.admitted = None
        self._recovery.end(replica)

    def _keep_house(self) -> None:
        """Delete what was released long ago or has expired, retry opening, bring waiting replicas forward."""
        if self._is_assigned:
            self._cleanup.delete_due(self._assigned[0])
        if self._reopen_boot_ms is not None and boot_ms() >= self._reopen_boot_ms:
            self._reopen_boot_ms = None
            self._unopenable.clear()
            self._reconcile()
        views = [replica.served.view for replica in self.replicas.values()]
        self.doubts = {view.spec.name: view.doubt for view in views if view.doubt and not view.log_has_lost}
        self._recovery.keep_up(self.replicas.values())
        self._sweeper.sweep_some(self.replicas.values())
