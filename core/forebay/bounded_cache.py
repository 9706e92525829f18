"""Results that are remembered: a number of them, of short arguments only, so that they are bounded in bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

_MAX_SEGMENTS, _MIN_SEGMENTS = 32_768, 64
"""Keys remembered: of all stores of a process, and of each however many there are."""
_MAX_SEGMENT_BYTES = 128

T = TypeVar("T")


def remembered(work_out: Callable[[bytes], T], most: int, max_bytes: int) -> Callable[[bytes], T]:
    """A function with its most recent results kept; of an argument with more bytes it is worked out each time."""
    recent = lru_cache(maxsize=most)(work_out)
    return lambda argument: (recent if len(argument) <= max_bytes else work_out)(argument)


def of_one_store(work_out: Callable[[bytes], T], stores: int) -> Callable[[bytes], T]:
    """The same for a function of a key's URL segment: that of one store, which is one of so many."""
    return remembered(work_out, max(_MIN_SEGMENTS, _MAX_SEGMENTS // stores), _MAX_SEGMENT_BYTES)
