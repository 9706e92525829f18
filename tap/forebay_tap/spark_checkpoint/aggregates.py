"""Aggregates from their buffers, which is what state holds of ``groupBy().agg()``.

An aggregate keeps one field or several, in its order in the query: ``avg`` a sum and a count, ``stddev`` and
``variance`` what Welford's method needs. Fields have the buffers' names, not the query's, so that they repeat.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from forebay_tap.spark_checkpoint.data_types import AtomicType, DecimalType, Field
from forebay_tap.spark_checkpoint.errors import StateUnsupported

_IS_EMPTY = "isEmpty"
_REGISTER = re.compile(r"MS\[\d+\]")


@dataclass(frozen=True)
class Finisher:
    """``buffer`` has the names of the fields that ``finish`` takes, in order; its result may be None."""

    buffer: tuple[str, ...]
    finish: Callable[[Sequence[Any]], Any]


def value_reader(function: str, fields: Sequence[Field], position: int) -> Callable[[Sequence[Any]], Any]:
    """What reads an aggregate's value from rows of these fields, whose buffer begins at a position.

    Raises as ``check_function``.
    """
    check_function(function, fields, position)
    finish = FINISHERS[function].finish
    if finish is _only:
        return itemgetter(position)
    end = position + buffer_width(function, fields, position)
    return lambda row: finish(row[position:end])


def functions_at(fields: Sequence[Field], position: int) -> tuple[str, ...]:
    """The functions whose buffer may begin at a position, the widest first.

    A sum of doubles beside a count has the same fields as an average, a standard deviation the same as a variance:
    only the query's author knows.
    """
    fitting = [name for name in FINISHERS if _fits(name, fields[position:])]
    return tuple(sorted(fitting, key=lambda name: -len(FINISHERS[name].buffer)))


def is_opaque(field: Field) -> bool:
    """Whether a field of a buffer has a form that only Spark reads.

    So do aggregates that keep objects, such as ``collect_list`` and ``percentile_approx``, and the registers of
    ``approx_count_distinct``.
    """
    is_object = field.name == "buf" and field.type == AtomicType("binary")
    return is_object or _REGISTER.fullmatch(field.name) is not None


def check_function(function: str, fields: Sequence[Field], position: int) -> None:
    """Raise ``StateUnsupported`` unless the function's buffer can begin at the position."""
    if function not in FINISHERS:
        message = f"No values of {function!r} can be finished, only of {', '.join(FINISHERS)}."
        raise StateUnsupported(f"{message} Pass the field on as it is.")
    if not _fits(function, fields[position:]):
        there = ", ".join(f"{field.name} {field.type}" for field in fields[position : position + 3]) or "nothing"
        needed = ", ".join(FINISHERS[function].buffer)
        raise StateUnsupported(
            f"{function} needs the fields {needed} from position {position}, where there is {there}."
        )


def _fits(function: str, fields: Sequence[Field]) -> bool:
    buffer = FINISHERS[function].buffer
    if tuple(field.name for field in fields[: len(buffer)]) != buffer:
        return False
    # An average of decimals has digits of its own, of intervals a type of its own.
    return function != "avg" or fields[0].type == AtomicType("double")


def _only(buffer: Sequence[Any]) -> Any:
    return buffer[0]


def _sum(buffer: Sequence[Any]) -> Any:
    total, is_empty = (*buffer, False)[:2]
    return None if is_empty else total


def _average(buffer: Sequence[Any]) -> Any:
    total, count = buffer[:2]
    return total / count if count else None


def _variance(buffer: Sequence[Any]) -> Any:
    count, _, squares = buffer[:3]
    return squares / (count - 1) if count > 1 else None


def _deviation(buffer: Sequence[Any]) -> Any:
    variance = _variance(buffer)
    return None if variance is None else math.sqrt(variance)


FINISHERS = {
    "count": Finisher(("count",), _only),
    "sum": Finisher(("sum",), _sum),
    "min": Finisher(("min",), _only),
    "max": Finisher(("max",), _only),
    "first": Finisher(("first", "valueSet"), _only),
    "last": Finisher(("last", "valueSet"), _only),
    "avg": Finisher(("sum", "count"), _average),
    "stddev": Finisher(("n", "avg", "m2"), _deviation),
    "variance": Finisher(("n", "avg", "m2"), _variance),
}


def buffer_width(function: str, fields: Sequence[Field], position: int) -> int:
    """How many fields an aggregate's buffer has; sums of decimals have one more, whether there is any."""
    width = len(FINISHERS[function].buffer)
    after = fields[position + width : position + width + 1]
    decimal_sum = function == "sum" and isinstance(fields[position].type, DecimalType)
    return width + (decimal_sum and bool(after) and after[0].name == _IS_EMPTY)
