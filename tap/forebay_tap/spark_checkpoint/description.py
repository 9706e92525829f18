"""What a store of an operator's state would be like: decisions over the operator's schemas alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from forebay.store_kinds import DEFAULT_KIND, STORE_KINDS
from forebay_tap.spark_checkpoint.aggregates import buffer_width, functions_at, is_opaque
from forebay_tap.spark_checkpoint.data_types import AtomicType, DataType, Field, StructType
from forebay_tap.spark_checkpoint.errors import CheckpointFormatUnknown
from forebay_tap.spark_checkpoint.operators import DEFAULT_STORE, Operator, StateVariable, Store
from forebay_tap.spark_checkpoint.schemas import DEFAULT_FAMILY, ColumnFamily

TableKind = Literal["key-value", "window", "session"]
Path = tuple[int, ...]
"""The positions that lead to a field from its row: of the field itself, or of the structs around it first."""

_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
_VALUE, _LIST, _MAP = "ValueState", "ListState", "MapState"
_GROUP_STATE, _TIMEOUT, _EXPIRES = "groupState", "timeoutTimestamp", "ttlExpirationMs"
KEY_TYPES = {
    "string": ("string",),
    "int32": ("byte", "short", "integer"),
    "int64": ("byte", "short", "integer", "long"),
    "bytes": ("binary",),
    "json": ("string", "boolean", "byte", "short", "integer", "long"),
}
"""By key codec, the types of key columns that fit it; only ``json`` takes several columns."""
_DURATIONS = {
    "window_size_ms": "0  # that of the query",
    "gap_ms": "0  # that of the query",
    "retention_ms": "604_800_000  # a week: how long reads shall find it",
}


@dataclass(frozen=True)
class StateField:
    """A field of a key or value, and where it is in the decoded row.

    ``functions`` has the aggregates whose buffer may begin here, the likeliest first; it is empty for fields that
    are no buffer, and for buffers that are not finished. ``opaque`` if only Spark reads the buffer, so that the
    field cannot be served.
    """

    name: str
    type: DataType
    path: Path
    functions: tuple[str, ...] = ()
    opaque: bool = False


@dataclass(frozen=True)
class Table:
    """One table of an operator that can be a store: a store's only column family, or a state variable.

    ``key`` and ``value`` leave out what the other members have: ``window_path`` leads to the struct of a window's
    or session's start and end, in the key of a window and in the value of a session; ``expires_path`` to the epoch
    milliseconds in a value (in each value of a list) from which Spark hides it.
    """

    store: str
    family: str
    kind: TableKind
    key: tuple[StateField, ...]
    value: tuple[StateField, ...]
    partitions: int
    window_path: Path | None = None
    expires_path: Path | None = None
    is_list: bool = False
    has_buffers: bool = False
    """Whether the value's fields are the buffers of aggregates."""
    state_path: Path | None = None
    """To the struct in a value that is null where Spark has a timeout for the key, but no state."""

    @property
    def key_codec(self) -> str | None:
        """The key codec that its keys fit, ``string`` for a total; None if there is none."""
        names = [str(field.type) for field in self.key]
        fitting = KEY_TYPES if len(names) <= 1 else ("json",)
        return next((codec for codec in fitting if all(name in KEY_TYPES[codec] for name in names)), None)


@dataclass(frozen=True)
class OperatorDescription:
    """What an operator is, and its tables; ``refusal`` says why it has none."""

    operator: int
    name: str
    label: str
    tables: tuple[Table, ...] = ()
    refusal: str | None = None


def field_at(row: Sequence[Any], path: Path) -> Any:
    """The field of a decoded row to which a path leads; None where a struct on the way is null."""
    value: Any = row
    for position in path:
        if value is None:
            return None
        value = value[position]
    return value


def field_reader(path: Path) -> Callable[[Sequence[Any]], Any]:
    """What reads the field at a path from rows, as ``field_at``."""
    return itemgetter(path[0]) if len(path) == 1 else lambda row: field_at(row, path)


def describe_operator(operator: Operator) -> OperatorDescription:
    """The operator's tables, or why it has none."""
    known = _OPERATORS.get(operator.name)
    if known is None:
        refusal = _REFUSALS.get(operator.name, "forebay does not know what the state of this operator means")
        return OperatorDescription(operator.id, operator.name, operator.name, refusal=refusal)
    label, tables = known
    return OperatorDescription(operator.id, operator.name, label, tables(operator))


def topology_snippet(name: str, operator: int, table: Table, window_size_ms: int | None = None) -> str:
    """The lines for ``topology.toml`` that declare a store of the table, its sub-topology included.

    What state does not tell is left to be filled in: forebay refuses the 0 of ``gap_ms`` and ``window_size_ms``.
    """
    lines = [
        "[[subtopology]]",
        f'name = "{name}"',
        f"partitions = {table.partitions}",
        "",
        "[[subtopology.store]]",
        f'name = "{name}"',
    ]
    if table.kind != DEFAULT_KIND:
        lines.append(f'kind = "{table.kind}"')
    if table.key_codec not in (None, "string"):
        lines.append(f'key = "{table.key_codec}"')
    durations = {**_DURATIONS, "window_size_ms": str(window_size_ms)} if window_size_ms else _DURATIONS
    lines += [f"{duration} = {durations[duration]}" for duration in STORE_KINDS[table.kind].required]
    lines += ["", "[subtopology.store.spark_state]", f"operator = {operator}"]
    if table.family != DEFAULT_FAMILY:
        lines.append(f'variable = "{table.family}"')
    if table.has_buffers:
        lines += ["fields = [  # name them as the query does", *_field_lines(table.value), "]"]
    return "\n".join(lines) + "\n"


def position_text(path: Path) -> str:
    """A path as ``position`` takes it in ``topology.toml``."""
    return str(path[0]) if len(path) == 1 else f'"{".".join(map(str, path))}"'


def _field_lines(fields: Sequence[StateField]) -> list[str]:
    """Names occur once in a value: those that repeat get their position behind them."""
    fields = [field for field in fields if not field.opaque]
    names = [field.functions[0] if field.functions else field.name for field in fields]
    lines = []
    for field, own in zip(fields, names, strict=True):
        name = own if names.count(own) == 1 else f"{own}_{field.path[-1]}"
        function = f', function = "{field.functions[0]}"' if field.functions else ""
        others = f"  # or {', '.join(field.functions[1:])}" if field.functions[1:] else ""
        lines.append(f'  {{ name = "{name}", position = {position_text(field.path)}{function} }},{others}')
    return lines


def _fields(struct: StructType, start: Path = (), first: int = 0) -> tuple[StateField, ...]:
    return tuple(
        StateField(field.name, field.type, (*start, at)) for at, field in enumerate(struct.fields) if at >= first
    )


def _within(field: Field, position: int) -> tuple[StateField, ...]:
    """The fields of a struct, or the field itself."""
    if isinstance(field.type, StructType):
        return _fields(field.type, (position,))
    return (StateField(field.name, field.type, (position,)),)


def _buffers(struct: StructType, first: int) -> tuple[StateField, ...]:
    """The buffers of aggregates, each with what it may be; the fields behind its first are part of it."""
    fields, found, at = struct.fields, [], first
    while at < len(fields):
        functions = functions_at(fields, at)
        width = buffer_width(functions[0], fields, at) if functions else 1
        opaque = not functions and is_opaque(fields[at])
        found.append(StateField(fields[at].name, fields[at].type, (at,), functions, opaque))
        at += width
    return tuple(found)


def _only(operator: Operator) -> tuple[Store, ColumnFamily]:
    store = operator.store(DEFAULT_STORE)
    return store, store.family()


def _table(
    store: Store,
    family: ColumnFamily,
    key: tuple[StateField, ...],
    value: tuple[StateField, ...],
    kind: TableKind = "key-value",
    **more: Any,
) -> Table:
    return Table(store.name, family.name, kind, key, value, store.partitions, **more)


def _aggregation(operator: Operator) -> tuple[Table, ...]:
    store, family = _only(operator)
    windows = [at for at, field in enumerate(family.key.fields) if _WINDOW in field.metadata]
    values = _buffers(family.value, 0)
    keys = _fields(family.key)
    if len(windows) != 1:
        # Two are columns like others.
        return (_table(store, family, keys, values, has_buffers=True),)
    [window] = windows
    key = tuple(field for field in keys if field.path != (window,))
    path = keys[window].path
    return (_table(store, family, key, values, kind="window", window_path=path, has_buffers=True),)


def _session(operator: Operator) -> tuple[Table, ...]:
    """Its keys end with the session's start, its values begin with the columns by which the query groups."""
    store, family = _only(operator)
    grouping = len(family.key.fields)
    windows = [at for at, field in enumerate(family.value.fields[:grouping]) if _SESSION in field.metadata]
    if len(windows) != 1:
        raise CheckpointFormatUnknown(f"The state of operator {operator.id} has no session among {family.value}.")
    [window] = windows
    key, values = _fields(family.key)[: grouping - 1], _buffers(family.value, grouping)
    return (_table(store, family, key, values, kind="session", window_path=(window,), has_buffers=True),)


def _group_state(operator: Operator) -> tuple[Table, ...]:
    """The state is a struct of its own, or in Spark's older format fields beside the timeout."""
    store, family = _only(operator)
    fields = family.value.fields
    path: Path | None = None
    if fields and fields[0].name == _GROUP_STATE:
        values, path = _within(fields[0], 0), (0,)
    else:
        values = tuple(field for field in _fields(family.value) if field.name != _TIMEOUT)
    return (_table(store, family, _fields(family.key), values, state_path=path),)


def _distinct(operator: Operator) -> tuple[Table, ...]:
    store, family = _only(operator)
    values = tuple(field for field in _fields(family.value) if field.type != AtomicType("void"))
    return (_table(store, family, _fields(family.key), values),)


def _variables(operator: Operator) -> tuple[Table, ...]:
    store = operator.store(DEFAULT_STORE)
    served = [item for item in operator.variables if item.kind in (_VALUE, _LIST, _MAP)]
    return tuple(_variable(store, item) for item in sorted(served, key=lambda item: item.name))


def _variable(store: Store, variable: StateVariable) -> Table:
    family = store.family(variable.name)
    fields = family.value.fields
    expires = (1,) if variable.has_ttl and fields[-1].name == _EXPIRES else None
    if variable.kind == _MAP:
        # Two structs: the grouping key, and the map's own.
        key = tuple(part for at, field in enumerate(family.key.fields) for part in _within(field, at))
    else:
        key = _fields(family.key)
    value = _within(fields[0], 0) if expires else _fields(family.value)
    return _table(store, family, key, value, expires_path=expires, is_list=variable.kind == _LIST)


_OPERATORS: dict[str, tuple[str, Callable[[Operator], tuple[Table, ...]]]] = {
    "stateStoreSave": ("groupBy().agg()", _aggregation),
    "sessionWindowStateStoreSaveExec": ("session_window", _session),
    "flatMapGroupsWithState": ("flatMapGroupsWithState", _group_state),
    "applyInPandasWithState": ("applyInPandasWithState", _group_state),
    "transformWithStateExec": ("transformWithState", _variables),
    "transformWithStateInPandasExec": ("transformWithState in Python", _variables),
    "transformWithStateInPySparkExec": ("transformWithState in Python", _variables),
    "dedupe": ("dropDuplicates", _distinct),
    "dedupeWithinWatermark": ("dropDuplicatesWithinWatermark", _distinct),
}
_REFUSALS = {
    "symmetricHashJoin": "a join keeps rows that wait for the other side, and none of its results",
    "globalLimit": "a limit keeps only how many rows it let pass",
}
