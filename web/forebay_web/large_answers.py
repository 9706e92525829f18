"""Answers that take too long to be copied or sent at once: sent in pieces, others' turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forebay.wire.answers import header_lines

MAX_AT_ONCE_BYTES = 1 << 20
"""Of an answer: a larger one is neither joined nor sent in one turn of the event loop."""
_PIECE_BYTES = 256 << 10


class LargeAnswer(NamedTuple):
    """Status and header lines as of ``HttpAnswer``, and the parts of the body, which are not joined."""

    status: int
    head: bytes
    parts: Sequence[bytes]

    @property
    def size_bytes(self) -> int:
        """The length of the body."""
        return sum(map(len, self.parts))


def pieces_of(parts: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """A body in pieces, each sent in a fraction of a millisecond: small parts together, large ones cut."""
    small: list[bytes] = []
    small_bytes = 0
    for part in parts:
        if small and small_bytes + len(part) > _PIECE_BYTES:
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(part) > _PIECE_BYTES:
            whole = memoryview(part)
            yield from (whole[at : at + _PIECE_BYTES] for at in range(0, len(part), _PIECE_BYTES))
        else:
            small.append(part)
            small_bytes += len(part)
    if small:
        yield b"".join(small)


async def send_in_pieces(parts: Iterable[bytes], send: Send) -> None:
    """Send a body as fast as the client reads, while others are answered."""
    for piece in pieces_of(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        # A client that reads as fast as this sends would leave no turn to others.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


class LargeResponse(Response):
    """A large answer as a response of the framework."""

    def __init__(self, answer: LargeAnswer) -> None:
        self._parts = answer.parts
        self.status_code = answer.status
        self.raw_headers = [*header_lines(answer.head), (b"content-length", b"%d" % answer.size_bytes)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_in_pieces(self._parts, send)
