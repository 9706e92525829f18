"""Answers collected for HTTP/1.0 clients: counted until they are sent, and sent in pieces."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forebay.settings import RouterSettings, load_settings
from forebay_web.http10 import WholeAnswers
from forebay_web.limits import Limits

MEMORY_BYTES = 8 << 20
OPEN_BYTES = MEMORY_BYTES * 7 // 8
PIECE = b"x" * (1 << 20)
CLIENT = {"type": "http", "http_version": "1.0", "client": ("192.0.2.1", 1), "headers": []}


@pytest.fixture
def limits() -> Limits:
    flags = {"seeds": "127.0.0.1:1", "request_memory_bytes": str(MEMORY_BYTES)}
    return Limits(RouterSettings(**load_settings("router", flags, {})))


def listing(pieces: int) -> Callable[..., Any]:
    """An application with an answer of so many pieces, without a length."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


class Connection:
    """A client's connection: what was sent on it, and how much was held then."""

    def __init__(self, limits: Limits, reads_messages: int = 1_000) -> None:
        self._limits = limits
        self._reads_messages = reads_messages
        self.sent: list[dict[str, Any]] = []
        self.held_bytes: list[int] = []

    async def send(self, message):
        if len(self.sent) == self._reads_messages:
            await asyncio.Event().wait()
        self.sent.append(message)
        self.held_bytes.append(self._limits.memory.used)

    async def request(self, pieces: int, max_answer_bytes: int = 32 << 20, piece_ms: int = 5_000) -> None:
        answers = WholeAnswers(listing(pieces), self._limits, max_answer_bytes, piece_ms)
        await answers(dict(CLIENT), None, self.send)


async def test_a_collected_answer_is_held_until_it_is_sent(limits):
    connection = Connection(limits)
    await connection.request(4)
    head, *body = connection.sent
    assert (head["status"], head["headers"]) == (200, [(b"content-length", b"%d" % (4 * len(PIECE)))])
    assert b"".join(message["body"] for message in body) == 4 * PIECE
    assert max(len(message["body"]) for message in body) <= 256 << 10
    assert set(connection.held_bytes) == {4 * len(PIECE)}
    assert limits.memory.used == 0


@pytest.mark.parametrize(
    ("held_bytes", "max_answer_bytes", "status"), [(OPEN_BYTES, 32 << 20, 429), (0, 3 << 20, 413)]
)
async def test_an_answer_without_room_is_refused(limits, held_bytes, max_answer_bytes, status):
    limits.memory.count(limits.peers.named("192.0.2.2"), held_bytes)
    connection = Connection(limits)
    await connection.request(4, max_answer_bytes)
    assert connection.sent[0]["status"] == status
    assert sum(len(message["body"]) for message in connection.sent[1:]) < 1_000
    assert set(connection.held_bytes) == {held_bytes}


async def test_a_client_that_reads_nothing_is_cut(limits):
    connection = Connection(limits, reads_messages=3)
    await connection.request(4, piece_ms=1)
    assert connection.sent[-1]["more_body"]
    assert limits.memory.used == 0
