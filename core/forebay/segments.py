"""What follows from a key's URL segment, remembered for keys that are read again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

_MOST_KEYS, _LEAST_KEYS = 32_768, 64
"""Keys remembered: of all stores of a process, and of each however many there are."""
_MOST_BYTES = 128
"""Longer segments are worked out each time: what is remembered must be bounded in bytes."""

T = TypeVar("T")


def remembered(work_out: Callable[[bytes], T], stores: int) -> Callable[[bytes], T]:
    """The function of a segment, with its recent results kept: that of one store, which is one of so many."""
    recent = lru_cache(maxsize=max(_LEAST_KEYS, _MOST_KEYS // stores))(work_out)
    return lambda segment: (recent if len(segment) <= _MOST_BYTES else work_out)(segment)
