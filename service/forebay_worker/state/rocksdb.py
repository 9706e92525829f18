"""The persistent store: one RocksDB, its changelog offsets in the records' own column family.

An offset in another column family can be lost apart from ingested data when a process is killed; under a reserved
key among the records it is in the same memtable, the same write batch and the same SST file as they are (KIP-1035
requires exactly this atomicity).
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocksdict import (
    AccessType,
    Checkpoint,
    DbClosedError,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from forebay.clock import boot_ms
from forebay.errors import ForebayError
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.task_ids import TopicPartition
from forebay_worker.state.reserved_records import (
    IDENTITY_KEY,
    OFFSET_KEY,
    StoreIdentity,
    offsets_from_json,
    offsets_to_json,
)
from forebay_worker.state.storage_faults import in_use, require_room, storage_fault

log = logging.getLogger(__name__)
_SIZES = ("live-sst-files-size", "cur-size-all-mem-tables", "estimate-num-keys")
_CLOSING_DEADLINE_MS = 10_000.0
_CLOSE_RETRY_S = 0.001


def _raise_if_damage(error: Exception) -> None:
    """Raise ``StoreCorrupted`` if an error means that a store's files are damaged or gone.

    RocksDB's errors can be recognised only by their text.
    """
    text = str(error)
    if text.startswith("Corruption: ") or os.strerror(errno.ENOENT) in text:
        raise StoreCorrupted(f"its store is damaged ({error})") from error


@contextmanager
def _damage_as_corruption() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _raise_if_damage(error)
        raise


def _walk(cursor: RdictIter, step: Callable[[], object]) -> Iterator[tuple[bytes, bytes]]:
    """What is at a cursor and after it. ``Rdict.items`` would take damage for the end, and leave out the rest."""
    valid, key, value = cursor.valid, cursor.key, cursor.value
    with _damage_as_corruption():
        while valid():
            yield key(), value()
            step()
        cursor.status()


class NotInMemory(Exception):
    """What a read needs must be read from disk first."""

    def __init__(self, store: RocksDbStore, key: bytes) -> None:
        self.store = store
        self.key = key


class StoreSize(NamedTuple):
    """What a store takes: bytes of its files and of its write buffers, and RocksDB's estimate of its keys."""

    disk_bytes: int
    write_buffer_bytes: int
    keys: int


class RocksDbStore:
    """The ``StateStore`` of one partition. One thread writes, any thread reads.

    Raises ``rocksdict``'s errors if the directory cannot be opened. Every method raises ``StoreCorrupted`` if it
    meets damage.
    """

    persistent = True
    manages_offsets = True

    def __init__(self, name: str, path: Path, options: Options, *, read_only: bool = False) -> None:
        self.name = name
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._db = self._opened(AccessType.read_only() if read_only else AccessType.read_write())
        self._batch = WriteBatch(raw_mode=True)
        self._identity_to_commit: bytes | None = None
        self._refused = False
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        try:
            self._offsets = self._read_offsets()
        except BaseException:
            # Left open, it would lock its directory.
            self.close()
            raise

    def _opened(self, access: AccessType) -> Rdict:
        # Its column family is named, or it would get the options that were saved when it was last opened, with a
        # block cache of its own that counts for no limit.
        families = {"default": self._options}
        return Rdict(str(self.path), self._options, column_families=families, access_type=access)

    @property
    def identity(self) -> StoreIdentity | None:
        """What the store was built from, None before its first commit."""
        raw = self.get(IDENTITY_KEY)
        if raw is None:
            return None
        try:
            return StoreIdentity(**json.loads(raw))
        except (TypeError, ValueError) as error:
            raise StoreCorrupted(f"its identity cannot be read ({error})") from error

    def _read_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        raw = self.get(OFFSET_KEY)
        try:
            return offsets_from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorrupted(f"its offset cannot be read ({error!r})") from error

    def set_identity(self, identity: StoreIdentity) -> None:
        """Record, with the next commit, what the store is built from."""
        self._identity_to_commit = json.dumps(identity.document()).encode()

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            _raise_if_damage(error)
            raise
        return value

    def get_from_memory(self, key: bytes) -> bytes | None:
        """The same, but raises ``NotInMemory`` where a disk would have to be read."""
        try:
            found = cast("tuple[bool, bytes | None]", self._db.key_may_exist(key, fetch=True))
        except Exception as error:
            _raise_if_damage(error)
            raise
        may_exist, value = found
        if not may_exist:
            # Said of damage too. If it is true, all that shows it is in memory.
            return self.get(key)
        # No value is empty: this is what RocksDB makes of an index that is not in memory, or damaged.
        if not value:
            raise NotInMemory(self, key)
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several stored keys; releases the GIL meanwhile."""
        try:
            return cast("list[bytes | None]", self._db.get(cast("list[Any]", keys)))
        except Exception as error:
            _raise_if_damage(error)
            raise

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``start <= key < end``, as of the call."""
        options = ReadOptions()
        # Not the lower bound: rocksdict 0.3.29 sets it as the upper one.
        options.set_iterate_upper_bound(end)
        with _damage_as_corruption():
            cursor = self._db.iter(options)
        if reverse:
            cursor.seek_to_last()
            return itertools.takewhile(lambda item: item[0] >= start, _walk(cursor, cursor.prev))
        cursor.seek(start)
        return _walk(cursor, cursor.next)

    def checkpoint(self, path: Path) -> None:
        """Link the store's files, as of now, into a new directory; any thread may call it."""
        with _damage_as_corruption():
            Checkpoint(self._db).create_checkpoint(str(path))

    def size(self) -> StoreSize:
        """What the store takes; costs some microseconds, whatever its size."""
        return StoreSize(*(int(self._db.property_int_value(f"rocksdb.{name}") or 0) for name in _SIZES))

    def put(self, key: bytes, value: bytes) -> None:
        self._batch.put(key, value)

    def delete(self, key: bytes) -> None:
        self._batch.delete(key)

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write records and offsets in one batch of RocksDB's own log.

        If the disk refuses, what was collected is dropped, and the next commit first reopens the store, once there
        is space: RocksDB writes nothing more after its log has failed. Reads continue meanwhile. Raises
        ``StoreCorrupted`` if it cannot be reopened, and ``ForebayError`` if that shows that more was written.
        """
        batch, self._batch = self._batch, WriteBatch(raw_mode=True)
        self._reopen_if_refused()
        offsets = {**self._offsets, **changelog_offsets}
        if offsets:
            # Not without need: ingesting a file over a key in memory flushes the memory first.
            batch.put(OFFSET_KEY, offsets_to_json(offsets))
        if self._identity_to_commit is not None:
            batch.put(IDENTITY_KEY, self._identity_to_commit)
        with self._writing():
            self._db.write(batch)
        self._identity_to_commit = None
        self._offsets = offsets

    def ingest(self, path: Path, topic_partition: TopicPartition, committed: CommittedOffset) -> None:
        """Ingest a sorted file made by ``write_sst``, which contains this offset, the store's only one; the file
        is moved."""
        self._reopen_if_refused()
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        with self._writing():
            self._db.ingest_external_file([str(path)], options)
        self._offsets = {topic_partition: committed}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._refused = True
            _raise_if_damage(error)
            raise

    def _reopen_if_refused(self) -> None:
        if not self._refused:
            return
        known = self._offsets
        self._reopen()
        self._refused = False
        if self._offsets != known:
            raise ForebayError("What the disk had refused was written after all; it is continued from there.")

    def _reopen(self) -> None:
        try:
            require_room(self.path)
            self.close()
            self._db = self._opened(AccessType.read_write())
            found = self._read_offsets()
        except Exception as error:
            if storage_fault(error, self.path) is not None or in_use(error):
                raise
            raise StoreCorrupted(f"its store can be neither written nor opened again ({error})") from error
        # The last commit may have been written although it failed, but an earlier one cannot be missing.
        behind = [
            tp for tp, known in self._offsets.items() if tp not in found or found[tp].position < known.position
        ]
        if behind:
            self.close()
            raise StoreCorrupted("its store was opened again without what it had committed")
        self._offsets = found

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        return self._offsets.get(topic_partition)

    def flush(self) -> None:
        self._db.flush()

    def close(self) -> None:
        """Flush and release the directory once no thread reads it any more.

        Reads that begin meanwhile or later raise ``DbClosedError``. Closing a closed store does nothing.
        """
        db, self._db = self._db, _CLOSED
        try:
            _close_unread(db)
        except DbClosedError:
            pass
        except Exception as error:
            # It is closed, or will be after the last read; everything committed is in RocksDB's log.
            log.warning("the store %s could not be flushed: %s", self.path, error)


class _Closed:
    """Takes the place of the database in a closed store."""

    def __getattr__(self, name: str) -> Any:
        raise DbClosedError("The store is closed.")


_CLOSED = cast(Rdict, _Closed())


def _close_unread(db: Rdict) -> None:
    """Close a database as soon as no other thread is inside one of its calls.

    ``rocksdict`` refuses to close during a call that has released the GIL, such as that for many keys.
    """
    deadline = boot_ms() + _CLOSING_DEADLINE_MS
    while True:
        try:
            return db.close()
        except RuntimeError:
            if boot_ms() > deadline:
                raise
            time.sleep(_CLOSE_RETRY_S)
