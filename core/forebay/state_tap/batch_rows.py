"""The rows of one batch, on their way from the state to a store's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from forebay.changelog.base import Rows
from forebay.partitioning import Murmur2Partitioner
from forebay.state_tap.murmur2_lanes import partitions_of
from forebay.state_tap.plain_conversion import StoreRecord
from forebay.topology import StoreSpec

_RECORDS_AT_ONCE = 2048


class BatchRows:
    """Records by partition, the last of each key. They are in the order of their keys, so that a repeat of a batch
    writes the same."""

    def __init__(self, spec: StoreSpec) -> None:
        self._partitions_of = _partitions_of(spec)
        self._rows: dict[int, dict[bytes, bytes | None]] = {}
        self.count = 0

    def add_all(self, records: Iterable[StoreRecord]) -> None:
        """Add records in their order."""
        remaining = iter(records)
        while some := list(islice(remaining, _RECORDS_AT_ONCE)):
            plains, keys, values = zip(*some, strict=True)
            self._put(self._partitions_of(plains), keys, values)
            self.count += len(some)

    def by_partition(self) -> Rows:
        """The key and value of each partition's rows, to be iterated over once."""
        return {partition: _sorted(rows) for partition, rows in self._rows.items()}

    def _put(self, partitions: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        for partition in set(partitions).difference(self._rows):
            self._rows[partition] = {}
        by_partition = self._rows
        for partition, key, value in zip(partitions, keys, values, strict=True):
            by_partition[partition][key] = value


def _sorted(rows: dict[bytes, bytes | None]) -> Iterable[tuple[bytes, bytes | None]]:
    keys = sorted(rows)
    return zip(keys, map(rows.__getitem__, keys), strict=True)


def _partitions_of(spec: StoreSpec) -> Callable[[Sequence[bytes]], Sequence[int]]:
    partitions = spec.partitions
    if type(spec.stream_partitioner) is Murmur2Partitioner:
        return lambda keys: partitions_of(keys, partitions)
    return lambda keys: [spec.partition_of(key) for key in keys]
