"""A connection whose peer is slow, and heads that never end."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from forebay.hot_path import HotRequest, make_protocol
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
            self.protocol.flow.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.fixture
async def peer() -> SlowPeer:
    answered: Counter[str] = Counter()

    def handler(request: HotRequest, protocol: object) -> Answer:
        answered["all"] += 1
        return Answer(200, b"", BODY)

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


async def test_a_peer_that_takes_no_answers_is_not_answered_without_end(peer):
    peer.protocol.data_received(REQUEST * 1_000)
    await asyncio.sleep(0)
    assert len(peer.written) < 200_000


async def test_a_head_that_does_not_end_ends_the_connection(peer):
    peer.protocol.data_received(b"GET /v1/stores/s/keys/k HTTP/1.1\r\nHost: h\r\nX: ")
    for _ in range(100):
        if peer.closed:
            break
        peer.protocol.data_received(b"x" * 10_000)
    assert peer.closed
    assert peer.written.startswith(b"HTTP/1.1 400 ")
    assert b"head is longer" in peer.written
