"""Fields of a table in a TOML document: read by type, and refused naming the table, the field and the remedy.

All functions raise ``TopologyError``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from forebay.errors import TopologyError


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """A question with the nearest of the known names, ``otherwise`` if none is near; from 0 to 1, ``cutoff`` says
    how near."""
    like = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {like[0]!r}?" if like else otherwise


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
NAME_RULE = "letters, digits, '.', '_' and '-', not beginning with '.' or '-'"


def refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuse what is no table, or has a field that is not among the known ones."""
    if not isinstance(table, Mapping):
        raise TopologyError(f"{where} is {table!r}, not a table.")
    unknown = sorted(set(table) - known)
    if unknown:
        meant = did_you_mean(unknown[0], known, f"it may have {', '.join(sorted(known))}.")
        raise TopologyError(f"{where} has an unknown field {unknown[0]!r}; {meant}")


def name_field(table: Mapping[str, Any], item: str, where: str) -> str:
    """A required name."""
    value = table.get(item)
    if not isinstance(value, str) or not NAME.fullmatch(value) or len(value) > 200:
        raise TopologyError(f"{where} needs {item!r}, made of {NAME_RULE}; {given_text(table, item)}.")
    return value


def integer_field(table: Mapping[str, Any], item: str, where: str, *, least: int) -> int:
    """A required whole number."""
    value = table.get(item)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TopologyError(
            f"{where} needs {item!r}, a whole number of at least {least}; {given_text(table, item)}."
        )
    return value


def given_text(table: Mapping[str, Any], item: str) -> str:
    """What a table has for a field that it needs, for a message."""
    return f"it has {table[item]!r}" if item in table else "it is missing"


def choice_field(table: Mapping[str, Any], item: str, choices: tuple[str, ...], default: str, where: str) -> str:
    """One of several words."""
    value = table.get(item, default)
    if value not in choices:
        raise TopologyError(f"{where}: {item} = {value!r} is not one of {', '.join(choices)}.")
    return str(value)


def boolean_field(table: Mapping[str, Any], item: str, where: str) -> bool:
    """True or false; false by default."""
    value = table.get(item, False)
    if not isinstance(value, bool):
        raise TopologyError(f"{where}: {item} = {value!r} is neither true nor false.")
    return value
