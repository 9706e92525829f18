"""How rows become records of each kind of store, in Spark's own expressions.

Why a table here, and not members of the kinds: what reads a store must not need Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from forebay.errors import SinkError
from forebay.record_orders import LOWEST_ORDER, ORDER_MARK
from forebay.store_spec import StoreSpec
from forebay_spark.plan import SESSION_WINDOW, TIME_WINDOW

if TYPE_CHECKING:
    from forebay_spark.columns import Layout

_TYPES_OF_ORDERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.TimestampType)


def hex64(column: Column) -> Column:
    """The 16 hexadecimal digits of a 64-bit two's complement integer."""
    return F.lpad(F.hex(column.cast("long")), 16, "0")


def quoted(name: str) -> str:
    """A column's name as Spark reads it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


class KindColumns(Protocol):
    """What a kind needs of a DataFrame's columns; what it does not define is as stated here."""

    updates: bool = True
    """Whether a query writes in update mode, unless Spark does not run it so."""
    snapshot_refusal: str | None = None
    """Why ``Sink.fill`` takes no snapshot; None if it does."""

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        """The window's column, None if the kind needs none; raises ``SinkError`` if the columns do not fit it."""

    def suffix(self, layout: Layout) -> Column | None:
        """What follows a key in the log; None if nothing does."""
        return None


class KeyValueColumns(KindColumns):
    """A row of each key."""

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        _check_no_window(df, spec, order_by)
        return None


class LatestColumns(KindColumns):
    """The order of a row is at the end of its key."""

    snapshot_refusal = "has latest_by: a snapshot cannot say of which order it is that other keys are gone"

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        assert spec.latest_by is not None
        kind = df.schema[spec.latest_by].dataType
        if not isinstance(kind, _TYPES_OF_ORDERS):
            raise SinkError(
                f"{spec.name!r} has latest_by = {spec.latest_by!r}, but that column is {kind.simpleString()}: an "
                "order is an integer of up to 64 bits, or a timestamp. Make a column of that name which is one."
            )
        _check_no_window(df, spec, (spec.latest_by, *order_by))
        return None

    def suffix(self, layout: Layout) -> Column | None:
        """A key's end with its order (``with_order``), null if that is null."""
        name = layout.spec.latest_by
        assert name is not None
        column, kind = F.col(quoted(name)), layout.schema[name].dataType
        order = F.unix_micros(column) if isinstance(kind, T.TimestampType) else column.cast("long")
        # As bytes, the lowest sorts first.
        return F.unhex(F.concat(F.lit(ORDER_MARK.hex()), hex64(order.bitwiseXOR(F.lit(LOWEST_ORDER)))))


class WindowColumns(KindColumns):
    """The start of a row's window is at the end of its key."""

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        return _window_column(df, spec, "window()", SESSION_WINDOW, "session_window()")

    def suffix(self, layout: Layout) -> Column | None:
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


class SessionColumns(KindColumns):
    """The end and the start of a row's session are at the end of its key."""

    updates = False

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        return _window_column(df, spec, "session_window()", TIME_WINDOW, "window()")

    def suffix(self, layout: Layout) -> Column | None:
        start, end = _times_ms(layout)
        return F.unhex(F.concat(hex64(end), hex64(start)))


class VersionedColumns(KindColumns):
    """A row's valid-from is its record's timestamp (KIP-889)."""

    snapshot_refusal = "is a versioned store: a snapshot cannot say since when other keys are gone"

    def window(self, df: DataFrame, spec: StoreSpec, order_by: tuple[str, ...]) -> str | None:
        names = df.schema.fieldNames()
        valid_from = order_by[0] if len(order_by) == 1 and order_by[0] in names else None
        if valid_from is None or not isinstance(df.schema[valid_from].dataType, T.TimestampType):
            raise SinkError(
                f"{spec.name!r} is a versioned store: order_by= must name one timestamp column, from which each "
                "version is valid."
            )
        return None


KIND_COLUMNS: Mapping[str, KindColumns] = {
    "key-value": KeyValueColumns(),
    "latest": LatestColumns(),
    "window": WindowColumns(),
    "session": SessionColumns(),
    "versioned": VersionedColumns(),
}
"""Those of each kind, by the name of its layout."""


def columns_of(spec: StoreSpec) -> KindColumns:
    """What a store's kind needs."""
    return KIND_COLUMNS[spec.store_kind.layout_name]


def _times_ms(layout: Layout) -> tuple[Column, Column]:
    """When a row's window starts and ends."""
    assert layout.window is not None
    start, end = (F.unix_millis(F.col(quoted(layout.window))[name]) for name in ("start", "end"))
    return start, end


def _window_column(df: DataFrame, spec: StoreSpec, made_by: str, other_mark: str, made_by_other: str) -> str:
    """The one column made by a function of Spark's, which must not be the other one."""
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
        for mark, kind, made_by in (
            (TIME_WINDOW, "window", "window()"),
            (SESSION_WINDOW, "session", "session_window()"),
        ):
            if mark in field.metadata and isinstance(field.dataType, T.StructType) and field.name not in order:
                raise SinkError(
                    f"The column {field.name!r} was made by {made_by}, but {spec.name!r} is a "
                    f'key-value store, which keeps one row of each key. Give the store kind = "{kind}" in the '
                    f"topology, or keep each key's latest window with order_by={field.name!r}."
                )
