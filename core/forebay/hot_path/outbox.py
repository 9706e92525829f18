"""Outgoing answers: in order, and all of one event-loop turn together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forebay.rest.answers import Answer

if TYPE_CHECKING:
    from forebay.hot_path.protocol import HotPathProtocol


def render(answer: Answer, lines: bytes = b"") -> bytes:
    """An answer's bytes, the same as the framework sends; ``lines`` are the header lines for the request's
    origin."""
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[answer.status],
        answer.head,
        len(answer.body),
        lines,
        answer.body,
    )


class Slot:
    """The place of one answer in a connection's order of answers."""

    __slots__ = ("_lines", "_protocol", "answer")

    def __init__(self, protocol: HotPathProtocol, lines: bytes) -> None:
        self._protocol = protocol
        self._lines = lines
        self.answer: bytes | None = None

    def fill(self, answer: Answer) -> None:
        """Set the answer; only the first counts, and it is sent once all earlier ones are."""
        if self.answer is None:
            self.answer = render(answer, self._lines)
            self._protocol.send_filled()


class Outbox:
    """Writes all answers of one event-loop turn together, once everything received in it was handled.

    A write to a sleeping peer also wakes it, which costs more than the write itself: this way it is woken once for
    all its answers.
    """

    def __init__(self) -> None:
        self._protocols: list[HotPathProtocol] = []

    def add(self, protocol: HotPathProtocol) -> None:
        """Have a connection's answers sent at the end of this turn."""
        if not self._protocols:
            protocol.loop.call_soon(self._end_turn)
        self._protocols.append(protocol)

    def _end_turn(self) -> None:
        protocols, self._protocols = self._protocols, []
        for protocol in protocols:
            protocol.send_now()
