"""Opens stores: chooses the kind, decides whether state on disk can be trusted, and migrates old offset files."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from forebay.errors import ChangelogError, ChangelogUnreachable, TopologyError
from forebay.state_store import CommittedOffset, StateStore, StoreCorrupted
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import STORE_ENTRY_POINTS
from forebay_changelog import Changelog
from forebay_worker.state.checkpoint_file import CheckpointFile, CheckpointFileError
from forebay_worker.state.checkpointed_store import CheckpointedStore
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.fsync import write_durably
from forebay_worker.state.inspection import IDENTITY_NAME, read_identity
from forebay_worker.state.memory import MemoryStore
from forebay_worker.state.reserved_records import StoreIdentity, difference, store_identity
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory, StoreOptions
from forebay_worker.state.storage_faults import in_use, storage_fault

log = logging.getLogger(__name__)

StoreSupplier = Callable[[str, Path], StateStore]


@dataclass
class OpenedStore:
    """A store, and the identity of its log (None while that is unavailable)."""

    store: StateStore
    log: str | None
    identify: Callable[[str], None]
    """Makes the store record, from its next commit on, which log it was built from."""


@dataclass(frozen=True)
class StoreFactory:
    """Opens the stores of one state directory."""

    directory: StateDirectory
    changelog: Changelog
    memory: RocksDbMemory
    checkpoint_interval_ms: int
    _checkpoints: dict[TaskId, CheckpointFile] = field(default_factory=dict)

    def open(self, task: TaskId, spec: StoreSpec) -> OpenedStore:
        """Open a store; one that cannot be read, or has another identity, makes way and is started from empty.

        Raises any error of the store's supplier. A storage fault is raised too: a refusal by the disk is not the
        store's fault.
        """
        if spec.supplier == "memory":
            return OpenedStore(MemoryStore(spec.name), self._log_now(task, spec), lambda log: None)
        path = self.directory.store_path(task, spec.name)
        self.directory.finish_deletion(task, spec.name)
        open_at = self._open_rocksdb if spec.supplier == "rocksdb" else self._open_supplied
        try:
            return open_at(path, task, spec)
        except StoreCorrupted as corrupted:
            # Whatever found it, at whatever step: nothing of it is used.
            if not path.exists():
                raise
            self._make_way(task, spec, str(corrupted))
        return open_at(path, task, spec)

    def open_set_aside(self, path: Path, name: str) -> RocksDbStore:
        """Open a RocksDB store that was set aside, for reading only; raises ``rocksdict``'s errors."""
        return RocksDbStore(name, path, self.memory.options(), read_only=True)

    def check_copy(self, path: Path, task: TaskId, spec: StoreSpec) -> CommittedOffset:
        """The offset of a copy of another worker's store, which from now on waits for the log to confirm it.

        Until an end of the log was reached from there, it is a store that is being restored. Raises
        ``StoreCorrupted`` if it was built from something else, or cannot prove in which log.
        """
        tp = TopicPartition(spec.topic, task.partition)
        with closing(RocksDbStore(spec.name, path, self.memory.options(StoreOptions.of(spec)))) as store:
            _require_same_origin(store, store.identity, task, spec)
            committed = store.committed_offset(tp)
            if committed is None or committed.proof is None:
                raise StoreCorrupted("it does not say where in its log it is")
            unconfirmed = committed._replace(restored=False)
            store.commit({tp: unconfirmed})
            store.flush()
            return unconfirmed

    def _open_rocksdb(self, path: Path, task: TaskId, spec: StoreSpec) -> OpenedStore:
        tp = TopicPartition(spec.topic, task.partition)
        store, existed = self._rocksdb(path, task, spec)

        def identify(log: str) -> None:
            store.set_identity(store_identity(log, spec, task.partition))

        with _closed_on_error(store):
            found = store.identity
            _require_same_origin(store, found, task, spec)
            if found is not None:
                return OpenedStore(store, found.log, identify)
            log_identity = self._log_now(task, spec)
            if log_identity is not None:
                identify(log_identity)
            if existed:
                self._migrate_offsets(store, path, tp)
            _require_offset(store, tp)
        return OpenedStore(store, log_identity, identify)

    def _rocksdb(self, path: Path, task: TaskId, spec: StoreSpec) -> tuple[RocksDbStore, bool]:
        existed = (path / "CURRENT").exists()
        if not existed:
            self._forget_offsets(path, TopicPartition(spec.topic, task.partition))
        try:
            return RocksDbStore(spec.name, path, self.memory.options(StoreOptions.of(spec))), existed
        except StoreCorrupted:
            raise
        except Exception as error:
            _raise_as_corrupted(error, path)
            raise

    def _open_supplied(self, path: Path, task: TaskId, spec: StoreSpec) -> OpenedStore:
        """Open a user's store. Its identity is kept in a separate file in the store's directory."""
        tp = TopicPartition(spec.topic, task.partition)
        log_identity, found = self._log_now(task, spec), _identity_of_supplied(path)
        if found is not None:
            log_identity = log_identity or found.log
            other = difference(found, store_identity(log_identity, spec, task.partition))
            if other is not None:
                raise StoreCorrupted(other)
        # One that was deleted may have left an empty directory.
        existed = path.exists() and any(path.iterdir())
        if not existed:
            self._forget_offsets(path, tp)
        path.mkdir(parents=True, exist_ok=True)
        factory = _supplier(spec.supplier)
        try:
            store = factory(spec.name, path)
        except Exception as error:
            if existed:
                _raise_as_corrupted(error, path)
            raise

        def identify(log: str) -> None:
            if store.persistent:
                write_durably(
                    path / IDENTITY_NAME, json.dumps(store_identity(log, spec, task.partition).document())
                )

        with _closed_on_error(store):
            if log_identity is not None:
                identify(log_identity)
            try:
                if not store.manages_offsets:
                    return OpenedStore(self._checkpointed(store, path, task, tp), log_identity, identify)
                if existed:
                    self._migrate_offsets(store, path, tp)
                _require_offset(store, tp)
            except StoreCorrupted:
                _require_own_directory(existed, path, spec)
                raise
        return OpenedStore(store, log_identity, identify)

    def _checkpointed(self, store: StateStore, path: Path, task: TaskId, tp: TopicPartition) -> StateStore:
        """A store whose offset is kept in a checkpoint file; raises ``StoreCorrupted`` if it is not there."""
        # One for all stores of the task: it tracks how old each line is.
        checkpoint = self._checkpoints.setdefault(task, CheckpointFile.of(path.parents[1]))
        checkpoint.drop_malformed()
        if tp not in checkpoint.read() and store.persistent and _has_records(store):
            # A replay from the beginning over its content would bring back deleted keys.
            raise StoreCorrupted("its offset is unknown")
        return CheckpointedStore(store, checkpoint, tp, self._end(tp), self.checkpoint_interval_ms)

    def _migrate_offsets(self, store: StateStore, path: Path, tp: TopicPartition) -> None:
        """Migrate the offset of an old ``.checkpoint`` or ``.position`` file into a store that has none, once.

        The file's line is removed only after the store has it, so an interruption repeats this and loses nothing.
        Content may be ahead of such an offset, so it is at no point of history before the log's present end.
        """
        for file in self._offset_files(path, tp):
            try:
                offset = file.read().get(tp)
            except CheckpointFileError as error:
                log.error("%s", error)
                continue
            if offset is None:
                continue
            if store.committed_offset(tp) is None:
                pending_end = max(offset, self._end(tp))
                since = file.moment_epoch_ms()
                store.commit({tp: CommittedOffset(offset, pending_end=pending_end, replay_since_epoch_ms=since)})
                store.flush()
                log.info("%s: offset %d migrated from %s", tp, offset, file.path)
            file.remove(tp)

    def _forget_offsets(self, path: Path, tp: TopicPartition) -> None:
        """Drop the offset of a store that is not there, durably, before an empty one is begun in its place.

        The empty one must not resume at an offset that it doesn't have, wherever its opening fails or is killed.
        """
        path.parents[1].mkdir(parents=True, exist_ok=True)
        for file in self._offset_files(path, tp):
            file.drop_malformed()
            file.remove(tp)

    def _offset_files(self, path: Path, tp: TopicPartition) -> list[CheckpointFile]:
        """The files that may have an offset of the store at a path.

        A ``.position`` file stays behind when its store is relocated, and is found by the store's unique name.
        """
        positions = sorted(self.directory.path.glob(f"[0-9]*_{tp.partition}/{path.name}.position"))
        return [CheckpointFile.of(path.parents[1]), *map(CheckpointFile, positions)]

    def _make_way(self, task: TaskId, spec: StoreSpec, reason: str) -> None:
        aside = self.directory.make_way(task, spec.name)
        where = "deleted" if aside is None else f"moved to {aside}"
        log.error("%s of task %s is not usable: %s; %s and rebuilt", spec.name, task, reason, where)

    def _log_now(self, task: TaskId, spec: StoreSpec) -> str | None:
        try:
            return self.changelog.identity(spec.topic, task.partition)
        except ChangelogError as error:
            log.warning("%s: %s", spec.name, error)
            return None

    def _end(self, tp: TopicPartition) -> int:
        """The log's present end; raises ``ChangelogUnreachable``, since it must be known how far content may be
        ahead."""
        ends = self.changelog.end_offsets([tp])
        if tp not in ends:
            raise ChangelogUnreachable(
                f"The end of {tp} is not available, but is needed to migrate an offset kept beside its store."
            )
        return ends[tp]


@contextlib.contextmanager
def _closed_on_error(store: StateStore) -> Iterator[None]:
    """Close a store if it is not going to be used: left open, it would lock its directory."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            store.close()
        raise


def _identity_of_supplied(path: Path) -> StoreIdentity | None:
    try:
        return read_identity(path)
    except (TypeError, ValueError) as error:
        raise StoreCorrupted(f"its identity cannot be read ({error})") from error


def _raise_as_corrupted(error: Exception, path: Path) -> None:
    """Raise ``StoreCorrupted`` for a store that exists and cannot be opened, unless the machine is at fault."""
    if path.exists() and storage_fault(error, path) is None and not in_use(error):
        raise StoreCorrupted(f"it cannot be opened ({error})") from error


def _require_offset(store: StateStore, tp: TopicPartition) -> None:
    """Raise ``StoreCorrupted`` if a store that manages its offsets has records but no offset."""
    if store.committed_offset(tp) is None and _has_records(store):
        raise StoreCorrupted("it contains records but no offset")


def _require_same_origin(store: RocksDbStore, found: StoreIdentity | None, task: TaskId, spec: StoreSpec) -> None:
    """Raise ``StoreCorrupted`` if a store was built from something else, or does not record from what."""
    if found is not None:
        other = difference(found, store_identity(found.log, spec, task.partition))
        if other is not None:
            raise StoreCorrupted(other)
    elif store.committed_offset(TopicPartition(spec.topic, task.partition)) is not None:
        raise StoreCorrupted("it does not record which log it was built from")


def _require_own_directory(existed: bool, path: Path, spec: StoreSpec) -> None:
    """Raise ``TopologyError`` if a store has records in a newly created directory."""
    if not existed:
        raise TopologyError(
            f"the store {spec.name!r} has records although {path} was just created: a store of the class "
            f"{spec.supplier!r} must keep its content in the directory that it is given."
        )


def _has_records(store: StateStore) -> bool:
    return next(store.scan(USER_TAG, END_OF_USER_KEYS), None) is not None


def _supplier(name: str) -> StoreSupplier:
    """An installed supplier, as those of a topology are."""
    found: StoreSupplier = next(iter(entry_points(group=STORE_ENTRY_POINTS, name=name))).load()
    return found
