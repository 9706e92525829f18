"""Rows as records for Spark's own Kafka sink, in Spark's own expressions: no function of Python's is run."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import SinkError
from forebay.partitioning import Murmur2Partitioner
from forebay_changelog.record_headers import DELETED_HEADER, VALID_FROM_HEADER, heartbeat_key
from forebay_spark.column_murmur2 import murmur2_partition
from forebay_spark.columns import Layout
from forebay_spark.expressions import hex64

_SAFE_INTEGER = (1 << 53) - 1
_WRITTEN_OTHERWISE = "[\x0b\x0e\x0f\x1a-\x1f]"
"""Characters whose escapes Spark writes in capitals, unlike RFC 8785."""


def kafka_columns(df: DataFrame, layout: Layout) -> DataFrame:
    """The columns ``key``, ``value``, ``partition`` and, for versioned stores and those with ``latest_by``,
    ``headers``.

    Raises ``SinkError`` for what cannot be written so; rows that cannot fail the query, with the reason.
    """
    spec = layout.spec
    if not isinstance(spec.stream_partitioner, Murmur2Partitioner):
        raise SinkError(
            f"{spec.name!r} has the partitioner {spec.partitioner!r}, which kafka_columns cannot compute; "
            "sink.write(…) can."
        )
    if layout.order_by and not spec.store_kind.keeps_versions:
        raise SinkError(
            f"{spec.name!r}: order_by= has no effect in Spark's own Kafka sink. Aggregate by the key, so that a "
            "batch has one row of each, or use sink.write(…)."
        )
    encoded = layout.encode(df)
    # Under names of their own: within a lambda, Spark takes a name for a column of the same select.
    encoded = encoded.withColumn("text", _json_key(layout) if layout.key_columns.as_json else F.col("key"))
    encoded = encoded.withColumn("plain", _checked(layout, F.col("text")))
    columns = [
        (F.concat("plain", _suffix(layout)) if layout.key_columns.suffix else F.col("plain")).alias("key"),
        F.coalesce("value", F.lit("").cast("binary")).alias("value") if spec.latest_by else F.col("value"),
        murmur2_partition(F.col("plain"), spec.partitions).alias("partition"),
    ]
    if spec.store_kind.keeps_versions:
        columns.append(_valid_from(layout).alias("headers"))
    if spec.latest_by is not None:
        columns.append(
            F.when(F.col("value").isNull(), _header(DELETED_HEADER, F.lit("").cast("binary"))).alias("headers")
        )
    return encoded.select(*columns)


def _json_key(layout: Layout) -> Column:
    """RFC 8785 canonical JSON of an array of strings, integers, booleans and nulls."""
    parts: list[Column] = []
    for name, kind in zip(layout.key, layout.key_types, strict=True):
        part = F.col("key")[name]
        text = _json_text(part, name) if isinstance(kind, T.StringType) else _json_number(part, kind)
        if layout.null_keys == "keep":
            text = F.coalesce(text, F.lit("null"))
        parts += [F.lit(","), text]
    return F.concat(F.lit("["), *parts[1:], F.lit("]")).cast("binary")


def _json_text(part: Column, name: str) -> Column:
    # Spark's JSON would replace what is no UTF-8, so that several keys became one.
    unreadable = F.lit(f"WriteRefused: a row's key is not valid UTF-8 (column {name!r}).")
    escaped = F.to_json(F.struct(part.alias("v")))
    refusal = F.lit(
        "WriteRefused: a row's key contains a control character for which only sink.write(…) writes the canonical "
        "JSON. Remove it, or use sink.write(…)."
    )
    text = F.substr(escaped, F.lit(6), F.length(escaped) - F.lit(6))
    return (
        F.when(~F.is_valid_utf8(part), F.raise_error(unreadable).cast("string"))
        .when(part.rlike(_WRITTEN_OTHERWISE), F.raise_error(refusal).cast("string"))
        .when(part.isNotNull(), text)
    )


def _json_number(part: Column, kind: T.DataType) -> Column:
    if not isinstance(kind, T.LongType):
        return part.cast("string")
    refusal = F.lit(
        "WriteRefused: a row's key contains an integer beyond 2^53, which JSON keys cannot: cast it to string."
    )
    beyond = (part > _SAFE_INTEGER) | (part < -_SAFE_INTEGER)
    return F.when(beyond, F.raise_error(refusal).cast("string")).otherwise(part.cast("string"))


def _checked(layout: Layout, key: Column) -> Column:
    """The key, unless it is null, reserved or unreadable."""
    shown = ", ".join(repr(name) for name in layout.key)
    cases = [
        (key.isNull(), f"a row has a null key (column {shown}). Filter such rows, or choose null_keys='drop'"),
        (
            F.startswith(key, F.lit(heartbeat_key(""))),
            "a row's key is reserved for heartbeats (it begins with NUL, 'forebay-heartbeat', NUL)",
        ),
    ]
    if layout.spec.key in ("string", "json"):
        cases.append((~F.is_valid_utf8(key.cast("string")), f"a row's key is not valid UTF-8 (column {shown})"))
    checked = key
    for wrong, finding in cases:
        refusal = F.raise_error(F.lit(f"WriteRefused: {layout.spec.name}: {finding}.")).cast("binary")
        checked = F.when(wrong, refusal).otherwise(checked)
    return checked


def _valid_from(layout: Layout) -> Column:
    """A version's valid-from travels in a header: Spark's Kafka sink sets no timestamps."""
    time_ms = F.col("timestamp_ms")
    refusal = F.lit(
        f"WriteRefused: {layout.spec.name}: a row has a null valid-from (column {layout.order_by[0]!r})."
    )
    value = F.when(time_ms.isNull(), F.raise_error(refusal).cast("binary")).otherwise(F.unhex(hex64(time_ms)))
    return _header(VALID_FROM_HEADER, value)


def _header(name: str, value: Column) -> Column:
    return F.array(F.struct(F.lit(name).alias("key"), value.alias("value")))


def _suffix(layout: Layout) -> Column:
    """A window's times, or the record's order, unless that is null."""
    what = f"a null order (latest_by, column {layout.spec.latest_by!r})"
    if layout.spec.latest_by is None:
        what = f"a null window or session (column {layout.window!r}), or one without a start or an end"
    refusal = F.lit(f"WriteRefused: {layout.spec.name}: a row has {what}.")
    return F.coalesce("suffix", F.raise_error(refusal).cast("binary"))
