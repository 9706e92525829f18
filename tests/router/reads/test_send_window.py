"""Requests to workers in flight: bounded in bytes, in their order, and counted."""

import asyncio

import pytest

from forebay.errors import Overloaded
from forebay_router.reads.send_window import MAX_BYTES, SendWindow
from forebay_web.limits import Held, Limit, Peer


@pytest.fixture
def memory() -> Held:
    return Held(Limit("memory", 8 * MAX_BYTES, "no memory"), Peer("a"))


class Requests:
    """Requests that are in flight until they are answered."""

    def __init__(self, window: SendWindow) -> None:
        self._window = window
        self.in_flight: list[int] = []
        self._answers: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def send(self, *bodies: tuple[int, int]) -> None:
        for number, body_bytes in bodies:
            self._answers[number] = asyncio.Event()
            self.tasks[number] = asyncio.create_task(self._one(number, body_bytes))
        await settle()

    async def _one(self, number: int, body_bytes: int) -> None:
        async with self._window.sending(body_bytes):
            self.in_flight.append(number)
            await self._answers[number].wait()
            self.in_flight.remove(number)

    async def answer(self, number: int) -> None:
        self._answers[number].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_large_bodies_are_sent_one_after_the_other(memory):
    """One is always sent, whatever its size, and later small ones do not overtake it."""
    requests = Requests(SendWindow(memory, 64))
    await requests.send((1, 3 * MAX_BYTES), (2, MAX_BYTES), (3, 1), (4, 1))
    assert (requests.in_flight, memory.amount) == ([1], 3 * MAX_BYTES)
    await requests.answer(1)
    assert (requests.in_flight, memory.amount) == ([2], MAX_BYTES)
    await requests.answer(2)
    assert (requests.in_flight, memory.amount) == ([3, 4], 2)


async def test_small_bodies_are_bounded_in_number(memory):
    requests = Requests(SendWindow(memory, 64))
    await requests.send(*((number, 10) for number in range(100)))
    assert (len(requests.in_flight), memory.amount) == (64, 640)


async def test_abandoned_requests_leave_their_turn(memory):
    requests = Requests(SendWindow(memory, 64))
    await requests.send((1, MAX_BYTES // 2), (2, MAX_BYTES), (3, MAX_BYTES // 2), (4, MAX_BYTES))
    assert requests.in_flight == [1]
    requests.tasks[2].cancel()
    await settle()
    assert requests.in_flight == [1, 3]
    requests.tasks[1].cancel()
    requests.tasks[3].cancel()
    await asyncio.sleep(0)
    requests.tasks[4].cancel()  # In its turn, which it has not used.
    await settle()
    await requests.send((5, MAX_BYTES))
    assert requests.in_flight[-1] == 5
    assert memory.amount == MAX_BYTES


async def test_what_is_reserved_is_held_once(memory):
    window = SendWindow(memory, 64)
    requests = Requests(window)
    await window.reserve(MAX_BYTES // 2, 5)
    await requests.send((1, MAX_BYTES // 2))
    assert memory.amount == MAX_BYTES
    window.release()
    assert memory.amount == MAX_BYTES // 2
    with pytest.raises(Overloaded):
        await SendWindow(memory, 64).reserve(8 * MAX_BYTES, 1)


async def test_a_closed_window_holds_nothing(memory):
    """Requests that were cancelled end after the memory was given back."""
    window = SendWindow(memory, 64)
    requests = Requests(window)
    await requests.send((1, 1000))
    window.close()
    assert memory.amount == 0
    await requests.answer(1)
    assert memory.amount == 0
