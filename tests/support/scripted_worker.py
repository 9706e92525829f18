"""A worker that is a scripted socket server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from forebay.streams_metadata import HostInfo
from forebay.wire.answer_schemas.status import Identity


def answer(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nforebay-role: active\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


ASKS_IDENTITY = b"GET /v1/identity "
IDENTITY = answer(msgspec.json.encode(Identity("worker", "test", "p", 1)))
_READ_BYTES = 64 << 10


@asynccontextmanager
async def worker(*pieces: bytes | None) -> AsyncIterator[HostInfo]:
    """A server that gives its identity if asked for it, and sends these pieces once it was sent anything else.

    None closes the connection.
    """

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if (await reader.read(_READ_BYTES)).startswith(ASKS_IDENTITY):
            writer.write(IDENTITY)
            await reader.read(1)
        for piece in pieces:
            if piece is None:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield HostInfo("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
