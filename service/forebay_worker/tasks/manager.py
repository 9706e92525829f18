"""Which replicas this worker holds, and in which role: opened, followed, rebuilt and released here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from forebay.changelog import Changelog
from forebay.errors import ChangelogError
from forebay.lag import boot_ms
from forebay.tasks import TaskId
from forebay.topology import StoreSpec, Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.rocksdb import RocksDbMemory, RocksDbStore, StoreIdentity
from forebay_worker.tasks.applier import Applier
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

CAUGHT_UP = -2
"""Stands for "at the end" among a member's offsets, Kafka Streams' ``LATEST_OFFSET``."""

ReplicaTable = Mapping[tuple[str, int], Replica]


class TaskManager:
    """Holds tasks. Everything but reading ``replicas`` happens in the applier's thread.

    ``replicas`` maps (store, partition) to its replica and is replaced as a whole, so readers need no lock.
    """

    def __init__(
        self,
        topology: Topology,
        changelog: Changelog,
        directory: StateDirectory,
        memory: RocksDbMemory,
        poll_interval_ms: int,
        apply_records_per_second: int,
    ) -> None:
        self._topology = topology
        self._changelog = changelog
        self._directory = directory
        self._memory = memory
        self.applier = Applier(changelog, poll_interval_ms, apply_records_per_second, self._rebuild)
        self.replicas: ReplicaTable = {}
        self._wanted: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(), frozenset())
        self.released: Callable[[], None] = lambda: None
        """Called after replicas left ``replicas`` and before they are closed: returns when no read uses them."""

    def start(self) -> None:
        """Hold what is on disk as standby, before any assignment, and begin to follow the log."""
        on_disk = {task for task, store in self._directory.stores_on_disk() if self._belongs(task, store)}
        self._wanted = (frozenset(on_disk), frozenset())
        self.applier.start()
        self.applier.call(self._hold_wanted).result()

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
        self.applier.call(self._hold_wanted).result()
        self.applier.stop()

    def offsets(self) -> dict[TaskId, int]:
        """Sum of the store positions of each task held, ``CAUGHT_UP`` for a running active one."""
        sums: dict[TaskId, int] = {}
        for replica in self.replicas.values():
            position = replica.progress.position if replica.complete else 0
            sums[replica.task] = sums.get(replica.task, 0) + position
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
        replicas = dict(self.replicas)
        gone = [replica for replica in replicas.values() if replica.task not in tasks]
        for replica in gone:
            del replicas[replica.spec.name, replica.task.partition]
        self.replicas = replicas
        if gone:
            self.released()
        for replica in gone:
            self.applier.unfollow(replica)
            replica.store.close()
        held = {replica.task for replica in replicas.values()}
        for task in sorted(tasks - held):
            for spec in self._topology.stores_of(task):
                replicas[spec.name, task.partition] = self._open(task, spec)
            self.replicas = dict(replicas)
        self._designate(self.replicas, active)

    def _designate(self, replicas: ReplicaTable, active: frozenset[TaskId]) -> None:
        now = boot_ms()
        for replica in replicas.values():
            if replica.task not in active:
                replica.designated_boot_ms = None
            elif replica.designated_boot_ms is None:
                replica.designated_boot_ms = now

    def _open(self, task: TaskId, spec: StoreSpec) -> Replica:
        store, log_identity = self._open_store(task, spec)
        replica = Replica(spec, task, store, log_identity)
        self.applier.follow(replica)
        return replica

    def _open_store(self, task: TaskId, spec: StoreSpec) -> tuple[RocksDbStore, str | None]:
        path = self._directory.store_path(task, spec.name)
        store = self._open_trusted(path, task, spec)
        found = store.identity
        if found is not None:
            return store, found.log
        try:
            log_identity = self._changelog.identity(spec.topic)
        except ChangelogError as error:
            log.warning("%s: %s", spec.name, error)
            return store, None
        store.set_identity(_identity(log_identity, task, spec))
        return store, log_identity

    def _open_trusted(self, path: Path, task: TaskId, spec: StoreSpec) -> RocksDbStore:
        """Open a store; one that cannot be read, or is another's, is set aside and begun anew."""
        try:
            store = RocksDbStore(spec.name, path, self._memory.options())
            found = store.identity
        except Exception as error:
            if not path.exists():
                raise
            reason = f"it cannot be opened ({error})"
        else:
            if found is None or found == _identity(found.log, task, spec):
                return store
            store.close()
            reason = f"it holds {found}"
        aside = self._directory.set_aside(task, spec.name)
        log.error("the store %s is not usable: %s; moved to %s and rebuilt from the log", path, reason, aside)
        return RocksDbStore(spec.name, path, self._memory.options())

    def _rebuild(self, replica: Replica, reason: str) -> None:
        log.error("%s-%d: %s; it is rebuilt", replica.spec.name, replica.task.partition, reason)
        self.applier.unfollow(replica)
        replica.diverged = True
        closing = replica.store
        closing.close()
        self._directory.discard(self._directory.set_aside(replica.task, replica.spec.name))
        replica.store, replica.log = self._open_store(replica.task, replica.spec)
        replica.complete = False
        replica.misplaced_key = None
        replica.stream_time_ms = None
        self.applier.follow(replica)


def _identity(log_identity: str, task: TaskId, spec: StoreSpec) -> StoreIdentity:
    return StoreIdentity(log_identity, spec.topic, task.partition, spec.kind, spec.key, spec.value)
