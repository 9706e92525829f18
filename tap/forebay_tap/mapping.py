"""How a table of Spark's state becomes a store's records: keys by the store's codec, values as JSON."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence

from forebay.codecs.keys import TOTAL_KEYS
from forebay.errors import BadKey, TopologyError
from forebay.store_spec import DELETE, KEEP, StateColumn, StoreSpec
from forebay_tap.json_forms import ValueEncoder, ValueMember, json_form, json_shape
from forebay_tap.spark_checkpoint.aggregates import value_reader
from forebay_tap.spark_checkpoint.data_types import ArrayType, AtomicType, DataType, Field, StructType
from forebay_tap.spark_checkpoint.description import (
    KEY_TYPES,
    OperatorDescription,
    Path,
    StateField,
    Table,
    describe_operator,
    field_at,
    field_reader,
    position_text,
)
from forebay_tap.spark_checkpoint.errors import CheckpointMissing, StateUnsupported
from forebay_tap.spark_checkpoint.operators import DEFAULT_STORE, Operator
from forebay_tap.spark_checkpoint.schemas import ColumnFamily
from forebay_tap.spark_checkpoint.unsafe_row import Row

_MICROSECONDS = 1_000
_DOUBLES = ("avg", "stddev", "variance")
_SAFE_INTEGER = (1 << 53) - 1
_INTEGERS = {"int32": struct.Struct(">i").pack, "int64": struct.Struct(">q").pack}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class KeyUnfit(Exception):
    """A key that the store's codec cannot have, such as null."""


class KeyEncoder:
    """Encodes the columns of keys that are at some paths, which must be of types that fit the store's codec."""

    def __init__(self, spec: StoreSpec, paths: Sequence[Path]) -> None:
        self._codec = spec.key
        self._from_json = spec.key_codec.from_json
        self._paths = paths
        self._pack = _INTEGERS.get(spec.key)

    def plain(self, key: Row) -> bytes:
        """A key's plain bytes; raises ``KeyUnfit``."""
        parts = [field_at(key, path) for path in self._paths]
        if not parts:
            return TOTAL_KEYS[self._codec].encode()
        if self._codec == "json":
            if any(isinstance(part, int) and abs(part) > _SAFE_INTEGER for part in parts):
                raise KeyUnfit(f"{parts!r} has an integer beyond 2^53, which a JSON key cannot: cast it to string")
            try:
                return _encode(parts).encode()
            except UnicodeEncodeError:
                raise KeyUnfit(f"{parts!r} has text that is no UTF-8") from None
        if parts == [None]:
            raise KeyUnfit("it is null")
        if self._codec == "bytes":
            return bytes(parts[0])
        try:
            return self._from_json(parts[0])
        except BadKey as error:
            raise KeyUnfit(error.detail) from None

    def plains(self, keys: Sequence[Row]) -> list[bytes]:
        """The plain bytes of several keys; raises ``KeyUnfit`` if one has none."""
        if self._pack is None or not self._paths:
            return list(map(self.plain, keys))
        [path] = self._paths
        try:
            # Spark's integers of the key's type fit it, but for null.
            return list(map(self._pack, map(field_reader(path), keys)))
        except struct.error:
            return list(map(self.plain, keys))


class TableMapping:
    """The records of one store, from rows of one table of an operator.

    Raises ``TopologyError`` or ``StateUnsupported`` if the store cannot have the table, saying what to declare.
    """

    def __init__(self, spec: StoreSpec, operator: Operator) -> None:
        if spec.spark_state is None:
            raise TopologyError(f"The store {spec.name!r} has no spark_state: 'forebay spark describe' shows how.")
        if spec.stream_partitioner is None:
            raise TopologyError(
                f"The store {spec.name!r} has the partitioner 'unknown': name the one to write by."
            )
        self.spec = spec
        self.table = _table(spec, describe_operator(operator))
        self.family = operator.store(self.table.store).family(self.table.family)
        self._check()
        self.keys = KeyEncoder(spec, tuple(field.path for field in self.table.key))
        columns = spec.spark_state.columns or _own_columns(spec, self.table)
        _refuse_opaque(spec, columns, self.table)
        self.values = ValueEncoder([_member(spec, column, self.family.value) for column in columns])
        self.members = {column.name: _result_type(spec, column, self.family.value) for column in columns}
        """The members of a value, or of each value of a list, and the types of which they are written."""
        self.digest = _digest(spec, operator, self.table, self.family)

    @property
    def deletes(self) -> bool:
        """Whether a key that leaves the state leaves the store: by default so if nothing else expires there."""
        assert self.spec.spark_state is not None
        chosen = self.spec.spark_state.on_removal or (DELETE if self.spec.retention_ms is None else KEEP)
        return chosen == DELETE

    @property
    def keeps_ended(self) -> bool:
        """Whether the store keeps entries with an end that have left the state."""
        return not self.deletes and self.spec.store_kind.time_to_end_ms(self.spec) is not None

    def window_start_ms(self, key: Row) -> int:
        """When a window starts, of its key; raises ``StateUnsupported`` if it is as long as no window of the
        store."""
        assert self.table.window_path is not None
        start, end = field_at(key, self.table.window_path)
        if end - start != (self.spec.window_size_ms or 0) * _MICROSECONDS:
            raise StateUnsupported(
                f"The query's windows are {(end - start) / _MICROSECONDS:g} ms long, window_size_ms of the store "
                f"{self.spec.name!r} is {self.spec.window_size_ms}. Make them equal; another length needs a new "
                "store."
            )
        return int(start // _MICROSECONDS)

    def session_ms(self, value: Row) -> tuple[int, int]:
        """When a session starts and ends, of its value."""
        assert self.table.window_path is not None
        start, end = field_at(value, self.table.window_path)
        return start // _MICROSECONDS, end // _MICROSECONDS

    def expires_ms(self, value: Row) -> int | None:
        """The epoch milliseconds from which Spark hides a value; None if it does not expire."""
        path = self.table.expires_path
        expires_ms = None if path is None else field_at(value, path)
        return None if expires_ms is None or expires_ms < 0 else int(expires_ms)

    def mismatch(self, key: Sequence[str], columns: Mapping[str, DataType], *, flatten: bool) -> str | None:
        """How what a query writes differs from the state, and the remedy; None if nothing shows that it does.

        ``key`` are the columns of its keys, ``columns`` those of its values: one alone to ``flatten``.
        """
        names = [field.name for field in self.table.key]
        if [name.lower() for name in names] != [name.lower() for name in key]:
            return (
                f"its state has the key {', '.join(names) or 'none'}, but the query writes the key "
                f"{', '.join(key) or 'none'}. Name the same columns in the same order, as the query groups by them"
            )
        fields = StructType(tuple(Field(*member) for member in self.members.items()))
        held: DataType = ArrayType(fields) if self.table.is_list else fields
        written: DataType = StructType(tuple(Field(*column) for column in columns.items()))
        if flatten:
            [written] = columns.values()
        if json_shape(held) == json_shape(written):
            return None
        return (
            f"its spark_state makes values of {held}, but the query writes {written}. Declare the fields that the "
            "query writes, by the names and types of its columns"
        )

    def _check(self) -> None:
        name, table = self.spec.name, self.table
        if table.kind != self.spec.kind:
            shown = table.family if table.store == DEFAULT_STORE else f"{table.store}/{table.family}"
            raise TopologyError(
                f"The state of operator {shown} is for a {table.kind} store; {name!r} is of the kind "
                f'{self.spec.kind!r}. Declare kind = "{table.kind}".'
            )
        types = [str(field.type) for field in table.key]
        fits = all(name in KEY_TYPES[self.spec.key] for name in types) if types else self.spec.key in TOTAL_KEYS
        if not fits or (len(types) > 1 and self.spec.key != "json"):
            shown = ", ".join(f"{field.name} {field.type}" for field in table.key) or "none"
            remedy = f'Declare key = "{table.key_codec}".' if table.key_codec else "No key codec takes them."
            raise TopologyError(
                f"The key columns of the state ({shown}) do not fit the key codec {self.spec.key!r} of {name!r}. "
                f"{remedy}"
            )


def _table(spec: StoreSpec, described: OperatorDescription) -> Table:
    assert spec.spark_state is not None
    if described.refusal is not None:
        raise StateUnsupported(
            f"Operator {described.operator} ({described.name}) cannot be served as {spec.name!r}: "
            f"{described.refusal}."
        )
    variable = spec.spark_state.variable
    names = ", ".join(table.family for table in described.tables) or "none"
    if variable is None:
        if len(described.tables) != 1:
            raise TopologyError(
                f"Operator {described.operator} has several variables, {names}: name the one that {spec.name!r} "
                "has with variable = in its spark_state."
            )
        return described.tables[0]
    for table in described.tables:
        if table.family == variable:
            return table
    raise CheckpointMissing(f"Operator {described.operator} has no variable {variable!r}, only {names}.")


def _own_columns(spec: StoreSpec, table: Table) -> tuple[StateColumn, ...]:
    """The fields under their own names, where these and what they mean are beyond doubt."""
    names = [field.name for field in table.value]
    doubtful = table.has_buffers and any(len(field.functions) != 1 for field in table.value)
    if len(set(names)) < len(names) or doubtful:
        shown = ", ".join(
            f'{{ name = "…", position = {position_text(field.path)}{_function(field)} }}'
            for field in table.value
            if not field.opaque
        )
        raise TopologyError(
            f"The state for {spec.name!r} has buffers of aggregates, whose names and meaning only the query's "
            f"author knows. Declare them in spark_state: fields = [{shown}]"
        )
    return tuple(
        StateColumn(field.name, field.path, field.functions[0] if field.functions else None)
        for field in table.value
    )


def _refuse_opaque(spec: StoreSpec, columns: Sequence[StateColumn], table: Table) -> None:
    opaque = {field.path: field.name for field in table.value if field.opaque}
    named = [f"{column.name!r} ({opaque[column.path]})" for column in columns if column.path in opaque]
    if named:
        raise TopologyError(
            f"The fields {', '.join(named)} of {spec.name!r} are buffers that only Spark reads, as those of "
            "collect_list, percentile_approx and approx_count_distinct. Leave them out of its spark_state. To "
            "serve them, write what the query puts out with the sink."
        )


def _function(field: StateField) -> str:
    return f', function = "{field.functions[0]}"' if field.functions else ""


def _member(spec: StoreSpec, column: StateColumn, struct: StructType) -> ValueMember:
    form = json_form(_result_type(spec, column, struct))
    if column.function is None:
        return ValueMember(column.name, field_reader(column.path), form)
    if len(column.path) != 1:
        raise TopologyError(
            f"The field {column.name!r} of {spec.name!r} is within a struct, where no aggregate has its buffer: "
            "leave out its function."
        )
    function, [at] = column.function, column.path
    return ValueMember(column.name, value_reader(function, struct.fields, at), form)


def _result_type(spec: StoreSpec, column: StateColumn, struct: StructType) -> DataType:
    kind = _type_at(spec, column, struct)
    return AtomicType("double") if column.function in _DOUBLES else kind


def _type_at(spec: StoreSpec, column: StateColumn, struct: StructType) -> DataType:
    kind: DataType = struct
    for position in column.path:
        if not isinstance(kind, StructType) or position >= len(kind.fields):
            raise TopologyError(
                f"The field {column.name!r} of {spec.name!r} is at position {position_text(column.path)}, which "
                f"the state does not have: it is {struct}."
            )
        kind = kind.fields[position].type
    return kind


def _digest(spec: StoreSpec, operator: Operator, table: Table, family: ColumnFamily) -> str:
    """Identifies the mapping: with another one the same state makes other records."""
    parts = (
        operator.name,
        table.partitions,
        str(family.key),
        str(family.value),
        spec.spark_state,
        spec.kind,
        spec.key,
        spec.partitioner,
        spec.window_size_ms,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
