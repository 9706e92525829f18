"""The in-memory store: nothing outlives the process; everything is rebuilt from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from threading import Lock

from sortedcontainers import SortedDict

from forebay.state_store import CommittedOffset
from forebay.task_ids import TopicPartition

_FIRST_CHUNK = 16
_LARGEST_CHUNK = 1024
"""Entries that a scan takes at once, while commits wait."""


class MemoryStore:
    """The ``StateStore`` of one partition in a sorted map. One thread writes, any thread reads."""

    persistent = False
    manages_offsets = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._content: SortedDict[bytes, bytes] = SortedDict()
        self._changes: dict[bytes, bytes | None] = {}
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._scans: dict[int, dict[bytes, bytes | None]] = {}
        """For each scan under way, the previous values of keys that changed since its first step, None if they did
        not exist."""

    def get(self, key: bytes) -> bytes | None:
        return self._content.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several stored keys, all as of one commit."""
        with self._lock:
            return [self._content.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``start <= key < end``, as of the first step."""
        earlier: dict[bytes, bytes | None] = {}
        size = _FIRST_CHUNK
        with self._lock:
            self._scans[id(earlier)] = earlier
        try:
            while True:
                with self._lock:
                    keys = list(islice(self._content.irange(start, end, (True, False), reverse), size))
                    found = {key: self._content[key] for key in keys}
                    low, high = start, end
                    if len(keys) == size:
                        low, high = (keys[-1], end) if reverse else (start, keys[-1] + b"\x00")
                    changed = {key: value for key, value in earlier.items() if low <= key < high}
                if changed:
                    found = {key: value for key, value in {**found, **changed}.items() if value is not None}
                    yield from sorted(found.items(), reverse=reverse)
                else:
                    yield from found.items()
                if len(keys) < size:
                    return
                start, end = (start, low) if reverse else (high, end)
                size = min(2 * size, _LARGEST_CHUNK)
        finally:
            # Without the lock: the garbage collector may end a scan in the thread that commits.
            del self._scans[id(earlier)]

    def put(self, key: bytes, value: bytes) -> None:
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Make collected changes visible to readers, all at once for those that take the lock."""
        with self._lock:
            scans = list(self._scans.values())
            for key, value in self._changes.items():
                for earlier in scans:
                    earlier.setdefault(key, self._content.get(key))
                if value is None:
                    self._content.pop(key, None)
                else:
                    self._content[key] = value
            self._offsets = {**self._offsets, **changelog_offsets}
        self._changes = {}

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        return self._offsets.get(topic_partition)

    def flush(self) -> None:
        """Nothing is durable."""

    def close(self) -> None:
        """Nothing to release; a read under way must not find the store suddenly empty."""
