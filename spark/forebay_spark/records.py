"""A DataFrame's rows as records of a store, in Spark's own expressions: no function of Python's is run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.codecs.keys import TOTAL_KEYS
from forebay.partitioning import Murmur2Partitioner
from forebay.store_spec import StoreSpec
from forebay_changelog.record_headers import DELETED_HEADER, VALID_FROM_HEADER, heartbeat_key
from forebay_spark.columns import EMITTED, Layout
from forebay_spark.kind_columns import columns_of, hex64, quoted
from forebay_spark.murmur2 import murmur2_partition

_SAFE_INTEGER = (1 << 53) - 1
_WRITTEN_OTHERWISE = "\x0b\x0e\x0f\x1a\x1b\x1c\x1d\x1e\x1f"
"""Characters whose escapes Spark writes with capitals, unlike RFC 8785."""
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class RecordColumns:
    """The columns of one layout's records."""

    layout: Layout
    session: SparkSession
    by_producer: bool = False
    """Whether a record's partition is left to Kafka's producer where its default finds it: without a suffix."""

    def of(self, df: DataFrame) -> DataFrame:
        """Columns ``partition`` (unless it is the producer's), ``key`` (with its suffix), ``value``,
        ``timestamp_ms`` (versioned stores) and those of the order.

        A row that cannot be written fails the query with ``WriteRefused`` and the reason.
        """
        if self.layout.chosen.null_keys == "drop":
            for name in self.layout.chosen.key:
                df = df.where(F.col(quoted(name)).isNotNull())
        return df.select(*self._parts).select(*self._records)

    # Created once: each takes many calls into the JVM.
    @cached_property
    def _parts(self) -> list[Column]:
        layout = self.layout
        parts = [_checked(layout, _plain_key(layout)).alias("plain"), _value(layout).alias("value")]
        if suffix := columns_of(layout.spec).suffix:
            refusal = _refused(layout, _null_suffix(layout), "binary")
            parts.append(F.coalesce(suffix(layout), refusal).alias("suffix"))
        if layout.spec.store_kind.keeps_versions:
            [name] = layout.chosen.order_by
            what = f"valid-from (column {name!r}, which order_by= names)"
            refusal = _refused(layout, _null(what, ", or give them a time from which they are valid"), "long")
            parts.append(F.coalesce(F.unix_millis(F.col(quoted(name))), refusal).alias("timestamp_ms"))
        orders = zip(layout.chosen.order_by, layout.order_names, strict=True)
        return parts + [_order(layout, *names) for names in orders]

    @cached_property
    def _records(self) -> list[Column]:
        layout, plain = self.layout, F.col("plain")
        has_suffix = columns_of(layout.spec).suffix is not None
        key = F.concat(plain, F.col("suffix")) if has_suffix else plain
        columns = [key.alias("key"), F.col("value")]
        if has_suffix or not self.by_producer:
            columns.insert(0, self._partition(plain).alias("partition"))
        if layout.spec.store_kind.keeps_versions:
            columns.append(F.col("timestamp_ms"))
        return columns + [F.col(name) for name in layout.order_names]

    def _partition(self, plain: Column) -> Column:
        spec, partitioner = self.layout.spec, self.layout.spec.stream_partitioner
        assert partitioner is not None
        if isinstance(partitioner, Murmur2Partitioner):
            return murmur2_partition(plain, spec.partitions, self.session)
        partitions = spec.partitions
        return F.udf(lambda key: partitioner.partition(bytes(key), partitions), T.IntegerType())(plain)


def kafka_records(records: DataFrame, spec: StoreSpec) -> DataFrame:
    """The columns for Spark's own Kafka sink, which sets no timestamps: ``headers`` where a record needs any.

    A version's valid-from travels in a header. So does the deletion of a key with an order, whose tombstone
    would be compacted away before what it is to supersede.
    """
    columns = [F.col(name) for name in ("partition", "key") if name in records.columns]
    value = F.col("value")
    if spec.store_kind.keeps_versions:
        valid_from = F.unhex(hex64(F.col("timestamp_ms")))
        return records.select(*columns, value, _header(VALID_FROM_HEADER, valid_from).alias("headers"))
    if spec.latest_by is None:
        return records.select(*columns, value)
    nothing = F.lit("").cast("binary")
    deleted = F.when(value.isNull(), _header(DELETED_HEADER, nothing))
    return records.select(*columns, F.coalesce(value, nothing).alias("value"), deleted.alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.array(F.struct(F.lit(name).alias("key"), value.alias("value")))


def _refused(layout: Layout, finding: str | Column, kind: str) -> Column:
    """Fails the query with ``WriteRefused``, where a column of this type is expected."""
    named = F.lit(f"WriteRefused: {layout.spec.name}: ")
    return F.raise_error(F.concat(named, F.lit(finding) if isinstance(finding, str) else finding)).cast(kind)


def _plain_key(layout: Layout) -> Column:
    codec = layout.spec.key
    if not layout.chosen.key:
        return F.lit(TOTAL_KEYS[codec]).cast("binary")
    if codec == "json":
        return _json_key(layout)
    column = F.col(quoted(layout.chosen.key[0]))
    if codec == "int32":
        return F.unhex(F.substring(hex64(column), 9, 8))
    if codec == "int64":
        return F.unhex(hex64(column))
    return column.cast("binary")


def _json_key(layout: Layout) -> Column:
    """RFC 8785 canonical JSON of an array of strings, integers, booleans and nulls."""
    parts: list[Column] = []
    for name in layout.chosen.key:
        part, kind = F.col(quoted(name)), layout.schema[name].dataType
        is_text = isinstance(kind, T.StringType)
        text = _json_text(layout, part, name) if is_text else _json_number(layout, part, kind)
        if layout.chosen.null_keys == "keep":
            text = F.coalesce(text, F.lit("null"))
        parts += [F.lit(","), text]
    return F.concat(F.lit("["), *parts[1:], F.lit("]")).cast("binary")


def _json_text(layout: Layout, part: Column, name: str) -> Column:
    # Spark's JSON would replace what is no UTF-8, so that several keys became one.
    unreadable = _refused(layout, _unreadable(name), "string")
    text = _json_of(part)
    # Not after an odd number of backslashes: those escape one another.
    in_small = functools.reduce(
        lambda text, one: F.regexp_replace(text, rf"(?<!\\)((?:\\\\)*)\\u{ord(one):04X}", rf"$1\\u{ord(one):04x}"),
        _WRITTEN_OTHERWISE,
        text,
    )
    text = F.when(part.rlike(f"[{_WRITTEN_OTHERWISE}]"), in_small).otherwise(text)
    return F.when(F.is_valid_utf8(part), text).when(part.isNotNull(), unreadable)


def _json_number(layout: Layout, part: Column, kind: T.DataType) -> Column:
    if not isinstance(kind, T.LongType):
        return part.cast("string")
    shown = F.concat(
        F.lit("The key "),
        part.cast("string"),
        F.lit(" contains an integer beyond 2^53, which JSON keys cannot: cast it to string."),
    )
    beyond = (part > _SAFE_INTEGER) | (part < -_SAFE_INTEGER)
    return F.when(beyond, _refused(layout, shown, "string")).otherwise(part.cast("string"))


def _checked(layout: Layout, key: Column) -> Column:
    """The key, unless it is null, reserved or unreadable."""
    names = f"key (column {', '.join(map(repr, layout.chosen.key))})"
    cases = [
        (key.isNull(), _null(names, ", or choose null_keys='drop' or, for the key codec json, 'keep'")),
        (
            F.startswith(key, F.lit(heartbeat_key(""))),
            "A row's key is reserved for heartbeats (it begins with NUL, 'forebay-heartbeat', NUL).",
        ),
    ]
    # A JSON key's texts were checked one by one.
    if layout.spec.key == "string" and layout.chosen.key:
        cases.append((~F.is_valid_utf8(key.cast("string")), _unreadable(*layout.chosen.key)))
    checked = key
    for wrong, finding in cases:
        checked = F.when(wrong, _refused(layout, finding, "binary")).otherwise(checked)
    return checked


def _value(layout: Layout) -> Column:
    columns = [F.col(quoted(name)) for name in layout.value]
    if not columns:
        value = F.lit("{}")
    elif layout.chosen.flatten:
        value = _json_of(columns[0])
    else:
        value = F.to_json(F.struct(*columns), _JSON_OPTIONS)
    binary = value.cast("binary")
    if layout.chosen.delete is None:
        return binary
    return F.when(F.col(quoted(layout.chosen.delete)), F.lit(None).cast("binary")).otherwise(binary)


def _json_of(column: Column) -> Column:
    """The JSON of one column: {"v":1} without what surrounds it. Spark has none for single numbers and texts."""
    text = F.to_json(F.struct(column.alias("v")), _JSON_OPTIONS)
    return F.substr(text, F.lit(6), F.length(text) - F.lit(6))


def _order(layout: Layout, name: str, alias: str) -> Column:
    # It grows within each task, which has all rows of a key that one operator has emitted.
    emitted = name == EMITTED and name not in layout.schema.names
    return (F.monotonically_increasing_id() if emitted else F.col(quoted(name))).alias(alias)


def _null(what: str, remedy: str = "") -> str:
    return f"A row has a null {what}. Filter such rows before the sink{remedy}."


def _null_suffix(layout: Layout) -> str:
    if layout.spec.latest_by is None:
        return _null(f"window or session (column {layout.window!r}), or one without a start or an end")
    name = f"order (column {layout.spec.latest_by!r}, the store's latest_by)"
    return _null(name, ", or give them the lowest order there is")


def _unreadable(name: str) -> str:
    return (
        f"A row's key is not valid UTF-8 (column {name!r}), so nobody could ask for it. Filter such "
        'rows before the sink, or give the store the key codec "bytes".'
    )
