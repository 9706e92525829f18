"""Bodies that come piece by piece, each in time, and all of them too late."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvloop

from forebay.client import AsyncClient, Client
from forebay.errors import Problem
from forebay_client.httpx_clients import shut_down

_PAUSE_S = 0.1
_PIECES = 100


@pytest.fixture
def dripping() -> Iterator[str]:
    """A server whose answers take ten seconds, a byte at a time; its URL."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 16)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % _PIECES
            try:
                connection.sendall(head)
                for _ in range(_PIECES):
                    connection.sendall(b" ")
                    if ended.wait(_PAUSE_S):
                        return
            except OSError:
                return

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_read_ends_in_time_though_its_answer_goes_on_arriving(dripping: str) -> None:
    begun = time.monotonic()
    with Client(dripping, timeout_ms=300) as client, pytest.raises(Problem):
        client.get("s", "k")
    assert time.monotonic() - begun < _PAUSE_S * _PIECES / 2


async def test_an_asynchronous_read_ends_in_time_too(dripping: str) -> None:
    begun = time.monotonic()
    async with AsyncClient(dripping, timeout_ms=300) as client:
        with pytest.raises(Problem):
            await client.get("s", "k")
    assert time.monotonic() - begun < _PAUSE_S * _PIECES / 2


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_is_out_of_step_is_shut_down_in_every_event_loop(dripping: str, run) -> None:
    async def received() -> int:
        async with httpx.AsyncClient() as http:
            response = await http.send(http.build_request("GET", dripping), stream=True)
            shut_down(response)
            with pytest.raises(httpx.TransportError):
                await response.aread()
            return response.num_bytes_downloaded

    assert run(received()) < _PIECES
