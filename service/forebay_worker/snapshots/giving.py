"""What a worker gives: checkpoints of its stores, read piece by piece in threads."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import struct
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.clock import boot_ms
from forebay.errors import NotReady, Overloaded, UnknownPath
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.tasks.phases import ReplicaPhase

if TYPE_CHECKING:
    from forebay_worker.tasks.replica import Replica
    from forebay_worker.tasks.replica_view import Doubt

PIECE_BYTES = 256 << 10
"""What a file is read, sent and checked by."""
PIECE_HEAD = struct.Struct(">II")
"""Before each piece: its length in bytes, and its CRC-32."""
_MAX_AT_ONCE = 4
_IDLE_MS = 60_000.0
"""A checkpoint keeps files that the store has compacted: what nobody reads for this long is dropped."""


@dataclass
class StoreCheckpoint:
    """A checkpoint: hard links to a store's files as of one moment, with the offset that belongs to them."""

    path: Path
    files: Mapping[str, int]
    """The size of each in bytes, by name."""
    used_boot_ms: float = field(default_factory=boot_ms)


class Pace:
    """Limits the bytes a second of all who keep to it; 0 sets no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_boot_ms = 0.0
        self._lock = threading.Lock()

    def delay_s(self, count: int) -> float:
        """After which time so many bytes, which now count as sent, may be."""
        if not self.bytes_per_second:
            return 0.0
        with self._lock:
            now = boot_ms()
            self._free_boot_ms = max(now, self._free_boot_ms) + 1000 * count / self.bytes_per_second
            return (self._free_boot_ms - now) / 1000


def sound_store(replica: Replica, doubt: Doubt | None) -> RocksDbStore:
    """A replica's store, if a copy of it is as good as a replay; raises ``NotReady``.

    That is one that is restored, consistent, without ``doubt``, and can prove in which log it is.
    """
    view, store, tp = replica.view, replica.view.store, replica.topic_partition
    is_sound = view.checked and view.consistent and view.proof is not None and not view.diverged
    in_doubt = doubt is not None or replica.predecessor is not None
    if not is_sound or in_doubt or replica.phase is not ReplicaPhase.FOLLOWING or replica.failure is not None:
        raise NotReady(f"{tp} is not in a state to be copied.", retry_after_s=5)
    if not isinstance(store, RocksDbStore):
        raise NotReady(f"The store {replica.spec.name!r} is not RocksDB's.", retry_after_s=60)
    return store


class Snapshots:
    """The checkpoints that other workers are reading; each method may wait for the disk, in any thread."""

    def __init__(self, directory: Path, bytes_per_second: int = 0) -> None:
        self.pace = Pace(bytes_per_second)
        self._directory = directory
        self._lock = threading.Lock()
        self._taken: dict[str, StoreCheckpoint] = {}
        # What a killed worker left holds space.
        shutil.rmtree(directory, ignore_errors=True)

    def take(self, store: RocksDbStore, *, kept: bool = False) -> tuple[str, StoreCheckpoint]:
        """A checkpoint of a store, and its name; raises ``Overloaded``, and what RocksDB raises.

        One that is ``kept`` stays until it is dropped, however long nobody reads it.
        """
        self._drop_idle()
        name = secrets.token_hex(16)
        path = self._directory / name
        with self._lock:
            if len(self._taken) >= _MAX_AT_ONCE:
                raise Overloaded(f"{_MAX_AT_ONCE} workers take copies already.", retry_after_s=5)
            self._taken[name] = StoreCheckpoint(path, {})
        try:
            self._directory.mkdir(exist_ok=True)
            store.checkpoint(path)
            files = {file.name: file.stat().st_size for file in path.iterdir()}
            self._taken[name] = StoreCheckpoint(path, files, math.inf if kept else boot_ms())
        except BaseException:
            self.drop(name)
            raise
        return name, self._taken[name]

    def piece(self, snapshot: str, file: str, offset: int) -> bytes:
        """A file's next piece after its head, nothing at the end; raises ``UnknownPath``."""
        taken, left = self._left(snapshot, file, offset)
        taken.used_boot_ms = max(taken.used_boot_ms, boot_ms())
        with open(taken.path / file, "rb", buffering=0) as opened:
            piece = os.pread(opened.fileno(), min(PIECE_BYTES, left), offset)
        return PIECE_HEAD.pack(len(piece), zlib.crc32(piece)) + piece if piece else b""

    def size_of_pieces(self, snapshot: str, file: str, offset: int) -> int:
        """How many bytes all pieces have from an offset on, their heads included; raises ``UnknownPath``."""
        _, left = self._left(snapshot, file, offset)
        return left + PIECE_HEAD.size * -(-left // PIECE_BYTES)

    def _left(self, snapshot: str, file: str, offset: int) -> tuple[StoreCheckpoint, int]:
        """What a copy is of, and how many bytes a file of it has from an offset on; raises ``UnknownPath``."""
        taken = self._taken.get(snapshot)
        if taken is None or file not in taken.files:
            raise UnknownPath("There is no such copy, or nobody has read it for a minute; take another.")
        return taken, max(0, taken.files[file] - offset)

    def drop(self, snapshot: str) -> None:
        """Remove a checkpoint, which need not be there."""
        with self._lock:
            taken = self._taken.pop(snapshot, None)
        if taken is not None:
            shutil.rmtree(taken.path, ignore_errors=True)

    def _drop_idle(self) -> None:
        for name, taken in list(self._taken.items()):
            if boot_ms() - taken.used_boot_ms >= _IDLE_MS:
                self.drop(name)

    def close(self) -> None:
        """Remove all."""
        for name in list(self._taken):
            self.drop(name)
