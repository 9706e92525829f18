"""What was worked out for the keys that were read last, by their URL segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.bounded_cache import remembered

_MAX_REMEMBERED, _MIN_REMEMBERED = 32_768, 64
"""Keys remembered: of all stores of a process, and of each however many there are."""
_MAX_REMEMBERED_BYTES = 128
"""Longer segments are worked out each time: what is remembered must be bounded in bytes."""

T = TypeVar("T")


def of_one_store(work_out: Callable[[bytes], T], stores: int) -> Callable[[bytes], T]:
    """The function of a segment, with its recent results kept: that of one store, which is one of so many."""
    return remembered(work_out, max(_MIN_REMEMBERED, _MAX_REMEMBERED // stores), _MAX_REMEMBERED_BYTES)
