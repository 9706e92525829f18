"""Speculative hedges: a second replica is asked when the first is slower than usual, within a budget."""

from __future__ import annotations

_QUANTILE = 0.99
_MIN_DELAY_MS = 8.0
MAX_DELAY_MS = 250.0
_START_DELAY_MS = 25.0
_STEP = 0.05
_RISE = 1 + _STEP * _QUANTILE
_FALL = 1 - _STEP * (1 - _QUANTILE)
_SHARE = 0.1
_MIN_BURST = 10.0


class HedgeDelay:
    """A running estimate of the 99th percentile of answer times, in milliseconds."""

    def __init__(self) -> None:
        self._estimate_ms = _START_DELAY_MS

    def observe(self, elapsed_ms: float) -> None:
        estimate = self._estimate_ms
        estimate *= _RISE if elapsed_ms > estimate else _FALL
        self._estimate_ms = min(max(estimate, _MIN_DELAY_MS / 2), MAX_DELAY_MS / 2)

    @property
    def delay_ms(self) -> float:
        """How long to wait for an answer before asking another replica too."""
        return min(max(2 * self._estimate_ms, _MIN_DELAY_MS), MAX_DELAY_MS)


class HedgeBudget:
    """Lets a tenth of all requests be hedges, in bursts of up to a second's worth of requests."""

    def __init__(self) -> None:
        self._tokens = _MIN_BURST
        self._burst = _MIN_BURST
        self._second = 0
        self._in_second = 0

    @property
    def left(self) -> int:
        return int(self._tokens)

    def earn(self, now_ms: float, requests: int = 1) -> None:
        """Count requests that came at this time, or shortly before."""
        second = int(now_ms // 1000)
        if second != self._second:
            self._burst = max(_MIN_BURST, float(self._in_second))
            self._second, self._in_second = second, 0
        self._in_second += requests
        self._tokens = min(self._burst, self._tokens + requests * _SHARE)

    def spend(self) -> bool:
        """Whether one more hedge is allowed; counts it if so."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
