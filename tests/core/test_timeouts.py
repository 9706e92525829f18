"""A process that is stopped and goes on does not take its own absence for another's silence."""

import asyncio
import time

import pytest

from forebay.timeouts import running_timeout


async def test_a_stop_of_the_process_is_no_timeout():
    """The loop is held up for longer than the time-out, as by SIGSTOP; the answer is there when it goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await echo_port())
    async with running_timeout(0.3):
        writer.write(b"x")
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - the process is not running
        assert await reader.readexactly(1) == b"x"
        await asyncio.sleep(0.1)
    writer.close()
    await writer.wait_closed()


async def test_a_peer_that_is_silent_times_out():
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError):
        async with running_timeout(0.1):
            await asyncio.get_running_loop().create_future()
    assert time.monotonic() - begun_s >= 0.1


async def test_a_body_that_ends_in_time_is_left_alone():
    async with running_timeout(0.05):
        pass
    await asyncio.sleep(0.2)


async def echo_port() -> int:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])
