"""Computes a key's partition in Spark's own expressions, which also run where Python functions do not."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from forebay.partitioning import SEED, M

_WORD = (1 << 32) - 1


def murmur2_partition(key: Column, partitions: int) -> Column:
    """The partition of a binary column's keys by Kafka's Java default, as ``Murmur2Partitioner`` computes it."""
    length = F.length(key)
    blocks = F.floor(length / 4).cast("int")
    numbers = F.when(blocks > 0, F.sequence(F.lit(0), blocks - 1)).otherwise(F.array().cast("array<int>"))
    start = F.lit(SEED).bitwiseXOR(length.cast("long"))
    hashed = F.aggregate(
        numbers, start, lambda h, i: _mixed(h, _word_at(key, 4 * i + 1, F.lit(4))), _finished(key)
    )
    return (hashed.bitwiseAND(F.lit(0x7FFFFFFF)) % partitions).cast("int")


def _mixed(h: Column, word: Column) -> Column:
    k = _times_m(word)
    k = _times_m(k.bitwiseXOR(F.shiftright(k, 24)))
    return _times_m(h).bitwiseXOR(k)


def _finished(key: Column) -> Callable[[Column], Column]:
    length = F.length(key)
    rest = length % 4

    def finish(h: Column) -> Column:
        last = _times_m(h.bitwiseXOR(_word_at(key, length - rest + 1, rest)))
        h = F.when(rest > 0, last).otherwise(h)
        h = _times_m(h.bitwiseXOR(F.shiftright(h, 13)))
        return h.bitwiseXOR(F.shiftright(h, 15))

    return finish


def _times_m(word: Column) -> Column:
    # Less than 2^32 times 2^31: a long holds it.
    return (word * F.lit(M)).bitwiseAND(F.lit(_WORD))


def _word_at(key: Column, position: Column, count: Column) -> Column:
    """The little-endian word of up to four bytes from a position on, counted from 1; missing bytes are 0."""
    digits = F.rpad(F.hex(F.substr(key, position, count)), 8, "0")
    word = F.conv(digits, 16, 10).cast("long")
    return (
        F.shiftleft(word.bitwiseAND(F.lit(0xFF)), 24)
        .bitwiseOR(F.shiftleft(word.bitwiseAND(F.lit(0xFF00)), 8))
        .bitwiseOR(F.shiftright(word, 8).bitwiseAND(F.lit(0xFF00)))
        .bitwiseOR(F.shiftright(word, 24))
    )
