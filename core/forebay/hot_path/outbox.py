"""Answers on their way out: each in its place, all of a turn of the event loop together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forebay.rest.answers import Answer

if TYPE_CHECKING:
    from forebay.hot_path.protocol import HotPathProtocol


def render(answer: Answer, lines: bytes = b"") -> bytes:
    """An answer's bytes, the same as the framework sends; ``lines`` are those of the request's origin."""
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
        """Give the answer; only the first counts, and it is sent once all before it are."""
        if self.answer is None:
            self.answer = render(answer, self._lines)
            self._protocol.send_filled()


class Outbox:
    """Sends what a turn of the event loop has to say when all that was received in it is read.

    A write to a peer that sleeps also wakes it, which costs more than the write: one that finds all its answers
    at once is woken once for them.
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
