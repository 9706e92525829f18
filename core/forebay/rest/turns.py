"""Long work in the event loop, in turns with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TypeVar

_MOST_IN_A_TURN_S = 0.002

T = TypeVar("T")


async def in_turns(items: Iterable[T], clock: Callable[[], float] = perf_counter) -> list[T]:
    """The items of an iterator that works for each; the event loop has its turn after every 2 ms of that."""
    taken: list[T] = []
    until_s = clock() + _MOST_IN_A_TURN_S
    for item in items:
        taken.append(item)
        if clock() >= until_s:
            await asyncio.sleep(0)
            until_s = clock() + _MOST_IN_A_TURN_S
    return taken
