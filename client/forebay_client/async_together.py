"""How an asynchronous client carries out several plans: at once. See ``forebay_client.together``, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from forebay_client.exchange import Plan

AT_ONCE = 16
"""More would take what the workers leave a client, and a list of many partitions its turns."""


async def run_together(
    run: Callable[[Plan[None]], Coroutine[Any, Any, None]], plans: Sequence[Plan[None]]
) -> None:
    """Carry out plans at once; raises what the first that fails raises, once the others have ended."""
    tasks = [asyncio.ensure_future(run(plan)) for plan in plans]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
