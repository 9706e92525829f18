"""A response in pieces ends with its client, and nothing of it is left to the garbage collector."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import pytest

from forebay.rest.streamed_response import StreamedResponse


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
        # What was cancelled ends in the loop's next turns.
        for _ in range(5):
            await asyncio.sleep(0)
        assert [one() for one in known] == [None, None]


async def test_a_client_that_leaves_gives_its_place_back_before_the_end():
    """Thousands that leave together end in turn, and others want their places."""
    released: list[bool] = []

    class Limited(StreamedResponse):
        def release(self) -> None:
            released.append(self._is_sending)

    client = Client()
    response = Limited(Pieces(b"a", ends=False).__aiter__())
    serving = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
    async with asyncio.timeout(20):
        await client.received.wait()
        client.has_left.set()
        await serving
    assert released == [True]
