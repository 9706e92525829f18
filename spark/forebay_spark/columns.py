"""Which columns of a DataFrame a write takes, checked against the DataFrame and the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Required, TypedDict, get_args

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from forebay.codecs.keys import TOTAL_KEYS
from forebay.errors import SinkError
from forebay.store_spec import StoreSpec
from forebay_spark.kind_columns import columns_of
from forebay_tap.spark_checkpoint.description import KEY_TYPES

EMITTED = "emitted"
"""In ``order_by``, unless a column is called so: the order in which the query emits rows."""
NullKeys = Literal["refuse", "drop", "keep"]
_MAP_KEYS = (T.StringType, T.BooleanType, T.IntegralType)
_UNORDERED = (T.MapType, T.VariantType, T.CalendarIntervalType)


class ColumnArguments(TypedDict, total=False):
    """Which columns of a DataFrame are written, and how: the arguments that all ways into a store share.

    ``key`` names the key's column or columns; () or None gives all rows one key (``TOTAL_KEYS``). ``value`` names
    the columns of the value, by default all others, () for none. With ``flatten`` the value is that of its one
    column instead of an object. ``order_by`` names the columns that determine which of a key's rows in one batch
    is the latest (for a versioned store, the one timestamp column from which a version is valid; for a store with
    ``latest_by``, which of a key's rows with one order); ``EMITTED`` stands for the order in which the query emits
    rows. ``delete`` names a boolean column that marks tombstones. ``null_keys`` says what becomes of rows whose
    key has a null: ``refuse`` the batch, ``drop`` them or, in keys of the codec ``json``, ``keep`` it.
    """

    key: Required[str | Sequence[str] | None]
    value: str | Sequence[str] | None
    flatten: bool
    order_by: str | Sequence[str] | None
    delete: str | None
    null_keys: NullKeys


@dataclass(frozen=True)
class Selection:
    """The arguments of a write, checked as far as they can be without a DataFrame; raises ``SinkError``."""

    key: tuple[str, ...]
    value: tuple[str, ...] | None
    flatten: bool
    order_by: tuple[str, ...]
    delete: str | None
    null_keys: NullKeys

    @classmethod
    def of(cls, arguments: ColumnArguments) -> Selection:
        """The selection that arguments make."""
        unknown = set(arguments) - ColumnArguments.__annotations__.keys()
        if unknown or "key" not in arguments:
            raise TypeError(f"unexpected arguments: {unknown}" if unknown else "key= is missing")
        value, null_keys = arguments.get("value"), arguments.get("null_keys", "refuse")
        if null_keys not in get_args(NullKeys):
            raise SinkError(f"null_keys is one of {', '.join(get_args(NullKeys))}, not {null_keys!r}.")
        return cls(
            _names("key", arguments["key"]),
            None if value is None else _names("value", value),
            arguments.get("flatten", False),
            _names("order_by", arguments.get("order_by")),
            arguments.get("delete"),
            null_keys,
        )


@dataclass(frozen=True)
class Layout:
    """The columns of one write: those that were chosen, of a DataFrame with a schema, the window and the value."""

    spec: StoreSpec
    chosen: Selection
    schema: T.StructType
    window: str | None
    value: tuple[str, ...]

    @property
    def order_names(self) -> tuple[str, ...]:
        """The order's columns as ``RecordColumns`` names them."""
        return tuple(f"order_{at}" for at in range(len(self.chosen.order_by)))


def lay_out(df: DataFrame, spec: StoreSpec, chosen: Selection) -> Layout:
    """Check a write's columns against the DataFrame and the store; raises ``SinkError`` naming the column."""
    names = [field.name for field in df.schema.fields]
    is_case_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    alike = names if is_case_sensitive else [name.lower() for name in names]
    twice = [name for name, plain in zip(names, alike, strict=True) if alike.count(plain) > 1]
    if twice:
        raise SinkError(f"The column {twice[0]!r} occurs twice among the columns for {spec.name!r}; rename one.")
    order, delete = [name for name in chosen.order_by if name != EMITTED or name in names], chosen.delete
    for name in (*chosen.key, spec.latest_by, *order, *(chosen.value or ()), delete):
        if name is not None and name not in names:
            raise SinkError(f"There is no column {name!r} for {spec.name!r}; there are {', '.join(names)}.")
    _check_key(df, spec, chosen)
    if delete is not None and not isinstance(df.schema[delete].dataType, T.BooleanType):
        raise SinkError(f"The column {delete!r} must be boolean; it marks the rows that delete.")
    window = columns_of(spec).window(df, spec, chosen.order_by)
    used = {*chosen.key, window, delete}
    value = chosen.value if chosen.value is not None else tuple(name for name in names if name not in used)
    repeated = next((name for name in value if value.count(name) > 1), None)
    if repeated is not None:
        raise SinkError(f"value= names the column {repeated!r} for {spec.name!r} twice.")
    if chosen.flatten and len(value) != 1:
        shown = ", ".join(value) or "none"
        raise SinkError(f"flatten=True for {spec.name!r} takes one value column, named by value=, not {shown}.")
    for name in value:
        _check_value(spec, name, df.schema[name].dataType)
    for name in order:
        _check_order(spec, name, df.schema[name].dataType)
    return Layout(spec, chosen, df.schema, window, value)


def _within(kind: T.DataType) -> Iterator[T.DataType]:
    """A type and all types within it."""
    yield kind
    inner = [field.dataType for field in kind.fields] if isinstance(kind, T.StructType) else []
    inner += [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    for one in inner:
        yield from _within(one)


def _check_value(spec: StoreSpec, name: str, kind: T.DataType) -> None:
    """Refuse maps whose keys Spark turns into JSON as it stores them, dates as days and bytes as an address, and
    structs with two members of one name."""
    for one in _within(kind):
        inner = one.fieldNames() if isinstance(one, T.StructType) else []
        twice = next((member for member in inner if inner.count(member) > 1), None)
        if twice is not None:
            raise SinkError(
                f"The column {name!r} for {spec.name!r} contains a struct in which {twice!r} occurs twice; rename "
                "one."
            )
        if isinstance(one, T.MapType) and not isinstance(one.keyType, _MAP_KEYS):
            raise SinkError(
                f"The column {name!r} for {spec.name!r} contains a map with keys of the type "
                f"{one.keyType.simpleString()}, which have no JSON form: cast them to string."
            )


def _check_order(spec: StoreSpec, name: str, kind: T.DataType) -> None:
    if any(isinstance(one, _UNORDERED) for one in _within(kind)):
        raise SinkError(
            f"order_by={name!r} for {spec.name!r}: rows cannot be ordered by a column of the type "
            f"{kind.simpleString()}. Name another."
        )


def _check_key(df: DataFrame, spec: StoreSpec, chosen: Selection) -> None:
    if not chosen.key and spec.key not in TOTAL_KEYS:
        raise SinkError(
            f"There is no key column for {spec.name!r}, and one key for all rows needs the key codec "
            f"{' or '.join(map(repr, TOTAL_KEYS))}, not {spec.key!r}; name a column with key=."
        )
    if len(chosen.key) > 1 and spec.key != "json":
        raise SinkError(
            f'{spec.name!r} has the key codec {spec.key!r}, which takes one column; several need key = "json" '
            "in the topology."
        )
    if chosen.null_keys == "keep" and spec.key != "json":
        raise SinkError(
            f"{spec.name!r} has the key codec {spec.key!r}, whose keys have no null: null_keys is 'refuse' or "
            "'drop'."
        )
    for name in chosen.key:
        found = df.schema[name].dataType
        if found.typeName() not in KEY_TYPES[spec.key]:
            fitting = ", ".join(KEY_TYPES[spec.key])
            raise SinkError(
                f"The key column {name!r} of {spec.name!r} is {found.simpleString()}, which the key codec "
                f"{spec.key!r} does not take ({fitting}). Cast it, or change the codec of a new store."
            )


def _names(argument: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    names = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
    for name in names:
        if not isinstance(name, str):
            raise SinkError(f"{argument} takes the names of columns as text, not {name!r}.")
    return names
