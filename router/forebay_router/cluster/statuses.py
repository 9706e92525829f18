"""Checks a worker's status as a whole, before anything of it is adopted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forebay.metadata import HostInfo

ROWS_IN_A_STEP = 16
"""Replicas whose rows are read in a tenth of a millisecond."""
_ROLES = frozenset({"active", "restoring", "standby"})
_FIGURES = ("record_lag", "time_lag_ms", "age_ms")
_BOUNDS = frozenset({"max_record_lag", "max_time_lag_ms", "max_age_ms"})


def requiring_status(status: Any) -> Iterator[None]:
    """Raise ``ValueError``, naming what is wrong, unless a document is a worker's whole status, in steps.

    One bad row would otherwise fail every read that it concerns, even where an honest replica exists.
    """
    try:
        HostInfo.parse(status["host"])
        texts = [status["application_id"], status.get("process_id", "")]
        _require(all(type(text) is str for text in texts), "its names are no texts")
        generation = status["generation"]
        numbers = [status["incarnation"], status["sequence"], generation["incarnation"], generation["generation"]]
        _require(all(type(number) is int for number in numbers), "its numbers are no integers")
        _require(status.get("rack") is None or type(status["rack"]) is str, "its rack is no text")
        _require_figures(status.get("ceiling", {}), _BOUNDS)
        _require_figures(status, ("acceptable_recovery_lag",))
        for number, row in enumerate(status["tasks"], 1):
            _require_row(row)
            if number % ROWS_IN_A_STEP == 0:
                yield
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{error!r}") from None


def _require_row(row: Mapping[str, Any]) -> None:
    """The same of one replica's row."""
    place = row["store"], row["partition"]
    _require(type(place[0]) is str and type(place[1]) is int, "a task is of no store's partition")
    _require(row["role"] in _ROLES, f"{row['role']!r} is no role")
    for name in _FIGURES:
        _require(row[name] is None or (type(row[name]) is int and row[name] >= 0), f"{row[name]!r} is no {name}")


def _require_figures(document: Mapping[str, Any], names: Any) -> None:
    """Raise ``ValueError`` unless what there is under these names are figures, or unknown."""
    for name in names:
        figure = document.get(name)
        _require(figure is None or (type(figure) is int and figure >= 0), f"{figure!r} is no {name}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
