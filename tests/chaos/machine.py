"""Whether the machine had time for what runs on it: where it had none, nobody can say who would have answered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from forebay.clock import boot_ms
from tests.chaos.history import Overload

_SAMPLE_S = 0.5
_SAMPLES = 6
_MAX_WAITING = 0.95
"""Share of three seconds in which somebody waited for a processor. Without faults it is about a third."""
_MAX_LATE_MS = 300.0
"""So late comes a thread that only sleeps, if the machine itself stands still."""
_AROUND_MS = 1_000.0
_PRESSURE = Path("/proc/pressure/cpu")


class Machine:
    """Notes when the machine is overloaded, in a thread of its own."""

    def __init__(self, report: Callable[[Overload], object]) -> None:
        self._report = report
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine")
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES + 1)

    def start(self) -> None:
        """Begin to note it."""
        self._thread.start()

    def stop(self) -> None:
        """Note it no more."""
        self._stopping.set()
        self._thread.join()

    def sample(self, now_ms: float, waiting_ms: float) -> None:
        """Judge the machine by a time, and for how long somebody has waited for a processor up to then."""
        self._samples.append((now_ms, waiting_ms))
        if len(self._samples) < 2:
            return
        (first_ms, first_waiting_ms), (last_ms, _) = self._samples[0], self._samples[-2]
        is_late = now_ms - last_ms > 1_000 * _SAMPLE_S + _MAX_LATE_MS
        is_full = len(self._samples) > _SAMPLES
        share = (waiting_ms - first_waiting_ms) / max(1.0, now_ms - first_ms)
        if is_late or (is_full and share >= _MAX_WAITING):
            self._report(Overload((last_ms if is_late else first_ms) - _AROUND_MS, now_ms + _AROUND_MS))

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            self.sample(boot_ms(), waiting_ms())


def waiting_ms() -> float:
    """For how long, since the machine's start, somebody has waited for a processor; 0 where Linux does not say."""
    try:
        some = _PRESSURE.read_text().splitlines()[0]
    except OSError:
        return 0.0
    return float(some.rpartition("total=")[2]) / 1_000
