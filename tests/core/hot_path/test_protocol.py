"""A connection whose peer is slow, and heads that never end."""

import asyncio
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from forebay.hot_path import Slot, make_protocol
from forebay.hot_path.protocol import Handler
from forebay.rest.answers import Answer

BODY = b"x" * 10_000
REQUEST = b"GET /v1/stores/s/keys/k HTTP/1.1\r\nHost: h\r\n\r\n"


class SlowPeer(asyncio.Transport):
    """Takes nothing: what is written stays, and beyond 64 KiB the protocol is told to pause."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written += data
        if len(self.written) > 64 << 10:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected(handler: Handler) -> SlowPeer:
    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(0)

    config = Config(app, interface="asgi3", lifespan="off", ws="none")
    config.load()
    kind = make_protocol(handler, None, lambda: False)
    protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    return peer


@pytest.fixture
async def peer() -> SlowPeer:
    return connected(lambda request, protocol: Answer(200, b"", BODY))


async def test_a_peer_that_takes_no_answers_is_not_answered_without_end(peer):
    peer.protocol.data_received(REQUEST * 1_000)
    await asyncio.sleep(0)
    assert len(peer.written) < 200_000


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v1/stores/s/ke",
        b"POST /v1/stores/s/batch-get HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{",
    ],
)
async def test_a_request_that_does_not_come_whole_ends_the_connection(monkeypatch, begun):
    monkeypatch.setattr("forebay.hot_path.protocol._MOST_REQUEST_S", 0.05)
    peer = connected(lambda request, protocol: Answer(200, b"", BODY))
    if begun:
        peer.protocol.data_received(begun)
    for _ in range(1_000):
        if peer.closed:
            break
        await asyncio.sleep(0.01)
    assert peer.closed


async def test_a_connection_whose_requests_came_whole_may_rest(monkeypatch):
    monkeypatch.setattr("forebay.hot_path.protocol._MOST_REQUEST_S", 0.02)
    peer = connected(lambda request, protocol: Answer(200, b"", BODY))
    peer.protocol.data_received(REQUEST)
    await asyncio.sleep(0.06)
    assert not peer.closed


async def test_a_head_that_does_not_end_ends_the_connection(peer):
    peer.protocol.data_received(b"GET /v1/stores/s/keys/k HTTP/1.1\r\nHost: h\r\nX: ")
    for _ in range(100):
        if peer.closed:
            break
        peer.protocol.data_received(b"x" * 10_000)
    assert peer.closed
    assert peer.written.startswith(b"HTTP/1.1 400 ")
    assert b"head is longer" in peer.written


async def test_large_answers_that_come_later_wait_for_a_peer_that_takes_none_and_few_are_asked_for():
    asked: list[Slot] = []

    def handler(request, protocol):
        asked.append(protocol.slot(request))
        return asked[-1]

    peer = connected(handler)
    peer.protocol.data_received(REQUEST * 1_000)
    assert 1 <= len(asked) <= 16
    answered = 0
    while answered < len(asked):
        asked[answered].fill(Answer(200, b"", b"x" * (1 << 20)))
        answered += 1
        await asyncio.sleep(0)
    assert len(peer.written) <= 2 << 20
    assert answered <= 16
    taken = 0
    while len(peer.written) and taken < 40:
        taken, peer.written = taken + 1, b""
        peer.protocol.resume_writing()
        await asyncio.sleep(0)
    # All that was answered is sent once there is room, and more is asked for, one at a time by now.
    assert taken >= 16
    assert len(asked) == 17


async def test_a_peer_that_takes_nothing_is_let_go_and_one_that_takes_something_is_not(monkeypatch):
    monkeypatch.setattr("forebay.hot_path.protocol._MOST_STALL_S", 0.3)
    slow, gone = (connected(lambda request, protocol: Answer(200, b"", BODY)) for _ in range(2))
    for peer in (slow, gone):
        peer.protocol.data_received(REQUEST * 100)
    await asyncio.sleep(0)
    deadline = asyncio.get_running_loop().time() + 10
    while not gone.closed:
        assert asyncio.get_running_loop().time() < deadline
        slow.written = slow.written[1:]
        await asyncio.sleep(0.005)
    assert not slow.closed
