"""Long work in the event loop, in turns with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TypeVar
from weakref import WeakKeyDictionary

_MAX_IN_A_TURN_S = 0.002

T = TypeVar("T")


class _LoopTurn:
    """What long work may take of the present turn of an event loop, whoever does it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Whoever has long work takes one turn of the loop after the other."""
        self._until_s: float | None = None

    def until_s(self, now_s: float) -> float:
        """When it is over: what one has begun, the next one in the same turn continues."""
        if self._until_s is None:
            self._until_s = now_s + _MAX_IN_A_TURN_S
            asyncio.get_running_loop().call_soon(self._end)
        return self._until_s

    def _end(self) -> None:
        self._until_s = None


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTurn] = WeakKeyDictionary()


async def in_turns(items: Iterable[T], clock: Callable[[], float] = perf_counter) -> list[T]:
    """The items of an iterator that works for each.

    The event loop has its turn after every 2 ms of that, however many call this at once: they take turns.
    """
    taken: list[T] = []
    iterator = iter(items)
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop) or _turns.setdefault(loop, _LoopTurn())
    while True:
        async with turn.lock:
            until_s = turn.until_s(clock())
            for item in iterator:
                taken.append(item)
                if clock() >= until_s:
                    break
            else:
                return taken
            await asyncio.sleep(0)


async def in_turn(work: Callable[[], T]) -> T:
    """The result of some work, done when it is its turn."""
    [result] = await in_turns(work() for _ in range(1))
    return result


async def decoded_in_turn(decode: Callable[[bytes], T], parts: Sequence[bytes]) -> T:
    """What was received in some parts, decoded when it is its turn."""
    return await in_turn(lambda: decode(b"".join(parts)))
