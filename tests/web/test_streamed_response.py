"""A response in pieces ends with its client, and nothing of it is left to the garbage collector."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import pytest

from forebay_web.streamed_response import StreamedResponse
from tests.support.cluster import until


@contextmanager
def no_collections():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Client:
    """The server's side of a connection: what was sent, and whether the client is still there."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_left = asyncio.Event()
        self.received = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(bytes(message.get("body", b"")))
        self.received.set()


class Pieces:
    """Some pieces, and then none until it is closed."""

    def __init__(self, *pieces: bytes, ends: bool) -> None:
        self.pieces = pieces
        self.ends = ends
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for piece in self.pieces:
                yield piece
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


@pytest.mark.parametrize("ends", [True, False], ids=["sent", "left"])
async def test_nothing_of_a_response_is_left_to_the_collector(ends):
    client, pieces = Client(), Pieces(b"a", b"b", ends=ends)
    response = StreamedResponse(pieces.__aiter__())
    with no_collections():
        known = [weakref.ref(response), weakref.ref(pieces)]
        serving = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        async with asyncio.timeout(20):
            await client.received.wait()
            if not ends:
                client.has_left.set()
            await serving
        assert client.sent == ([b"", b"a", b"b", b""] if ends else [b"", b"a", b"b"])
        del response, pieces, serving
        # What was cancelled ends in later turns of the loop.
        await until(lambda: [one() for one in known] == [None, None])


async def test_thousands_that_leave_together_end_a_few_in_a_turn():
    """Reads come in between."""
    clients = [Client() for _ in range(200)]
    responses = [StreamedResponse(Pieces(b"a", ends=False).__aiter__()) for _ in clients]
    serving = {
        asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        for response, client in zip(responses, clients, strict=True)
    }
    async with asyncio.timeout(20):
        await asyncio.gather(*(client.received.wait() for client in clients))
        for client in clients:
            client.has_left.set()
        most = 0
        while serving:
            ended = {one for one in serving if one.done()}
            serving -= ended
            most = max(most, len(ended))
            await asyncio.sleep(0)
    assert 0 < most <= 32
