"""Tables in a TOML document: refusals name the table, the field and what it may be."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forebay.errors import TopologyError


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """A question with the nearest of the known names, ``otherwise`` if none is near; from 0 to 1, ``cutoff`` says
    how near."""
    like = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean {like[0]!r}?" if like else otherwise


_SHORTLY = reprlib.Repr()
_SHORTLY.maxstring = 250
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
NAME_RULE = "letters, digits, '.', '_' and '-', not beginning with '.' or '-'"


def field_of(kind: Any, what: str, **limits: Any) -> Any:
    """The type of a field, with limits of msgspec's; ``what`` is what messages call it."""
    return Annotated[kind, Meta(description=what, **limits)]


def whole_number(least: int, most: int | None = None) -> Any:
    """The type of whole numbers, with the least and the most that they may be."""
    up_to = "" if most is None else f" and at most {most}"
    return field_of(int, f"a whole number of at least {least}{up_to}", ge=least, le=most)


def name_of(max_length: int) -> Any:
    """The type of names."""
    return field_of(
        str, f"at most {max_length} {NAME_RULE}", pattern=rf"\A{NAME.pattern}\Z", max_length=max_length
    )


def one_of(choices: Iterable[str]) -> Any:
    """The type of one of several words."""
    return field_of(str, f"one of {', '.join(choices)}", pattern=rf"\A({'|'.join(choices)})\Z")


def check_table(table: Any, fields: Mapping[str, Any], where: str, required: Iterable[str] = ()) -> None:
    """Refuse what is no table, lacks a required field, or has one that is unknown or not of its type.

    Raises ``TopologyError``.
    """
    if not isinstance(table, Mapping):
        raise TopologyError(f"{where} is {table!r}, not a table.")
    unknown = sorted(set(table) - set(fields))
    if unknown:
        meant = did_you_mean(unknown[0], fields, f"it may have {', '.join(sorted(fields))}.")
        raise TopologyError(f"{where} has an unknown field {unknown[0]!r}; {meant}")
    for name in [*(name for name in required if name not in table), *table]:
        try:
            msgspec.convert(table.get(name), fields[name])
        except msgspec.ValidationError:
            given = f"it has {_SHORTLY.repr(table[name])}" if name in table else "it is missing"
            [allowed] = fields[name].__metadata__
            raise TopologyError(f"{where} needs {name!r}, {allowed.description}; {given}.") from None
