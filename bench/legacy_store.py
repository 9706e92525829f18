"""A RocksDB that does not manage its offsets, as in Kafka Streams before KIP-1035: it has no log of its own, and
it is flushed before each checkpoint."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from forebay.state_store import CommittedOffset
from forebay.task_ids import TopicPartition

SUPPLIER = "bench-legacy"
_ENTRY_POINTS = f"[forebay.stores]\n{SUPPLIER} = {__name__}:LegacyStore\n"
_ROOT = Path(__file__).parents[1]


class LegacyStore:
    """One partition of one store, whose offset is in the task's ``.checkpoint``."""

    persistent = True
    manages_offsets = False

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(path / "rocksdb"), options=options)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True
        self._batch = WriteBatch(raw_mode=True)

    def get(self, key: bytes) -> bytes | None:
        """The value of a stored key."""
        value: bytes | None = self._db.get(key)
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several stored keys."""
        return [self._db.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``start <= key < end``; all at once, since this is only asked at the start."""
        found = [(key, value) for key, value in self._db.items(from_key=start) if key < end]
        return iter(found[::-1] if reverse else found)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the next commit."""
        self._batch.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key with the next commit."""
        self._batch.delete(key)

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write what was collected, into memory alone."""
        self._db.write(self._batch, write_opt=self._unlogged)
        self._batch = WriteBatch(raw_mode=True)

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """None: it keeps no offsets."""
        return None

    def flush(self) -> None:
        """Make what was committed durable."""
        self._db.flush()

    def close(self) -> None:
        """Release the files."""
        self._db.close()


@contextlib.contextmanager
def installed(directory: Path) -> Iterator[None]:
    """The store as if its package were installed, in this process and in those that it starts meanwhile."""
    information = directory / "bench_legacy-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-legacy\nVersion: 1\n")
    (information / "entry_points.txt").write_text(_ENTRY_POINTS)
    before = os.environ.get("PYTHONPATH")
    sys.path.append(str(directory))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), str(_ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
