"""The keys of a batch, found to be in partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple, TypeAlias

from forebay.bounded_cache import of_one_store
from forebay.codecs.keys import from_segment
from forebay.errors import Problem
from forebay.store_spec import StoreSpec
from forebay.wire.answers import problem_answer
from forebay.wire.batches import KeyResult, key_result


class KeyForm(NamedTuple):
    """One key of a store; ``partition`` is None if the partitioner is unknown."""

    plain: bytes
    partition: int | None
    stored: bytes
    """Its stored key, or what those of its entries begin with."""
    document: bytes
    """How the documents of its answers begin."""


KeyForms = Callable[[bytes], KeyForm]
"""The forms of a key by its URL segment as received; raises ``BadKey``."""


def key_forms(spec: StoreSpec, stores: int) -> KeyForms:
    """Those of a store which is one of so many."""

    def work_out(segment: bytes) -> KeyForm:
        plain = from_segment(spec.key_codec, segment)
        partition = None if spec.stream_partitioner is None else spec.partition_of(plain)
        document = b'{"store":"%b","key":%b' % (spec.name_bytes, spec.key_codec.to_json(plain))
        return KeyForm(plain, partition, spec.stored_keys.prefix(plain), document)

    return of_one_store(work_out, stores)


PartitionOf: TypeAlias = Callable[[bytes], int]
"""The partition of a plain key; raises ``Problem``."""


class LocatedKeys:
    """A batch's keys by partition, and by place the results of those that have none."""

    def __init__(self, count: int, faults: dict[int, KeyResult]) -> None:
        self.count = count
        self.faults = faults
        self._by_partition: dict[int, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))

    def placing(self, plains: Iterable[tuple[int, bytes]], partition_of: PartitionOf) -> Iterator[None]:
        """Add keys, one with each step."""
        by_partition = self._by_partition
        for index, plain in plains:
            try:
                indices, found = by_partition[partition_of(plain)]
            except Problem as problem:
                self.faults[index] = key_result(problem_answer(problem))
            else:
                indices.append(index)
                found.append(plain)
            yield

    def at(self, only: Set[int] | None) -> Iterable[tuple[int, tuple[list[int], list[bytes]]]]:
        """Partitions with the places and plain bytes of their keys, all or ``only`` those at some places."""
        if only is None:
            yield from self._by_partition.items()
            return
        for partition, (indices, plains) in self._by_partition.items():
            kept = [number for number, index in enumerate(indices) if index in only]
            if kept:
                yield partition, ([indices[number] for number in kept], [plains[number] for number in kept])


def without_repeats(
    places: list[int], plains: list[bytes]
) -> tuple[list[int], list[bytes], Sequence[tuple[int, int]]]:
    """Places and plain bytes of keys without repeated ones, and of these the place and that of the first."""
    if len(set(plains)) == len(plains):
        return places, plains, ()
    firsts: dict[bytes, int] = {}
    repeats = [
        (place, first)
        for place, plain in zip(places, plains, strict=True)
        if (first := firsts.setdefault(plain, place)) != place
    ]
    return list(firsts.values()), list(firsts), repeats
