"""The rows of one batch, on their way from the state to a store's log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from forebay.partitioning import SEED, M, Murmur2Partitioner
from forebay.store_spec import StoreSpec
from forebay_changelog.base import Rows
from forebay_tap.conversion import StoreRecord
from forebay_tap.spilled_rows import SpilledRows

_WORD = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_RECORDS_AT_ONCE = 2048
_HELD_BYTES = 64 << 20
_ROW_BYTES = 200
"""What a row takes in memory beside the bytes of its key and value."""
_READ_BYTES = 1 << 20


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """The partition of each key, as ``Murmur2Partitioner`` has it."""
    lengths = list(map(len, keys))
    if len(set(lengths)) == 1:
        return [hashed % partitions for hashed in _positive_hashes(keys)]
    positions: dict[int, list[int]] = {}
    for at, length in enumerate(lengths):
        positions.setdefault(length, []).append(at)
    found = [0] * len(keys)
    for alike in positions.values():
        for at, hashed in zip(alike, _positive_hashes([keys[at] for at in alike]), strict=True):
            found[at] = hashed % partitions
    return found


def _positive_hashes(keys: Sequence[bytes]) -> Sequence[int]:
    """MurmurHash2 of keys that are equally long, without its sign."""
    count, length = len(keys), len(keys[0])
    each_lane = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
    word = each_lane * _WORD
    words = _words(keys)
    h = each_lane * ((SEED ^ length) & _WORD)
    for k in words[: length // 4]:
        k = k * M & word
        h = (h * M & word) ^ ((k ^ k >> 24 & word) * M & word)
    for rest in words[length // 4 :]:
        h = (h ^ rest) * M & word
    h ^= h >> 13 & word
    h = h * M & word
    h ^= h >> 15 & word
    return struct.unpack(f"<{count}Q", (h & each_lane * _POSITIVE).to_bytes(8 * count, "little"))


def _words(keys: Sequence[bytes]) -> list[int]:
    """The first word of every key in lanes, the second, and so on, the last filled up with zeros."""
    count, padding = len(keys), bytes(-len(keys[0]) % 4)
    per_key = (len(keys[0]) + len(padding)) // 4
    words = struct.unpack(f"<{count * per_key}I", b"".join([key + padding for key in keys]))
    return [int.from_bytes(struct.pack(f"<{count}Q", *words[at::per_key]), "little") for at in range(per_key)]


class BatchRows:
    """Records by partition, the last of each key. They are in the order of their keys, so that a repeat of a batch
    writes the same.

    ``held_bytes`` bounds what is in memory: what is beyond it goes to ``SpilledRows``.
    """

    def __init__(self, spec: StoreSpec, held_bytes: int = _HELD_BYTES) -> None:
        self._partitions_of = _partitions_of(spec)
        self._max_bytes = held_bytes
        self._rows: dict[int, dict[bytes, bytes | None]] = {}
        self._bytes = 0
        self._runs: SpilledRows | None = None
        self.count = 0

    def add_all(self, records: Iterable[StoreRecord]) -> None:
        """Add records in their order."""
        remaining = iter(records)
        while some := list(islice(remaining, _RECORDS_AT_ONCE)):
            plains, keys, values = zip(*some, strict=True)
            self._put(self._partitions_of(plains), keys, values)
            self.count += len(some)
            if self._bytes > self._max_bytes:
                self._spill()

    def by_partition(self) -> Rows:
        """The key and value of each partition's rows, to be iterated over once."""
        if self._runs is None:
            return {partition: _sorted(rows) for partition, rows in self._rows.items()}
        self._spill()
        return {partition: self._runs.rows(partition) for partition in self._runs.partitions()}

    def _put(self, partitions: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        for partition in set(partitions).difference(self._rows):
            self._rows[partition] = {}
        by_partition = self._rows
        for partition, key, value in zip(partitions, keys, values, strict=True):
            by_partition[partition][key] = value
        self._bytes += _ROW_BYTES * len(keys) + sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def _spill(self) -> None:
        self._runs = self._runs or SpilledRows()
        rows = sum(map(len, self._rows.values()))
        self._runs.append(self._rows, max(1, rows * _READ_BYTES // max(1, self._bytes)))
        self._rows, self._bytes = {}, 0


def _sorted(rows: dict[bytes, bytes | None]) -> Iterable[tuple[bytes, bytes | None]]:
    keys = sorted(rows)
    return zip(keys, map(rows.__getitem__, keys), strict=True)


def _partitions_of(spec: StoreSpec) -> Callable[[Sequence[bytes]], Sequence[int]]:
    partitions = spec.partitions
    if type(spec.stream_partitioner) is Murmur2Partitioner:
        return lambda keys: partitions_of(keys, partitions)
    return lambda keys: [spec.partition_of(key) for key in keys]
