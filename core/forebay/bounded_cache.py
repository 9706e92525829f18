"""Results that are remembered: a number of them, of short arguments only, so that they are bounded in bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")


def remembered(work_out: Callable[[bytes], T], most: int, max_bytes: int) -> Callable[[bytes], T]:
    """A function with its most recent results kept; of an argument with more bytes it is worked out each time."""
    recent = lru_cache(maxsize=most)(work_out)
    return lambda argument: (recent if len(argument) <= max_bytes else work_out)(argument)
