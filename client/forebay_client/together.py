"""How a blocking client carries out several plans: one after the other, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forebay_client.exchange import Plan

AT_ONCE = 1


def run_together(run: Callable[[Plan[None]], None], plans: Sequence[Plan[None]]) -> None:
    """Carry out plans; raises what the first that fails raises."""
    for plan in plans:
        run(plan)
