"""Slow start: a worker that was lost regains its share of reads step by step."""

from __future__ import annotations

_ANSWERS_TO_RECOVER = 64


class SlowStart:
    """How many reads a worker may have at once before others are preferred.

    After a loss it is one, a probe; each answer allows one more (TCP's slow start, in reads), and after 64 answers
    the worker counts like any other.
    """

    def __init__(self) -> None:
        self.window: int | None = None
        """None if the worker is not recovering."""

    def lose(self) -> None:
        """The worker was lost: it refused or broke a connection, or let a poll run into its time-out.

        Slow reads do not count as a loss. Under load they are common, and sparing the worker because of them would
        make everything even slower.
        """
        self.window = 1

    def answered(self) -> None:
        """The worker answered a read that was still awaited."""
        if self.window is not None:
            self.window = self.window + 1 if self.window < _ANSWERS_TO_RECOVER else None
