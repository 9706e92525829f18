"""Which partition a key belongs to."""

from __future__ import annotations

import struct
from typing import Protocol

SEED = 0x9747B28C
M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORD = struct.Struct("<I")


class StreamPartitioner(Protocol):
    """Chooses a key's partition, as Kafka Streams' interface of the same name does."""

    def partition(self, key: bytes, partitions: int) -> int:
        """The partition, in ``range(partitions)``, of a key in its codec's plain bytes."""


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 that Kafka's Java clients use, as a signed integer."""
    length = len(data)
    whole = length & ~3
    h = (SEED ^ length) & _MASK
    for (k,) in _WORD.iter_unpack(data[:whole]):
        k = k * M & _MASK
        h = (h * M ^ (k ^ k >> 24) * M) & _MASK
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & _MASK
    h ^= h >> 13
    h = h * M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


class Murmur2Partitioner:
    """Kafka's Java default for keyed records: ``(murmur2(key) & 0x7fffffff) % partitions``."""

    def partition(self, key: bytes, partitions: int) -> int:
        """The key's partition."""
        return (murmur2(key) & 0x7FFFFFFF) % partitions
