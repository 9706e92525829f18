"""Outgoing answers, in the order of their requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forebay.clock import boot_ms
from forebay.lag import Tolerance
from forebay.wire.answer_aging import answer_by_now
from forebay.wire.answers import HttpAnswer
from forebay_web.large_answers import LargeAnswer

if TYPE_CHECKING:
    from forebay_web.fast_path.protocol import FastPathProtocol

OPEN, FILLED, ABANDONED = "open", "filled", "abandoned"
"""The states of an outstanding answer; it leaves its connection once it is sent."""


def render(answer: HttpAnswer, lines: bytes = b"") -> bytes:
    """An answer's bytes, the same as the framework sends; ``lines`` are the header lines for the request's
    origin."""
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[answer.status],
        answer.head,
        len(answer.body),
        lines,
        answer.body,
    )


def head_of(answer: LargeAnswer, size_bytes: int, lines: bytes) -> bytes:
    """The same of an answer, up to its body of this size."""
    return b"%b%bcontent-length: %d\r\n%b\r\n" % (STATUS_LINE[answer.status], answer.head, size_bytes, lines)


class PendingResponse:
    """The place of one answer in a connection's order of answers.

    ``lines`` are the header lines for the request's origin.
    """

    __slots__ = (
        "_answer",
        "_bounds",
        "_connection",
        "_filled_boot_ms",
        "lines",
        "on_abandoned",
        "state",
        "trace",
        "waits",
    )

    def __init__(self, connection: FastPathProtocol, lines: bytes) -> None:
        self._connection = connection
        self.lines = lines
        self.trace = connection.trace
        self.state = OPEN
        self.waits = False
        """Whether it may wait for long, so that a client that sends nothing more has left."""
        self.on_abandoned: Callable[[], object] | None = None
        """Called if the client leaves before there is an answer."""

    def fill(self, answer: HttpAnswer, bounds: tuple[str, Tolerance] | None = None) -> None:
        """Set the answer; only the first counts, and it is sent once all earlier ones are.

        ``bounds`` are the store and the tolerance of a read of one key, and still hold when it is sent.
        """
        if self.state is not OPEN:
            return
        self.state = FILLED
        if not self._connection.send_if_next(self, answer):
            self._answer, self._bounds = answer, bounds
            self._filled_boot_ms = boot_ms()
            self._connection.on_waiting(self.waiting_bytes)

    def abandon(self) -> None:
        """The client has left: an answer that still comes is dropped, and counted nowhere."""
        before, self.state = self.state, ABANDONED
        if before is OPEN and self.on_abandoned is not None:
            self.on_abandoned()

    @property
    def waiting_bytes(self) -> int:
        """What an answer takes that could not be sent at once."""
        return len(self._answer.body)

    def render(self) -> bytes:
        """The bytes, as of now, of an answer that could not be sent at once."""
        answer = self._answer
        if self._bounds is not None:
            store, tolerance = self._bounds
            answer = answer_by_now(answer, boot_ms() - self._filled_boot_ms, tolerance, store)
        return self.rendered(answer)

    def rendered(self, answer: HttpAnswer) -> bytes:
        stated = answer if self.trace is None else self.trace.stated(answer, self._connection.tier)
        return render(stated, self.lines)
