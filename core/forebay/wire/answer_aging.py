"""Answers that waited before they are sent: their lag grows meanwhile, and may leave its bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay.errors import LagExceedsTolerance
from forebay.lag import Lag, Tolerance
from forebay.wire.answers import WITH_LAG, HttpAnswer, lag_head, lag_json, problem_answer
from forebay.wire.batches import KeyResult

_MEMBER = b'"lag":{'
_LAG = re.compile(rb'"lag":\{"record_lag":(null|\d+),"time_lag_ms":(null|\d+),"age_ms":(null|\d+)\}')
IN_TRANSIT_MS = 100.0
"""An answer that took no longer is passed on with the lag that it states; of one that took longer nobody knows how
long it was under way, or waited to be received."""
_WAITED = re.compile(rb"forebay-waited-ms: (\d+)\r\n")
_RESERVED_FOR_RETRY = 0.1
"""Fraction of the time of a read with time bounds."""
_MIN_MS = 1.0
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
    if waited_ms < _MIN_MS:
        return body, lag
    lag = lag.aged(waited_ms)
    return b'%b"lag":%b%b' % (body[:at], lag_json(lag), body[found.end() :]), lag


def stated_lags(results: Iterable[KeyResult]) -> set[Lag]:
    """The lags that a batch's results state."""
    # Nearly all of a partition end with the same.
    ends = {body[body.rfind(_MEMBER) :] for status, body in results if status in WITH_LAG}
    return {lag for end in ends if (lag := aged(end, 0)[1]) is not None}


def as_of(answer: HttpAnswer, requested_boot_ms: float, received_boot_ms: float) -> float:
    """As of when the lag in a worker's answer is right at the latest, on the boot-time clock.

    That is when it came, unless it took long: then when it was asked for, but for the time that the worker waited
    before it read anything.
    """
    found = _WAITED.search(answer.head)
    waited_ms = 0 if found is None else int(found[1])
    begun = requested_boot_ms + waited_ms
    return begun if received_boot_ms - begun > IN_TRANSIT_MS else received_boot_ms


def time_reserved_for_retry_ms(tolerance: Tolerance, time_ms: float) -> float:
    """How much of a read's time is reserved for re-reading answers that left their bounds while waiting."""
    in_time = tolerance.max_time_lag_ms is not None or tolerance.max_age_ms is not None
    return _RESERVED_FOR_RETRY * time_ms if in_time else 0.0


def answer_by_now(
    answer: HttpAnswer,
    waited_ms: float,
    tolerance: Tolerance,
    store: str,
    then: str = "earlier requests had been answered",
) -> HttpAnswer:
    """A single key's answer after it has waited: with its present lag; a refusal if that is beyond the bounds.

    ``then`` is when that was found.
    """
    if waited_ms < _MIN_MS or answer.status not in WITH_LAG:
        return answer
    before, (body, lag) = aged(answer.body, 0)[1], aged(answer.body, waited_ms)
    if before is None or lag is None:
        return answer
    if not tolerance.met_by(lag):
        return bounds_exceeded(store, tolerance, lag, then)
    return HttpAnswer(answer.status, answer.head.replace(lag_head(before), lag_head(lag), 1), body)


def bounds_exceeded(
    store: str, tolerance: Tolerance, lag: Lag, then: str = "the others had answered"
) -> HttpAnswer:
    """The problem of an answer that was within its bounds on arrival, but no longer is."""
    problem = LagExceedsTolerance(
        f"A replica's answer met the tolerance when it arrived, but no longer did once {then}.",
        retry_after_s=1,
        store=store,
        tolerance={bound: figure for bound, figure in tolerance._asdict().items() if figure is not None},
        lag=lag.document(),
        attempts=[],
    )
    return problem_answer(problem, lines=lag_head(lag))
