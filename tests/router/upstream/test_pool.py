"""Connections to workers, against a real, scripted socket server."""

import asyncio
import socket
from functools import partial

import pytest

from forebay.errors import Overloaded
from forebay.streams_metadata import HostInfo
from forebay_router.upstream.connection import Connection, InFlight, UpstreamClosed, exchange
from forebay_router.upstream.pool import ConnectionPool
from tests.support.scripted_worker import answer, worker


async def ask(host: HostInfo, count: int = 1) -> list[object]:
    pool = ConnectionPool()
    try:
        async with asyncio.timeout(5):
            connection = await pool[host].connection()
            found: list[asyncio.Future[object]] = [
                asyncio.get_running_loop().create_future() for _ in range(count)
            ]
            for future in found:
                connection.send(b"GET / HTTP/1.1\r\n\r\n", partial(settle, future), at_once=True)
            return list(await asyncio.gather(*found))
    finally:
        pool.close()


def settle(future: asyncio.Future[object], answer: object) -> bool:
    future.set_result(answer)
    return True


async def test_an_answer_in_pieces_is_put_together():
    whole = answer(b"hello")
    async with worker(whole[:10], whole[10:50], whole[50:]) as host:
        (got,) = await ask(host)
        assert (got.status, got.body, got.head) == (200, b"hello", b"forebay-role: active\r\n")


async def test_pipelined_answers_are_matched_in_order():
    async with worker(answer(b"1") + answer(b"22", b"404 Not Found"), answer(b"333")) as host:
        assert [(got.status, got.body) for got in await ask(host, 3)] == [(200, b"1"), (404, b"22"), (200, b"333")]


class Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def write(self, data: bytes) -> None:
        self._sent.append(data)

    def abort(self) -> None:
        pass


async def test_first_requests_are_sent_before_the_turn_ends():
    """The requests of one turn of the loop are sent in a few writes, so that a worker can begin."""
    sent: list[bytes] = []
    connection = Connection(InFlight())
    connection.connection_made(Wire(sent))
    requests = [b"%d;" % number for number in range(40)]
    for request in requests:
        connection.send(request, lambda answer: True, at_once=False)
    assert 0 < len(b"".join(sent)) < len(b"".join(requests))
    await asyncio.sleep(0)
    assert b"".join(sent) == b"".join(requests)
    # Each write costs as much as some reads.
    assert len(sent) <= 5


@pytest.mark.parametrize(
    "bad",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nforebay-role: active\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nforebay-role: act\0ive\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\nCache-Control: public\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nfolded: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        None,
    ],
)
async def test_invalid_answer_ends_the_connection_and_its_reads(bad):
    async with worker(answer(b"1"), bad) as host:
        got = await ask(host, 3)
        assert got[0].body == b"1"
        assert got[1:] == [None, None]


async def test_an_answer_without_a_request_closes_the_connection():
    async with worker(answer(b"1") + answer(b"2")) as host:
        pool = ConnectionPool()
        connection = await pool[host].connection()
        future = asyncio.get_running_loop().create_future()
        connection.send(b"x", partial(settle, future), at_once=True)
        assert (await future).body == b"1"
        assert connection.closed
        pool.close()


async def test_closed_connection_is_opened_anew():
    async with worker(answer(b"1", extra=b"connection: close\r\n")) as host:
        pool = ConnectionPool()
        assert (await pool[host].request(b"x")).body == b"1"
        assert (await pool[host].request(b"x")).body == b"1"
        pool.close()


async def test_a_refused_connection_is_an_error_of_the_os():
    async with worker() as host:
        pass
    with pytest.raises(ConnectionRefusedError):
        await ConnectionPool()[host].request(b"x")


async def test_a_name_that_dns_cannot_have_is_an_error_of_the_os():
    with pytest.raises(OSError, match=r"a\.\.b:1 is no address"):
        await ConnectionPool()[HostInfo("a..b", 1)].request(b"x")


async def test_a_lost_connection_fails_a_lone_request():
    async with worker(None) as host:
        with pytest.raises(UpstreamClosed):
            await ConnectionPool()[host].request(b"x", dedicated_connection=True)


async def test_unread_requests_are_resent_on_own_connections():
    """The worker closed the connection that they shared."""
    async with worker(answer(b"1", extra=b"connection: close\r\n")) as host:
        pool = ConnectionPool()
        got = await asyncio.gather(*(pool[host].request(b"x") for _ in range(10)))
        assert [one.body for one in got] == [b"1"] * 10
        assert pool.load(host) == 0
        pool.close()


async def test_permit_counts_until_released():
    """The permit of a request that never began is released too."""
    host = HostInfo("127.0.0.1", 1)
    pool = ConnectionPool()
    claims = [pool[host].permit(), pool[host].permit()]
    assert pool.load(host) == 2
    claims[0].release()
    claims[0].release()
    assert pool.load(host) == 1
    with pytest.raises(ConnectionRefusedError):
        await pool[host].request(b"x", permit=claims[1])
    assert pool.load(host) == 0


async def test_unacknowledged_bytes_end_a_connection_in_seconds():
    async with worker() as host:
        pool = ConnectionPool()
        connection = await pool[host].connection()
        link = connection._transport.get_extra_info("socket")
        assert 0 < link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 5_000
        pool.close()


async def test_only_known_header_lines_are_passed_on():
    lines = b"Set-Cookie: a=b\r\nforebay-age-ms: 5\r\nX-Other: 1\r\nCache-Control: no-store\r\n"
    async with worker(answer(b"1", extra=lines)) as host:
        (got,) = await ask(host)
        assert b"ookie" not in got.head
        assert b"X-Other" not in got.head
        assert b"forebay-age-ms: 5\r\n" in got.head


async def test_an_answer_that_is_too_long_is_refused_and_not_its_worker():
    """Its length alone is enough, before anything of it is kept; another replica would send as much."""
    async with worker(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", b"x" * 100_000) as host:
        (got,) = await ask(host)
        assert got.status == 413
        assert b"answer-too-large" in got.body


async def test_nothing_is_held_for_an_answer_that_nobody_waits_for():
    connection, sizes = Connection(InFlight()), []
    connection.connection_made(Wire([]))
    reading = asyncio.ensure_future(exchange(connection, b"x", admit=sizes.append))
    await asyncio.sleep(0)
    assert connection.load == 1
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\nx")
    assert sizes == []
    assert connection.closed


async def test_requests_that_wait_at_a_worker_are_counted_apart():
    host, pool = HostInfo("127.0.0.1", 1), ConnectionPool()
    waiting = pool[host].permit(waits=True)
    assert (pool.load(host), pool[host].waiting) == (0, 1)
    waiting.release()
    waiting.release()
    assert pool[host].waiting == 0


async def test_a_large_answer_is_read_only_if_there_is_room_for_it():
    # More than any socket hands over at once.
    whole, sizes = answer(b"x" * 2_000_000), []
    pool = ConnectionPool()

    def no_room(size_bytes: int) -> None:
        sizes.append(size_bytes)
        raise Overloaded("no room", retry_after_s=1)

    async with worker(whole) as host, asyncio.timeout(5):
        request = partial(pool[host].request, b"GET / HTTP/1.1\r\n\r\n", dedicated_connection=True)
        with pytest.raises(Overloaded, match="no room"):
            await request(admit=no_room)
        assert sizes == [len(whole)]
        assert len((await request(admit=sizes.append)).body) == 2_000_000
    pool.close()
    assert sizes == [len(whole)] * 2


@pytest.mark.parametrize("more", [b"", b"HTTP/1.1 200 OK"])
async def test_a_large_body_is_left_in_parts_and_ends_its_answer(more):
    body, parts = bytes(range(256)) * 1_000, []
    whole = answer(body)
    async with worker(whole[:100], whole[100:60_000], whole[60_000:] + more) as host:
        pool = ConnectionPool()
        try:
            got = await pool[host].request(b"GET / HTTP/1.1\r\n\r\n", dedicated_connection=True, parts=parts)
        except UpstreamClosed:
            assert more
        else:
            assert (got.status, got.body, b"".join(parts), more) == (200, b"", body, b"")
        finally:
            pool.close()
