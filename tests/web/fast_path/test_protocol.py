"""A connection whose peer is slow, and heads that never end."""

import asyncio
import gc
import os
import re
import socket
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from forebay.bearer_tokens import holder_of
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from forebay.wire.answers import HttpAnswer
from forebay_web.fast_path.pending import PendingResponse
from forebay_web.fast_path.protocol import FastPathProtocol, Handlers, KeyHandler, Outcome, make_protocol
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.fast_path.slow_path import SlowPeerWatch
from forebay_web.hosts import ANY_HOST
from forebay_web.limits import Limits
from tests.support.cluster import until

BODY = b"x" * 10_000
LARGE = 8 << 20
REQUEST = b"GET /v1/stores/s/keys/k HTTP/1.1\r\nHost: h\r\n\r\n"
_OPENED: list["SlowPeer"] = []
FORM = RequestTemplate("s", b"", b"", b"", b"h")


class SlowPeer(asyncio.Transport):
    """Reads nothing: what is written stays, and above 64 KiB the protocol is paused."""

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


@dataclass
class OfOneKey:
    """Handlers of reads of one key only."""

    read: KeyHandler

    def key(self, template: RequestTemplate) -> KeyHandler:
        return self.read

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        return None


def limits() -> Limits:
    return Limits(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))


def bound(handler: KeyHandler) -> type[FastPathProtocol]:
    return make_protocol("worker", OfOneKey(handler), ANY_HOST, (), lambda: False, limits())


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0)


def wiring(app: Any = nothing, **options: Any) -> tuple[Config, ServerState, dict[str, Any]]:
    config = Config(app, interface="asgi3", lifespan="off", ws="none", **options)
    config.load()
    return config, ServerState(), {}


def connected(handler: KeyHandler) -> SlowPeer:
    return opened(OfOneKey(handler))


def opened(handlers: Handlers) -> SlowPeer:
    protocol = make_protocol("worker", handlers, ANY_HOST, (), lambda: False, limits())(
        *wiring(), asyncio.get_running_loop()
    )
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    _OPENED.append(peer)
    return peer


def collecting() -> tuple[list[PendingResponse], KeyHandler]:
    """Places for answers, and the handler that makes them and answers nothing."""
    requested: list[PendingResponse] = []

    def handler(segment: bytes, protocol: FastPathProtocol) -> Outcome:
        requested.append(protocol.pending(FORM))
        return requested[-1]

    return requested, handler


@pytest.fixture
async def peer() -> SlowPeer:
    return connected(lambda segment, protocol: HttpAnswer(200, b"", BODY))


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is as long as its requests are many, however slow the machine is."""
    monkeypatch.setattr("forebay_web.fast_path.protocol._MAX_OF_A_TURN_S", 60.0)


@pytest.fixture(autouse=True)
async def no_peer_left() -> AsyncIterator[None]:
    """A task that writes to a paused peer waits on even when it is cancelled, and the test would never end."""
    _OPENED.clear()
    yield
    for peer in _OPENED:
        peer.protocol.connection_lost(None)


async def test_peer_that_reads_nothing_gets_bounded_answers(peer):
    peer.protocol.data_received(REQUEST * 1_000)
    await asyncio.sleep(0)
    assert len(peer.written) < 200_000


async def test_what_cannot_be_prepared_is_left_to_the_route():
    class Failing(OfOneKey):
        def key(self, template: RequestTemplate) -> KeyHandler:
            raise RuntimeError("a mistake")

    peer = opened(Failing(lambda segment, protocol: None))
    peer.protocol.data_received(REQUEST)
    # uvicorn's own answer to an application that gives none.
    await until(lambda: peer.written.startswith(b"HTTP/1.1 500"))


async def test_first_answers_are_sent_while_others_are_made(unhurried):
    """Answers are written in a few portions, so that a router can begin with the first."""
    written: list[int] = []

    def handler(segment, protocol):
        written.append(len(peer.written))
        return HttpAnswer(200, b"", b"x" * 500)

    peer = connected(handler)
    peer.protocol.data_received(REQUEST * 100)
    assert written[0] == 0
    assert written[50] > 0
    # Each write costs as much as some reads.
    assert len(set(written)) < 15


async def test_reads_that_take_long_leave_others_their_turn():
    """Of one connection's pipelined reads few are answered at once, all in the end."""
    clock_s = [0.0]

    def handler(segment, protocol):
        clock_s[0] += 0.0015
        return HttpAnswer(200, b"", b"x")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("forebay_web.fast_path.protocol.perf_counter", lambda: clock_s[0])
        peer = connected(handler)
        peer.protocol.data_received(REQUEST * 10)
        in_first_turn = round(clock_s[0] / 0.0015)
        await until(lambda: peer.written.count(b"HTTP/1.1 200") == 10)
    assert in_first_turn == 2


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v1/stores/s/ke",
        b"POST /v1/stores/s/batch-get HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{",
    ],
)
async def test_a_request_that_does_not_come_whole_ends_the_connection(monkeypatch, begun):
    monkeypatch.setattr("forebay_web.fast_path.slow_path._MAX_REQUEST_S", 0.05)
    peer = connected(lambda segment, protocol: HttpAnswer(200, b"", BODY))
    if begun:
        peer.protocol.data_received(begun)
    await until(lambda: peer.closed)


@pytest.mark.parametrize("request_", [REQUEST, b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"])
async def test_empty_lines_after_a_request_do_not_keep_a_connection_for_ever(monkeypatch, request_):
    monkeypatch.setattr("forebay_web.fast_path.slow_path._MAX_REQUEST_S", 0.05)
    loop = asyncio.get_running_loop()
    protocol = bound(lambda segment, protocol: HttpAnswer(200, b"", BODY))(*wiring(some), loop)
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    protocol.data_received(request_)
    await until(lambda: peer.written)
    protocol.data_received(b"\r\n")
    await until(lambda: peer.closed)


async def test_a_connection_whose_requests_were_whole_may_rest(monkeypatch):
    monkeypatch.setattr("forebay_web.fast_path.slow_path._MAX_REQUEST_S", 0.02)
    peer = connected(lambda segment, protocol: HttpAnswer(200, b"", BODY))
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


async def test_pending_large_answers_wait_for_a_slow_peer():
    """Few requests are taken from a peer that does not read their answers."""
    requested, handler = collecting()
    peer = connected(handler)
    peer.protocol.data_received(REQUEST * 1_000)
    # How large the answers are is not known yet.
    assert len(requested) == 1
    answered = 0
    while answered < len(requested):
        requested[answered].fill(HttpAnswer(200, b"", b"x" * (1 << 20)))
        answered += 1
        await asyncio.sleep(0)
    assert len(peer.written) <= 2 << 20
    assert answered == 1
    taken = 0
    while len(peer.written) and taken < 40:
        taken, peer.written = taken + 1, b""
        peer.protocol.resume_writing()
        await asyncio.sleep(0)
    # More is asked for once there is room, one at a time.
    assert len(requested) == 2


async def test_more_is_read_at_once_while_answers_are_small(unhurried):
    requested, handler = collecting()
    peer = connected(handler)
    peer.protocol.data_received(REQUEST * 1_000)
    rounds: list[int] = []
    while len(rounds) < 5:
        begun = sum(rounds)
        rounds.append(len(requested) - begun)
        for pending in requested[begun:]:
            pending.fill(HttpAnswer(200, b"", b"x"))
        await asyncio.sleep(0)
        peer.written = b""
    assert rounds == sorted(rounds)
    assert rounds[0] == 1
    assert rounds[-1] > 8


async def test_answers_that_wait_for_an_earlier_one_are_counted_until_they_are_sent_or_nobody_is_there():
    requested, handler = collecting()
    shared = limits()
    make = make_protocol("worker", OfOneKey(handler), ANY_HOST, (), lambda: False, shared)
    for end in ("sent", "left"):
        requested.clear()
        peer = SlowPeer()
        peer.protocol = protocol = make(*wiring(), asyncio.get_running_loop())
        protocol.connection_made(peer)
        protocol._max_pending = 4
        protocol.data_received(REQUEST * 4)
        for pending in requested[1:]:
            pending.fill(HttpAnswer(200, b"", b"x" * 20_000))
        assert shared.memory.used == protocol.address.held[2] == 60_000
        if end == "sent":
            requested[0].fill(HttpAnswer(200, b"", b"x"))
            await until(lambda peer=peer: peer.written.count(b"HTTP/1.1 200") == 4)
            peer.written = b""
            protocol.resume_writing()
        else:
            protocol.connection_lost(None)
            assert not protocol._pending
        assert shared.memory.used == 0


async def test_stalled_peer_is_closed_and_a_slow_one_is_not(monkeypatch):
    monkeypatch.setattr("forebay_web.fast_path.slow_path._MAX_STALL_S", 0.3)
    loop = asyncio.get_running_loop()
    # More than the kernel takes, of which it says nothing before a third of it is gone.
    kind = bound(lambda segment, protocol: HttpAnswer(200, b"", b"x" * LARGE))
    server = await loop.create_server(lambda: kind(*wiring(), loop), "127.0.0.1", 0)
    with socket.socket() as slow, socket.socket() as gone:
        for peer in (slow, gone):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.setblocking(False)
            await loop.sock_connect(peer, server.sockets[0].getsockname())
            await loop.sock_sendall(peer, REQUEST)
        received = {slow: 0, gone: 0}
        until = loop.time() + 1.2
        while loop.time() < until:
            received[slow] += len(await loop.sock_recv(slow, 2_000))
            await asyncio.sleep(0.01)
        for peer in (slow, gone):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            while received[peer] < LARGE and (piece := await loop.sock_recv(peer, 1 << 20)):
                received[peer] += len(piece)
    assert received[slow] >= LARGE
    assert received[gone] < LARGE
    server.close()
    await server.wait_closed()


async def test_unix_socket_client_is_the_connecting_user(tmp_path):
    loop, clients = asyncio.get_running_loop(), []

    def read(segment: bytes, protocol: FastPathProtocol) -> HttpAnswer:
        clients.append((protocol.address.name, protocol.client))
        return HttpAnswer(200, b"", b"here")

    kind = bound(read)
    server = await loop.create_unix_server(lambda: kind(*wiring(), loop), tmp_path / "s")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(REQUEST)
    assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
    assert clients == [(f"user {os.getuid()}", (f"user {os.getuid()}", 0))]
    writer.close()
    server.close()
    await server.wait_closed()


class ReadsOn(SlowPeer):
    """Reads some of what waits for it between any two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [9, 6, 3, 0]

    def get_write_buffer_size(self) -> int:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


async def test_finished_connection_ends_once_all_is_read():
    peer = ReadsOn()
    SlowPeerWatch(asyncio.get_running_loop(), peer).finish()
    await until(lambda: peer.closed)
    assert peer.left == [0]


async def some(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"60000")]})
    await send({"type": "http.response.body", "body": b"x" * 60_000})


@pytest.mark.parametrize(
    ("request_", "closing"),
    [
        (REQUEST, "when idle"),
        (b"GET /livez HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "at once"),
        (REQUEST, "at the end"),
        (REQUEST + b"no HTTP\r\n\r\n", "at once"),
    ],
)
async def test_stalled_peer_does_not_keep_a_connection_open(monkeypatch, request_, closing):
    """An idle or ending connection is closed although a little of the answer is unsent."""
    monkeypatch.setattr("forebay_web.fast_path.slow_path._MAX_STALL_S", 0.2)
    loop = asyncio.get_running_loop()
    config, state, lifespan = wiring(some, timeout_keep_alive=0.1 if closing == "when idle" else 60)
    kind = bound(lambda segment, protocol: HttpAnswer(200, b"", b"x" * 60_000))

    class Narrow(kind):
        def connection_made(self, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            super().connection_made(transport)

    server = await loop.create_server(lambda: Narrow(config, state, lifespan, loop), "127.0.0.1", 0)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        peer.setblocking(False)
        await loop.sock_connect(peer, server.sockets[0].getsockname())
        await loop.sock_sendall(peer, request_)
        await until(lambda: state.total_requests)
        await asyncio.sleep(0)
        (connection,) = state.connections
        assert 0 < connection.transport.get_write_buffer_size() <= 64 << 10
        if closing == "at the end":
            connection.shutdown()
        await until(lambda: not state.connections)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("request_", [REQUEST, b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"])
async def test_nothing_is_kept_of_a_connection_that_was_reset(request_):
    loop = asyncio.get_running_loop()
    config, state, lifespan = wiring(some, timeout_keep_alive=60)
    protocol = bound(lambda segment, protocol: HttpAnswer(200, b"", BODY))(config, state, lifespan, loop)
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    protocol.data_received(request_)
    await until(lambda: peer.written)
    protocol.connection_lost(ConnectionResetError())
    kept = weakref.ref(protocol)
    peer.protocol = None
    del protocol
    await until(lambda: gc.collect() >= 0 and kept() is None)


async def test_disconnect_is_delivered_despite_pipelined_requests():
    """A handler that awaits the peer's end receives `http.disconnect`."""
    noted: list[str] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        while noted[-1:] != ["http.disconnect"]:
            noted.append((await receive())["type"])

    loop = asyncio.get_running_loop()
    config, state, lifespan = wiring(waits)
    kind = bound(lambda segment, protocol: None)
    server = await loop.create_server(lambda: kind(config, state, lifespan, loop), "127.0.0.1", 0)
    with socket.socket() as peer:
        peer.setblocking(False)
        await loop.sock_connect(peer, server.sockets[0].getsockname())
        await loop.sock_sendall(peer, 3 * b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: noted)
    await until(lambda: noted[-1] == "http.disconnect")
    server.close()
    await server.wait_closed()


async def test_pipelined_requests_queue_in_bytes_only():
    """Of a segment full of requests a few are parsed; each is answered, and nothing more is read meanwhile."""
    answered = 0

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        answered += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    peer = SlowPeer()
    peer.protocol = bound(lambda segment, protocol: None)(*wiring(answer), asyncio.get_running_loop())
    peer.protocol.connection_made(peer)
    sent = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
    peer.protocol.data_received(sent * 3_000)
    most = 0
    until_s = time.monotonic() + 20
    while answered < 3_000 and time.monotonic() < until_s:
        peer.written = b""
        most = max(most, len(peer.protocol.pipeline))
        await asyncio.sleep(0)
    assert answered == 3_000
    assert most < 150
    assert not peer.closed


async def test_many_reads_in_a_segment_leave_others_their_turn():
    """A turn of the event loop is over after some of them; none is lost."""
    peer = connected(lambda segment, protocol: HttpAnswer(200, b"", b"1"))
    peer.protocol.data_received(REQUEST * 1_000)
    answered: list[int] = []
    until_s = time.monotonic() + 20
    while sum(answered) < 1_000 and time.monotonic() < until_s:
        answered.append(peer.written.count(b"HTTP/1.1 200"))
        peer.written = b""
        await asyncio.sleep(0)
    assert 1 < max(answered) <= 130
    assert sum(answered) == 1_000


async def test_whole_batch_is_handled_in_its_callback_in_order():
    """A batch behind a pending read waits for its turn."""
    taken: list[bytes] = []
    pending_responses: list[PendingResponse] = []

    class Handling:
        def key(self, template: RequestTemplate) -> KeyHandler:
            def read(segment: bytes, protocol: FastPathProtocol) -> Outcome:
                pending_responses.append(protocol.pending(template))
                return pending_responses[-1]

            return read

        def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
            taken.append(request.body)
            return HttpAnswer(200, b"", b"batch")

    peer = opened(Handling())
    batch = b"POST /v1/stores/s/batch-get HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    peer.protocol.data_received(batch)
    assert taken == [b"{}"]
    peer.protocol.data_received(REQUEST)
    peer.protocol.data_received(batch)
    assert taken == [b"{}"]
    pending_responses[0].fill(HttpAnswer(200, b"", b"key"))
    await asyncio.sleep(0)
    assert taken == [b"{}", b"{}"]
    assert re.findall(rb"\r\n\r\n(batch|key)", peer.written) == [b"batch", b"key", b"batch"]


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01 no request\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"GET /\xfc HTTP/1.1\r\n\r\n"],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_invalid_request_is_refused_after_earlier_answers(garbage, at_once):
    goes_on = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    protocol = bound(lambda segment, protocol: None)(*wiring(slow), asyncio.get_running_loop())
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    for piece in [REQUEST * 2 + garbage] if at_once else [REQUEST, REQUEST, garbage, garbage]:
        protocol.data_received(piece)
        await asyncio.sleep(0)
    assert (peer.written, peer.closed) == (b"", False)
    goes_on.set()
    await until(lambda: peer.closed)
    assert re.findall(rb"HTTP/1.1 (\d+)", peer.written) == [b"200", b"200", b"400"]


async def test_invalid_body_is_refused_during_its_request():
    """The answer is 400 although the handler is still running."""

    async def patient(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    protocol = bound(lambda segment, protocol: None)(*wiring(patient), asyncio.get_running_loop())
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    protocol.data_received(b"no length\r\n")
    assert peer.closed
    assert peer.written.startswith(b"HTTP/1.1 400")
    protocol.connection_lost(None)


class OfTokens:
    """Handlers that accept every token, and answer with more than a peer takes at once."""

    def key(self, template: RequestTemplate) -> KeyHandler:
        def read(segment: bytes, protocol: FastPathProtocol) -> Outcome:
            protocol.peer(template)
            return HttpAnswer(200, b"", bytes(1 << 20)) if segment == b"k" else None

        return read

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        return None


@pytest.mark.parametrize("segment", [b"k", b"of-the-framework"])
async def test_unread_bytes_count_towards_the_token(segment, tmp_path):
    """The address that several tokens share is not charged."""
    settings = load_settings("router", {"seeds": "127.0.0.1:1", "auth_tokens_file": str(tmp_path / "tokens")}, {})
    shared = Limits(RouterSettings(**settings))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        shared.peers.of(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 20)})

    protocol = make_protocol("worker", OfTokens(), ANY_HOST, (), lambda: False, shared)(
        *wiring(app), asyncio.get_running_loop()
    )
    peer = SlowPeer()
    peer.protocol = protocol
    protocol.connection_made(peer)
    protocol.data_received(
        b"GET /v1/stores/s/keys/%b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer a\r\n\r\n" % segment
    )
    holder = shared.peers.named(holder_of(b"Bearer a"))
    await until(lambda: holder.held[2])
    assert holder.held[2] == len(peer.written) > 1 << 20
    assert protocol.address.held[2] == 0
    assert shared.memory.used == holder.held[2]
    protocol.resume_writing()
    assert holder.held[2] == shared.memory.used == 0
    protocol.connection_lost(None)
