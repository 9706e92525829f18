"""Answers that take too long to be made, copied or sent at once: in pieces, others' turns in between."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forebay.clock import boot_ms
from forebay.event_loop_turns import in_turns
from forebay.lag import Lag, Tolerance
from forebay.wire.answer_aging import aged, bounds_exceeded
from forebay.wire.answers import JSON_HEAD, NO_STORE, WITH_LAG, HttpAnswer, header_lines
from forebay.wire.batches import (
    FRAMES_HEAD,
    BatchKeys,
    KeyResult,
    batch_answer,
    key_result,
    problem_result,
    read_batch_frames,
)

MAX_AT_ONCE_BYTES = 1 << 20
"""Of an answer: a larger one is neither joined nor sent in one turn of the event loop."""
_PIECE_BYTES = 256 << 10
_ARRAY_16, _BIN_32 = struct.Struct(">BH"), struct.Struct(">BI")
_ARRAY_16_TYPE, _BIN_32_TYPE = 0xDC, 0xC6
"""The type and the size of an array, and of bytes of any length, in MessagePack."""
_ARRAY_OF_TWO = b"\x92"
_JOINING = ThreadPoolExecutor(1, "forebay-large-answers")


class LargeAnswer(NamedTuple):
    """Status and header lines as of ``HttpAnswer``, and the parts of the body, which are not joined."""

    status: int
    head: bytes
    parts: Sequence[bytes]

    @property
    def size_bytes(self) -> int:
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
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_in_pieces(self._parts, send)


async def batch_answer_in_turns(
    keys: BatchKeys, results: Sequence[KeyResult], *, frames: bool = False
) -> HttpAnswer | LargeAnswer:
    """The same as ``batch_answer``, for results of any size."""
    if not keys.large and sum(len(body) for _, body in results) <= MAX_AT_ONCE_BYTES:
        return batch_answer(keys, results, frames=frames)
    if frames:
        return LargeAnswer(200, FRAMES_HEAD, list(_frames(results)))
    return LargeAnswer(200, JSON_HEAD + NO_STORE, await in_turns(_documents(keys, results)))


def _documents(keys: BatchKeys, results: Iterable[KeyResult]) -> Iterator[bytes]:
    yield b'{"results":['
    for place, (status, body) in enumerate(results):
        if place:
            yield b","
        yield body if status == 200 else problem_result(keys, place, body)
    yield b"]}"


def _frames(results: Sequence[KeyResult]) -> Iterator[bytes]:
    yield _ARRAY_OF_TWO + msgspec.msgpack.encode([status for status, _ in results])
    yield _ARRAY_16.pack(_ARRAY_16_TYPE, len(results))
    for _, body in results:
        yield _BIN_32.pack(_BIN_32_TYPE, len(body))
        yield body


async def read_batch_frames_in_turns(pieces: Sequence[bytes], count: int) -> tuple[list[int], list[bytes]]:
    """The same as ``read_batch_frames``, for an answer that arrived in some pieces; the bodies are copied."""
    if sum(map(len, pieces)) <= MAX_AT_ONCE_BYTES:
        statuses, bodies = read_batch_frames(b"".join(pieces), count)
        return statuses, list(map(bytes, bodies))
    # Python's lock is not held while megabytes are joined. Asyncio's own threads may wait for names' addresses.
    joined = await asyncio.get_running_loop().run_in_executor(_JOINING, b"".join, pieces)
    statuses, bodies = read_batch_frames(joined, count)
    return statuses, await in_turns(map(bytes, bodies))


async def results_by_now(
    results: Sequence[KeyResult], as_of_boot_ms: Sequence[float], tolerance: Tolerance, store: str
) -> list[KeyResult]:
    """Results with their present lag, each right as of a time; a problem in place of each beyond its bounds."""
    return await in_turns(
        _by_now(result, boot_ms() - at_boot_ms, tolerance, store)
        for result, at_boot_ms in zip(results, as_of_boot_ms, strict=True)
    )


def _by_now(result: KeyResult, waited_ms: float, tolerance: Tolerance, store: str) -> KeyResult:
    status, body = result
    if status not in WITH_LAG:
        return result
    body, lag = aged(body, waited_ms)
    if lag is None or tolerance.met_by(lag):
        return status, body
    return key_result(bounds_exceeded(store, tolerance, lag))


def lag_by_now(result: KeyResult, waited_ms: float) -> Lag | None:
    """The lag that a result has after waiting, None if it states none."""
    status, body = result
    lag = aged(body, 0)[1] if status in WITH_LAG else None
    return None if lag is None else lag.aged(waited_ms)
