"""Computes a key's partition by Kafka's Java default in Spark's own expressions."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from forebay.partitioning import SEED, M

_WORD = (1 << 32) - 1
_HASH = "org.apache.commons.codec.digest.MurmurHash2"
"""Spark comes with it. Its 32-bit hash is Kafka's, with the same seed, so no jar of Kafka's is needed."""


def murmur2_partition(key: Column, partitions: int, session: SparkSession) -> Column:
    """The partition of a binary column's keys, as ``Murmur2Partitioner`` computes it.

    Where a session has no JVM of its own, as through Spark Connect, it is computed in SQL functions, which take
    a hundred times longer.
    """
    hashed = _hash_of_java(key, session) if hasattr(session, "_jsparkSession") else _hash_in_sql(key)
    return (hashed.bitwiseAND(0x7FFFFFFF) % partitions).cast("int")


def _hash_of_java(key: Column, session: SparkSession) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = session._jvm
    assert jvm is not None
    hashes = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_HASH)
    expressions, to_sequence = jvm.org.apache.spark.sql.classic.ExpressionUtils, jvm.PythonUtils.toSeq
    invoke = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke
    integer = getattr(getattr(jvm.org.apache.spark.sql.types, "IntegerType$"), "MODULE$")
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    arguments = to_sequence([expressions.expression(one._jc) for one in (key, F.length(key))])
    call = invoke(hashes, integer, "hash32", arguments, to_sequence([]), True, False, True, none)
    return ClassicColumn(expressions.column(call))


def _hash_in_sql(key: Column) -> Column:
    length = F.length(key)
    blocks = F.floor(length / 4).cast("int")
    numbers = F.when(blocks > 0, F.sequence(F.lit(0), blocks - 1)).otherwise(F.array().cast("array<int>"))
    start = F.lit(SEED).bitwiseXOR(length.cast("long"))
    return F.aggregate(numbers, start, lambda h, i: _mixed(h, _word_at(key, 4 * i + 1, F.lit(4))), _finished(key))


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
