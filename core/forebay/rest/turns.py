"""Long work in the event loop, in turns with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TypeVar
from weakref import WeakKeyDictionary

_MOST_IN_A_TURN_S = 0.002
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""One for each event loop: whoever has long work takes one turn of the loop after the other."""

T = TypeVar("T")


async def in_turns(items: Iterable[T], clock: Callable[[], float] = perf_counter) -> list[T]:
    """The items of an iterator that works for each.

    The event loop has its turn after every 2 ms of that, however many call this at once: they take turns.
    """
    taken: list[T] = []
    iterator = iter(items)
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    while True:
        async with turn:
            until_s = clock() + _MOST_IN_A_TURN_S
            for item in iterator:
                taken.append(item)
                if clock() >= until_s:
                    break
            else:
                return taken
            await asyncio.sleep(0)


async def decoded_in_turn(decode: Callable[[bytes], T], parts: Sequence[bytes]) -> T:
    """What was received in some parts, decoded at once when it is its turn."""
    wholes = (b"".join(received) for received in [parts])
    [decoded] = await in_turns(map(decode, wholes))
    return decoded
