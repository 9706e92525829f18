"""Which of a Spark query's state a store has: ``[subtopology.store.spark_state]`` in the topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.errors import TopologyError
from forebay.toml_tables import choice_field, given_text, integer_field, name_field, refuse_unknown

KEEP, DELETE = "keep", "delete"


@dataclass(frozen=True)
class StateColumn:
    """A member of the store's values, and the field of Spark's state that it is read from.

    ``path`` is the field's position, or the positions of the structs around it first. With a ``function`` the
    member is the aggregate whose buffer begins there, else the field as it is.
    """

    name: str
    path: tuple[int, ...]
    function: str | None = None


@dataclass(frozen=True)
class SparkState:
    """The operator and variable whose state is the store's content.

    ``columns`` is empty where the fields have names of their own. ``on_removal`` says what becomes of a key that
    leaves the state: ``keep`` or ``delete``, None for the store kind's default.
    """

    operator: int = 0
    variable: str | None = None
    columns: tuple[StateColumn, ...] = ()
    on_removal: str | None = None


def parse_spark_state(table: Any, where: str) -> SparkState:
    """The table of a store; raises ``TopologyError``."""
    where = f"spark_state of {where}"
    refuse_unknown(table, {"operator", "variable", "fields", "on_removal"}, where)
    fields = table.get("fields", [])
    if not isinstance(fields, list):
        raise TopologyError(f"{where}: fields = {fields!r} is not a list of tables.")
    columns = tuple(_column(item, f"a field of {where}") for item in fields)
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TopologyError(f"{where} names two fields {twice!r}; give each its own name.")
    return SparkState(
        integer_field(table, "operator", where, least=0) if "operator" in table else 0,
        name_field(table, "variable", where) if "variable" in table else None,
        columns,
        choice_field(table, "on_removal", (KEEP, DELETE), KEEP, where) if "on_removal" in table else None,
    )


def _column(table: Mapping[str, Any], where: str) -> StateColumn:
    refuse_unknown(table, {"name", "position", "function"}, where)
    name, function = table.get("name"), table.get("function")
    if not isinstance(name, str) or not name:
        raise TopologyError(
            f"{where} needs a 'name', the member of the store's values; {given_text(table, 'name')}."
        )
    if function is not None and not isinstance(function, str):
        raise TopologyError(f"{where}: function = {function!r} is not the name of an aggregate.")
    return StateColumn(name, _path(table, where), function)


def _path(table: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The position as an integer, or as text with the positions of the structs around it before: ``"0.2"``."""
    position = table.get("position")
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return (position,)
    parts = position.split(".") if isinstance(position, str) else ()
    if parts and all(part.isascii() and part.isdigit() for part in parts):
        return tuple(map(int, parts))
    raise TopologyError(
        f"{where} needs a 'position' as 'forebay spark describe' shows it, such as 2 or \"0.2\"; "
        f"{given_text(table, 'position')}."
    )
