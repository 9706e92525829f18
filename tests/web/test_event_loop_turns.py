import asyncio
import itertools

from forebay.event_loop_turns import in_turn, in_turns


async def test_the_work_of_many_in_one_turn_is_bounded_as_of_one():
    """By a clock on which each piece of work takes a millisecond: none of them has more than one."""
    ticks = itertools.count()
    since_the_last_turn, most = 0, 0

    def work() -> None:
        nonlocal since_the_last_turn, most
        since_the_last_turn += 1
        most = max(most, since_the_last_turn)

    async def others() -> None:
        nonlocal since_the_last_turn
        while True:
            since_the_last_turn = 0
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    steps = [in_turns((work() for _ in range(1)), lambda: next(ticks) / 1000) for _ in range(30)]
    await asyncio.gather(*steps)
    for _ in range(30):
        await in_turns((work() for _ in range(1)), lambda: next(ticks) / 1000)
    beside.cancel()
    assert 0 < most <= 3


async def test_what_work_returns_is_its_result():
    assert await in_turn(lambda: "done") == "done"
