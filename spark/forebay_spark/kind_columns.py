"""How rows become records of each kind of store, in Spark's own expressions.

Why a table here, and not members of the kinds: what reads a store must not need Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import SinkError
from forebay.record_orders import LOWEST_ORDER, ORDER_MARK
from forebay.store_spec import StoreSpec

if TYPE_CHECKING:
    from forebay_spark.columns import Layout

_TYPES_OF_ORDERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.TimestampType)
_MARKS = {"window": ("window()", "spark.timeWindow"), "session": ("session_window()", "spark.sessionWindow")}
"""By kind, the function of Spark's that makes its column, and Spark's mark in the column's metadata."""


def hex64(column: Column) -> Column:
    """The 16 hexadecimal digits of a 64-bit two's complement integer."""
    return F.lpad(F.hex(column.cast("long")), 16, "0")


def quoted(name: str) -> str:
    """A column's name as Spark reads it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class KindColumns:
    """What a kind needs of a DataFrame's columns."""

    window: Callable[[DataFrame, StoreSpec, tuple[str, ...]], str | None]
    """The window's column, None if the kind needs none; raises ``SinkError`` if the columns, with those of
    ``order_by``, do not fit the store."""
    suffix: Callable[[Layout], Column] | None = None
    """What follows a key in the log, if anything does."""
    updates: bool = True
    """Whether a query writes in update mode, unless Spark does not run it so."""
    snapshot_refusal: str | None = None
    """Why ``Sink.fill`` takes no snapshot; None if it does."""


def columns_of(spec: StoreSpec) -> KindColumns:
    """What a store's kind needs."""
    return KIND_COLUMNS[spec.store_kind.layout_name]


def _check_order(df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> None:
    assert spec.latest_by is not None
    kind = df.schema[spec.latest_by].dataType
    if not isinstance(kind, _TYPES_OF_ORDERS):
        raise SinkError(
            f"{spec.name!r} has latest_by = {spec.latest_by!r}, but that column is {kind.simpleString()}: an "
            "order is an integer of up to 64 bits, or a timestamp. Make a column of that name which is one."
        )
    _check_no_window(df, spec, (spec.latest_by, *order_by))


def _order(layout: Layout) -> Column:
    """A key's end with its order (``with_order``), null if that is null."""
    name = layout.spec.latest_by
    assert name is not None
    column, kind = F.col(quoted(name)), layout.schema[name].dataType
    order = F.unix_micros(column) if isinstance(kind, T.TimestampType) else column.cast("long")
    # As bytes, the lowest sorts first.
    return F.unhex(F.concat(F.lit(ORDER_MARK.hex()), hex64(order.bitwiseXOR(F.lit(LOWEST_ORDER)))))


def _start(layout: Layout) -> Column:
    """When a row's window starts; fails the query if it is as long as no window of the store."""
    (start, end), size_ms = _times_ms(layout), layout.spec.window_size_ms
    assert size_ms is not None
    # The store keeps only a window's start, and computes its end.
    refusal = F.format_string(
        f"WriteRefused: a window of %d ms was written, but window_size_ms of the store is {size_ms}. Make "
        "them equal; a different length needs a new store.",
        end - start,
    )
    # A window that is null is refused with all other parts of keys.
    return F.when(end - start == size_ms, F.unhex(hex64(start))).when(
        (end - start).isNotNull(), F.raise_error(refusal).cast("binary")
    )


def _end_and_start(layout: Layout) -> Column:
    """When a row's session ends and starts."""
    start, end = _times_ms(layout)
    return F.unhex(F.concat(hex64(end), hex64(start)))


def _check_valid_from(df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> None:
    names = df.schema.fieldNames()
    valid_from = order_by[0] if len(order_by) == 1 and order_by[0] in names else None
    if valid_from is None or not isinstance(df.schema[valid_from].dataType, T.TimestampType):
        raise SinkError(
            f"{spec.name!r} is a versioned store: order_by= must name one timestamp column, from which each "
            "version is valid."
        )


def _times_ms(layout: Layout) -> tuple[Column, Column]:
    """When a row's window starts and ends."""
    assert layout.window is not None
    start, end = (F.unix_millis(F.col(quoted(layout.window))[name]) for name in ("start", "end"))
    return start, end


def _window_column(df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str:
    """The one column made by the function of Spark's for the store's kind, which must not be the other one."""
    made_by, _ = _MARKS[spec.kind]
    [(made_by_other, other_mark)] = (marks for kind, marks in _MARKS.items() if kind != spec.kind)
    starts = {
        field.name: field.dataType["start"].dataType
        for field in df.schema.fields
        if isinstance(field.dataType, T.StructType) and field.dataType.fieldNames() == ["start", "end"]
    }
    windows = [name for name, start in starts.items() if isinstance(start, T.TimestampType)]
    of_local_time = [name for name, start in starts.items() if isinstance(start, T.TimestampNTZType)]
    if not windows and of_local_time:
        raise SinkError(
            f"The windows in {of_local_time[0]!r} for {spec.name!r} are of times without a zone (timestamp_ntz), "
            "which are no points in time: cast the event time to timestamp before window() or session_window()."
        )
    if len(windows) != 1:
        raise SinkError(
            f"{spec.name!r} is a {spec.kind} store and needs one column made by {made_by}; there are "
            f"{len(windows)}."
        )
    if other_mark in df.schema[windows[0]].metadata:
        raise SinkError(
            f"The column {windows[0]!r} was made by {made_by_other}, but {spec.name!r} is a {spec.kind} store, "
            f"which needs one made by {made_by}."
        )
    return windows[0]


def _check_no_window(df: DataFrame, spec: StoreSpec, order: tuple[str, ...]) -> None:
    for field in df.schema.fields:
        for kind, (made_by, mark) in _MARKS.items():
            if mark in field.metadata and isinstance(field.dataType, T.StructType) and field.name not in order:
                raise SinkError(
                    f"The column {field.name!r} was made by {made_by}, but {spec.name!r} is a "
                    f'key-value store, which keeps one row of each key. Give the store kind = "{kind}" in the '
                    f"topology, or keep each key's latest window with order_by={field.name!r}."
                )


KIND_COLUMNS: Mapping[str, KindColumns] = {
    "key-value": KindColumns(_check_no_window),
    "latest": KindColumns(
        _check_order,
        _order,
        snapshot_refusal="has latest_by: a snapshot cannot say of which order it is that other keys are gone",
    ),
    "window": KindColumns(_window_column, _start),
    "session": KindColumns(_window_column, _end_and_start, updates=False),
    "versioned": KindColumns(
        _check_valid_from,
        snapshot_refusal="is a versioned store: a snapshot cannot say since when other keys are gone",
    ),
}
"""Those of each kind, by the name of its layout."""
