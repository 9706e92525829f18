"""Computes the partitions of many keys at once.

Imports only ``forebay.partitioning`` and numpy: the Spark sink ships both modules to executors that may lack
forebay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.partitioning import SEED, M


def murmur2_partitions(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any], partitions: int
) -> npt.NDArray[np.int32]:
    """Partitions of many keys at once, by Kafka's Java default.

    ``data`` holds the keys' bytes one after another, key ``i`` at ``offsets[i]:offsets[i + 1]`` (the layout
    of an Arrow binary array). Returns one partition per key.
    """
    starts = offsets[:-1].astype(np.int64)
    lengths = (offsets[1:] - offsets[:-1]).astype(np.int64)
    m = np.uint32(M)
    h = np.uint32(SEED) ^ lengths.astype(np.uint32)
    padded = np.concatenate([data, np.zeros(4, dtype=np.uint8)])
    blocks = lengths >> 2
    for i in range(int(blocks.max(initial=0))):
        rows = np.nonzero(blocks > i)[0]
        k = _little_endian(padded, starts[rows] + 4 * i) * m
        k ^= k >> np.uint32(24)
        h[rows] = (h[rows] * m) ^ (k * m)
    rest = lengths & 3
    rows = np.nonzero(rest)[0]
    if rows.size:
        word = _little_endian(padded, starts[rows] + 4 * blocks[rows])
        kept = (np.uint32(1) << (8 * rest[rows]).astype(np.uint32)) - np.uint32(1)
        h[rows] = (h[rows] ^ (word & kept)) * m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    chosen: npt.NDArray[np.int32] = ((h & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    return chosen


def _little_endian(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    word = data[at].astype(np.uint32)
    for byte in range(1, 4):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word
