"""The in-memory store: nothing outlives the process, everything is rebuilt from the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

from sortedcontainers import SortedDict

from forebay.stores import CommittedOffset
from forebay.tasks import TopicPartition


class MemoryStore:
    """One partition of one store in a sorted map. One thread writes, any thread reads."""

    persistent = False
    manages_offsets = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._content: SortedDict[bytes, bytes] = SortedDict()
        self._changes: dict[bytes, bytes | None] = {}
        self._offsets: dict[TopicPartition, CommittedOffset] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a stored key."""
        return self._content.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several stored keys, all as of one commit."""
        with self._lock:
            return [self._content.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``start <= key < end``, as of the first step."""
        with self._lock:
            found = [
                (key, self._content[key])
                for key in self._content.irange(start, end, inclusive=(True, False), reverse=reverse)
            ]
        yield from found

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the next commit."""
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key with the next commit."""
        self._changes[key] = None

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Let readers see what was collected, all of it at once to those that take the lock."""
        with self._lock:
            for key, value in self._changes.items():
                if value is None:
                    self._content.pop(key, None)
                else:
                    self._content[key] = value
            self._offsets = {**self._offsets, **changelog_offsets}
        self._changes = {}

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """The offset of the last commit; a store just opened has none."""
        return self._offsets.get(topic_partition)

    def flush(self) -> None:
        """Nothing is durable."""

    def close(self) -> None:
        """Nothing to release; a read under way must not find the store suddenly empty."""
