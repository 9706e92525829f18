"""Answers that waited in the router for others: their lag grows meanwhile, and may leave its bounds."""

from __future__ import annotations

import re

from forebay.errors import LagExceedsTolerance
from forebay.lag import Lag, Tolerance
from forebay.rest.answers import Answer, lag_head, lag_json, problem_answer

_MEMBER = b'"lag":{'
_LAG = re.compile(rb'"lag":\{"record_lag":(null|\d+),"time_lag_ms":(null|\d+),"age_ms":(null|\d+)\}')
_LEFT_TO_ASK_AGAIN = 0.1
"""Fraction of the time of a read with time bounds."""
_LEAST_MS = 1.0
"""Figures are whole milliseconds, rounded up."""


def aged(body: bytes, waited_ms: float) -> tuple[bytes, Lag | None]:
    """An answer's document aged by this much, and the lag that it then states; None if it states none.

    Its lag is the last member of that name: a value, which precedes it, may contain anything.
    """
    at = body.rfind(_MEMBER)
    found = _LAG.match(body, at) if at >= 0 else None
    if found is None:
        return body, None
    lag = Lag(*(None if figure == b"null" else int(figure) for figure in found.groups()))
    if waited_ms < _LEAST_MS:
        return body, lag
    lag = lag.aged(waited_ms)
    return b'%b"lag":%b%b' % (body[:at], lag_json(lag), body[found.end() :]), lag


def time_to_ask_again_ms(tolerance: Tolerance, time_ms: float) -> float:
    """How much of a read's time is reserved for re-reading answers that left their bounds while waiting."""
    in_time = tolerance.max_time_lag_ms is not None or tolerance.max_age_ms is not None
    return _LEFT_TO_ASK_AGAIN * time_ms if in_time else 0.0


def came_too_early(store: str, tolerance: Tolerance, lag: Lag) -> Answer:
    """The problem of an answer that was within its bounds on arrival, but no longer is."""
    problem = LagExceedsTolerance(
        "A replica's answer met the tolerance when it arrived, but no longer did once the other "
        "replicas had answered.",
        retry_after_s=1,
        store=store,
        tolerance={bound: figure for bound, figure in tolerance._asdict().items() if figure is not None},
        lag=lag.document(),
        attempts=[],
    )
    answer = problem_answer(problem)
    return answer._replace(head=answer.head + lag_head(lag))
