"""Unproven ranges: the ends of entries whose last values a log may lack, because its writer could not learn them.

A tap learns what became of a window or session only while the state has it. What ended and left the state while
the tap was away is unknown: such an entry may be missing, and its absence proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

_MAX_RANGES = 8
"""Of one writer. A heartbeat has them all."""
_SINCE_EVER = float("-inf")


class UnprovenRange(NamedTuple):
    """The entries that end after ``from_ms``, and at ``to_ms`` at the latest; epoch milliseconds.

    ``from_ms`` is None if nothing is known of all that ended before.
    """

    from_ms: int | None
    to_ms: int

    def meets(self, ends_ms: tuple[int, int]) -> bool:
        """Whether an entry may be in it whose end is in a half-open range."""
        first_ms, last_ms = ends_ms
        return self.to_ms >= first_ms and _from(self) + 1 < last_ms


UnprovenRanges: TypeAlias = tuple[UnprovenRange, ...]


def united(ranges: Iterable[Sequence[Any]]) -> UnprovenRanges:
    """Ranges in order, those that touch as one, and the oldest as one if there are many."""
    found: list[UnprovenRange] = []
    for one in sorted((UnprovenRange(*one) for one in ranges), key=_from):
        if found and _from(one) <= found[-1].to_ms:
            found[-1] = _hull(found[-1], one)
        else:
            found.append(one)
    while len(found) > _MAX_RANGES:
        found[:2] = [_hull(*found[:2])]
    return tuple(found)


def kept(ranges: Iterable[UnprovenRange], oldest_end_ms: int | None) -> UnprovenRanges:
    """What is left of ranges where entries that end before a time have expired; all of them without one."""
    if oldest_end_ms is None:
        return tuple(ranges)
    return tuple(
        UnprovenRange(int(max(_from(one), oldest_end_ms - 1)), one.to_ms)
        for one in ranges
        if one.to_ms >= oldest_end_ms
    )


def _hull(first: UnprovenRange, second: UnprovenRange) -> UnprovenRange:
    return UnprovenRange(first.from_ms, max(first.to_ms, second.to_ms))


def _from(one: UnprovenRange) -> float:
    return _SINCE_EVER if one.from_ms is None else one.from_ms
