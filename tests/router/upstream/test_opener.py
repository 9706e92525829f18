"""Connections to workers whose name has several addresses, of which some drop every packet."""

import contextlib
import time

import pytest

from forebay.streams_metadata import HostInfo
from forebay_router.upstream.pool import ConnectionPool
from tests.support.cluster import free_port
from tests.support.names import NAME, dropping, resolve
from tests.support.scripted_worker import answer, worker

__all__ = ["resolve"]

EVENT = b"event: value\ndata: 1\n\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(EVENT), EVENT)


async def test_reads_reach_the_address_that_answers(resolve):
    resolve("127.0.0.2", "127.0.0.3", "127.0.0.1")
    async with worker(answer(b"1")) as host:
        with dropping("127.0.0.2", host.port), dropping("127.0.0.3", host.port):
            pool = ConnectionPool()
            started_s = time.monotonic()
            assert (await pool[HostInfo(NAME, host.port)].request(b"x")).body == b"1"
            assert time.monotonic() < started_s + 0.9
            pool.close()


async def test_streams_reach_the_address_that_answers(resolve):
    resolve("127.0.0.2", "127.0.0.1")
    async with worker(STREAM) as host:
        with dropping("127.0.0.2", host.port):
            stream = await ConnectionPool()[HostInfo(NAME, host.port)].open_events(b"x")
            event = await stream.next()
            assert event is not None
            assert event.data == b"1"
            stream.close()


async def test_what_became_of_each_address_is_said(resolve):
    resolve("127.0.0.2", "127.0.0.3")
    with pytest.raises(OSError, match=r"127\.0\.0\.2: .*refused; 127\.0\.0\.3: .*refused"):
        await ConnectionPool()[HostInfo(NAME, free_port())].request(b"x")


async def test_addresses_that_all_drop_packets_are_given_up_in_time(resolve):
    resolve("127.0.0.2", "127.0.0.3")
    port = free_port()
    with contextlib.ExitStack() as stack:
        for host in ("127.0.0.2", "127.0.0.3"):
            stack.enter_context(dropping(host, port))
        with pytest.raises(TimeoutError):
            await ConnectionPool()[HostInfo(NAME, port)].request(b"x")
