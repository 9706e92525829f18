"""Turns problem documents into exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.errors import Problem
from forebay.lag import Lag

_PREFIX = "urn:forebay:problem:"
_CLASSES = {kind.name: kind for kind in Problem.__subclasses__()}
_OWN_MEMBERS = ("type", "title", "status", "detail", "retry_after_s")


def problem_of(document: Mapping[str, Any], retry_after_s: int | None = None) -> Problem:
    """The exception for a problem document: the class of its type, else ``Problem`` with the whole document.

    If the document states a lag, the exception has it as ``lag``.
    """
    detail = str(document.get("detail", ""))
    kind = _CLASSES.get(str(document.get("type", "")).removeprefix(_PREFIX))
    own = _OWN_MEMBERS if kind else ("detail", "retry_after_s")
    retry_after = document.get("retry_after_s")
    retry_after_s = retry_after if retry_after_s is None and isinstance(retry_after, int) else retry_after_s
    members = {name: value for name, value in document.items() if name not in own}
    problem = (kind or Problem)(detail, retry_after_s=retry_after_s, **members)
    lag = document.get("lag")
    if isinstance(lag, Mapping):
        problem.lag = Lag(*(lag.get(figure) for figure in Lag._fields))
    return problem
