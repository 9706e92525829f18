"""Whether what a query writes is what its state holds: else a store filled from the state would mix the two."""

from __future__ import annotations

from forebay_spark.columns import Layout
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.data_types import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    StructType,
    parse_type,
)

_INTEGERS = ("byte", "short", "integer", "long")


def state_mismatch(mapping: TableMapping, layout: Layout, mode: str) -> str | None:
    """How a query's output differs from its state, and the remedy; None if nothing shows that it does.

    ``mode`` is its output mode. Raises ``CheckpointError`` for a type that is not known.
    """
    return _arguments(layout, mode) or _keys(mapping, layout) or _values(mapping, layout)


def _arguments(layout: Layout, mode: str) -> str | None:
    if mode == "append":
        return (
            "in the output mode 'append' results that are final have left its state, and the state's own are not "
            "final. Start the query with a new checkpoint and its source from the beginning"
        )
    if layout.chosen.delete is not None:
        return f"the column {layout.chosen.delete!r} deletes keys that its state keeps. Leave out delete="
    if layout.chosen.null_keys == "drop" and layout.spec.key == "json":
        return "its state has the keys with a null that null_keys='drop' leaves out. Set null_keys='keep'"
    return None


def _keys(mapping: TableMapping, layout: Layout) -> str | None:
    names = tuple(field.name for field in mapping.table.key)
    if [name.lower() for name in names] == [name.lower() for name in layout.chosen.key]:
        return None
    return (
        f"its state has the key {_listed(names)}, but the query writes the key {_listed(layout.chosen.key)}. Name "
        "the same columns in the same order, as the query groups by them"
    )


def _values(mapping: TableMapping, layout: Layout) -> str | None:
    held: DataType = StructType(tuple(Field(*member) for member in mapping.members.items()))
    held = ArrayType(held) if mapping.table.is_list else held
    columns = [Field(name, parse_type(layout.schema[name].dataType.jsonValue())) for name in layout.value]
    written = columns[0].type if layout.chosen.flatten else StructType(tuple(columns))
    if _json_shape(held) == _json_shape(written):
        return None
    return (
        f"its spark_state makes values of {held}, but the query writes {written}. Declare the fields that the "
        "query writes, by the names and types of its columns"
    )


def _json_shape(kind: DataType) -> object:
    """What decides how JSON is written of a type."""
    match kind:
        case AtomicType(name):
            return "integer" if name in _INTEGERS else name
        case StructType(fields):
            return {field.name: _json_shape(field.type) for field in fields}
        case ArrayType(element):
            return [_json_shape(element)]
        case MapType(key, value):
            return (_json_shape(key), _json_shape(value))
    return kind


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
