"""One read of a partition whose workers are scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from forebay.clock import boot_ms
from forebay.lag import Lag
from forebay.routing.failover_policy import ReadPolicy, Wait
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo, StreamsMetadataState
from forebay.wire.answers import HttpAnswer
from forebay.wire.parameters import ReadParameters
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE
from forebay_router.cluster.worker_view import Report, WorkerView
from forebay_router.reads.replica_read import ReplicaRead, ask, go_on
from forebay_router.reads.replica_request import FirstRequest, PartitionReplicas, ReplicaRequest
from forebay_router.router import Router
from forebay_router.upstream.connection import Connection, UpstreamClosed
from forebay_web.limits import Held, Limit, Peer
from tests.support.cluster import free_port, until
from tests.support.scripted_worker import ASKS_IDENTITY, IDENTITY, answer, worker

FRAMES = FRAMES_MEDIA_TYPE.encode()
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
JSON = answer(b"{}", extra=b"content-type: application/json\r\n")


def router_of(*roles: tuple[HostInfo, str]) -> Router:
    router = Router(
        RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1", "application_id": "test"}, {}))
    )
    router.cluster.metadata = StreamsMetadataState({"s": SPEC})
    for host, role in roles:
        view = WorkerView(host, live=True, replicas={("s", 0): Report(role, Lag(0, 0, 0), boot_ms())})
        router.cluster.workers[host] = view
        router.cluster._holds(view, set())
    return router


async def frames_of(router: Router, scan_head: bytes = b"") -> tuple[int, bytes]:
    request = ReplicaRequest(
        SPEC, 0, b"/v1/stores/s", b"{}", accept=FRAMES, dedicated_connection=True, scan_head=scan_head
    )
    try:
        async with asyncio.timeout(10):
            found = (await ask(router, request, ReadParameters(), boot_ms() + 5_000)).answer
    finally:
        router.pool.close()
    return found.status, found.body


async def test_unknown_answer_format_fails_over():
    """A worker that does not know the router's format leaves the read to another replica."""
    understood = answer(b"frames", extra=b"content-type: %b\r\n" % FRAMES)
    async with worker(JSON) as old, worker(understood) as new:
        assert await frames_of(router_of((old, "active"), (new, "standby"))) == (200, b"frames")


async def test_where_no_replica_has_the_routers_format_it_is_reported():
    async with worker(JSON) as old:
        status, body = await frames_of(router_of((old, "active")))
    assert status == 503
    assert json.loads(body)["attempts"] == [{"host": str(old), "outcome": "answered in another version's format"}]


async def test_a_page_of_another_list_fails_over():
    """As of connections that are out of step; a worker that does not say which list it is of is believed."""
    head = b"content-type: %b\r\n" % FRAMES
    other, wanted = (answer(name, extra=head + b"forebay-scan: %b\r\n" % name) for name in (b"other", b"wanted"))
    async with worker(other) as wrong, worker(wanted) as right, worker(answer(b"older", extra=head)) as older:
        scan_head = b"forebay-scan: wanted\r\n"
        for second, body in ((right, b"wanted"), (older, b"older")):
            router = router_of((wrong, "active"), (second, "standby"))
            assert await frames_of(router, scan_head) == (200, body)
        status, refusal = await frames_of(router_of((wrong, "active")), scan_head)
    assert status == 503
    assert json.loads(refusal)["attempts"][0]["outcome"] == "answered with a page of another list"


async def test_nothing_is_kept_of_a_large_answer_that_nobody_waits_for_any_more():
    """Its client has left in the middle of it. Until garbage is searched for, all of that would be held."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (FRAMES, 4 << 20)

    def kept() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, Connection | ReplicaRead)]

    gc.collect()
    gc.disable()
    try:
        async with worker(head, b"x" * (1 << 20), b"x" * (1 << 20)) as large:
            router = router_of((large, "active"))
            request = ReplicaRequest(SPEC, 0, b"/v1/stores/s", b"{}", accept=FRAMES, dedicated_connection=True)
            reading = asyncio.ensure_future(ask(router, request, ReadParameters(), boot_ms() + 5_000))
            await until(lambda: any(isinstance(one, Connection) and one._chunks for one in kept()))
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            router.pool.close()
        del reading, router
        await until(lambda: not kept())
    finally:
        gc.enable()


class Answering(asyncio.Protocol):
    """A worker's end of a connection: answers each request alike after a while, and keeps it."""

    def __init__(self, after_s: float, sent: bytes, received: list[bytes]) -> None:
        self._after_s = after_s
        self._sent = sent
        self._in_flight = received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(ASKS_IDENTITY):
            self._transport.write(IDENTITY)
            return
        self._in_flight.append(data)
        asyncio.get_running_loop().call_later(self._after_s, self._transport.write, self._sent)


@asynccontextmanager
async def answering(after_s: float, status: bytes) -> AsyncIterator[tuple[HostInfo, list[bytes]]]:
    """A worker that answers everything with one status after a while, and what it was sent."""
    received: list[bytes] = []
    extra = b"forebay-problem: unknown-store\r\n" if b"404" in status else b""
    sent = answer(b"{}", status, extra)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(after_s, sent, received), "127.0.0.1", 0)
    try:
        yield HostInfo("127.0.0.1", server.sockets[0].getsockname()[1]), received
    finally:
        server.close()


async def read_key(router: Router, timeout_ms: float = 5_000) -> tuple[int, bytes]:
    request = ReplicaRequest(SPEC, 0, b"/v1/stores/s/keys/k")
    found = (await ask(router, request, ReadParameters(), boot_ms() + timeout_ms)).answer
    return found.status, found.body


async def test_ordinary_reads_hedge_within_the_budget():
    """A worker that always takes a little longer than the hedge delay, beside one that answers at once."""
    async with answering(0.02, b"200 OK") as (slow, _), answering(0.0, b"200 OK") as (quick, _):
        router = router_of((slow, "active"), (quick, "standby"))
        router.delay = SimpleNamespace(delay_ms=5.0, observe=lambda elapsed_ms: None)
        reads = 80
        for _ in range(reads):
            for host, role in ((slow, "active"), (quick, "standby")):
                # As by a poll.
                view = router.cluster.workers[host]
                view.slow_reads, view.replicas["s", 0] = 0, Report(role, Lag(0, 0, 0), boot_ms())
            assert (await read_key(router))[0] == 200
        router.pool.close()
    # What may be hedged at once, and a tenth of the rest.
    assert 10 <= router.counts["hedges"] <= 10 + reads / 10
    assert router.counts["hedges_won"] > 0
    assert router.counts["hedges_throttled"] > 0


async def test_unknown_store_at_one_worker_fails_over():
    """One that is behind in a deployment does not know it yet."""
    async with (
        answering(0.0, b"404 Not Found") as (behind, received),
        answering(0.0, b"200 OK") as (other, _),
    ):
        router = router_of((behind, "active"), (other, "standby"))
        assert await read_key(router) == (200, b"{}")
        assert received
        router.pool.close()


async def test_workers_get_the_remaining_deadline():
    async with (
        answering(0.0, b"503 Service Unavailable") as (first, _),
        answering(0.0, b"200 OK") as (second, received),
    ):
        router = router_of((first, "active"), (second, "standby"))
        assert await read_key(router, timeout_ms=700) == (200, b"{}")
        router.pool.close()
    [line] = [line for line in received[0].split(b"\r\n") if line.startswith(b"forebay-deadline-ms: ")]
    assert 0 < int(line.split()[1]) <= 700


async def test_an_answer_that_is_received_after_the_deadline_is_late():
    """It was there in time, but this process was stopped."""

    class Stopping(Answering):
        def data_received(self, data: bytes) -> None:
            self._transport.write(answer(b"{}"))
            # Nothing runs in this loop meanwhile.
            time.sleep(0.1)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stopping(0, b"", []), "127.0.0.1", 0)
    host = HostInfo("127.0.0.1", server.sockets[0].getsockname()[1])
    router = router_of((host, "active"))
    status, body = await read_key(router, timeout_ms=50)
    router.pool.close()
    server.close()
    assert (status, json.loads(body)["type"]) == (504, "urn:forebay:problem:deadline")


async def test_after_an_overloaded_worker_each_other_costs_a_hedge():
    """Without one, the first refusal is the answer: all may have too much to do."""
    async with (
        answering(0.0, b"429 Too Many Requests") as (first, _),
        answering(0.0, b"429 Too Many Requests") as (second, _),
        answering(0.0, b"200 OK") as (third, received),
    ):
        router = router_of((first, "active"), (third, "standby"))
        assert (await read_key(router))[0] == 200
        router.pool.close()
        received.clear()
        router = router_of((first, "active"), (second, "active"), (third, "standby"))
        assert (await read_key(router))[0] == 200
        assert len(received) > 0
        router.pool.close()
        received.clear()
        router = router_of((first, "active"), (second, "active"), (third, "standby"))
        router.budget = SimpleNamespace(earn=lambda *_: None, spend=lambda: False)
        assert (await read_key(router))[0] == 429
        assert received == []
        router.pool.close()


async def continued(
    router: Router, first: HostInfo, settle: Callable[[asyncio.Future[HttpAnswer]], None]
) -> HttpAnswer:
    """The answer of a read that was sent to a worker by the fast path, and continues as an ordinary one."""
    request, parameters, now = ReplicaRequest(SPEC, 0, b"/v1/stores/s/keys/k"), ReadParameters(), boot_ms()
    policy = ReadPolicy(PartitionReplicas(router, SPEC, 0, parameters), now + 5_000)
    policy.resume(first, now - 1_000)
    future: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
    settle(future)
    actions = [Wait(0.0)] if future.done() else policy.tick(now)
    begun = FirstRequest(first, now - 1_000, future)
    try:
        return (await go_on(router, request, parameters, now + 5_000, begun, policy, actions)).answer
    finally:
        router.pool.close()


def never(future: asyncio.Future[HttpAnswer]) -> None:
    """The worker does not answer."""


async def test_a_worker_that_is_still_awaited_gets_no_second_request():
    async with (
        answering(0.0, b"200 OK") as (silent, received),
        answering(0.0, b"200 OK") as (other, _),
    ):
        found = await continued(router_of((silent, "active"), (other, "standby")), silent, never)
        assert (found.status, received) == (200, [])


async def test_first_attempt_may_still_win_after_a_hedge():
    async with answering(5.0, b"200 OK") as (other, received):
        first = HostInfo("127.0.0.1", free_port())
        router = router_of((first, "active"), (other, "standby"))

        def soon(future: asyncio.Future[HttpAnswer]) -> None:
            late_answer = HttpAnswer(200, b"forebay-role: active\r\n", b"first")
            asyncio.get_running_loop().call_later(0.1, future.set_result, late_answer)

        found = await continued(router, first, soon)
        assert (found.status, found.body) == (200, b"first")
        assert received, "nobody else was asked meanwhile"


async def test_lost_shared_connection_is_retried_at_its_worker():
    async with (
        answering(0.0, b"200 OK") as (first, received),
        answering(0.0, b"200 OK") as (other, also_requested),
    ):
        router = router_of((first, "active"), (other, "standby"))
        found = await continued(router, first, lambda future: future.set_exception(UpstreamClosed("closed")))
        assert (found.status, len(received), also_requested) == (200, 1, [])


async def test_replicas_wait_only_once_none_can_answer_at_once():
    refused = b"412 Precondition Failed"
    async with (
        answering(0.0, refused) as (first, received),
        answering(0.0, refused) as (second, also_requested),
    ):
        router = router_of((first, "active"), (second, "standby"))
        request = ReplicaRequest(SPEC, 0, b"/v1/stores/s/keys/k", dedicated_connection=True)
        found = await ask(router, request, ReadParameters(wait_ms=500), boot_ms() + 5_000)
        router.pool.close()
    assert found.answer.status == 412
    for requests in (received, also_requested):
        assert [b"\r\nforebay-wait-ms: 0\r\n" in request for request in requests] == [True, False]


async def attempts_of(router: Router) -> list[bytes]:
    """The other workers that an answer for a key names."""
    received = ReplicaRequest(SPEC, 0, b"/v1/stores/s/keys/k")
    found = (await ask(router, received, ReadParameters(), boot_ms() + 5_000)).answer
    assert found.status == 200
    router.pool.close()
    return [line for line in found.head.split(b"\r\n") if line.startswith(b"forebay-attempts")]


async def test_answer_names_other_attempts_and_their_outcome():
    gone = HostInfo("127.0.0.1", free_port())
    refusing = b"forebay-problem: lag-exceeds-tolerance\r\n"
    async with (
        worker(answer(b"{}", b"412 No", refusing)) as behind,
        worker(JSON) as near,
    ):
        assert await attempts_of(router_of((near, "active"), (behind, "standby"))) == []
        assert await attempts_of(router_of((behind, "active"), (near, "standby"))) == [
            b"forebay-attempts: %b answered 412 lag-exceeds-tolerance" % str(behind).encode()
        ]
        assert await attempts_of(router_of((gone, "active"), (near, "standby"))) == [
            b"forebay-attempts: %b ConnectionRefusedError" % str(gone).encode()
        ]
    async with worker(JSON) as silent, worker(JSON) as near:
        found = await continued(router_of((silent, "active"), (near, "standby")), silent, never)
        assert b"forebay-attempts: %b no answer yet\r\n" % str(silent).encode() in found.head


async def test_a_worker_writes_no_header_through_its_problem():
    forged = b"forebay-problem: x, 127.0.0.1:1 answered\r\n"
    async with worker(answer(b"{}", b"412 No", forged)) as lying, worker(JSON) as near:
        assert await attempts_of(router_of((lying, "active"), (near, "standby"))) == [
            b"forebay-attempts: %b answered 412" % str(lying).encode()
        ]


@pytest.mark.parametrize("full", [0, 1])
async def test_a_full_worker_is_skipped(full):
    """One at max_in_flight_per_worker; if all are, the read is refused as overloaded."""
    async with answering(0.0, b"200 OK") as (first, received), answering(0.0, b"200 OK") as (second, _):
        router = router_of((first, "active"), (second, "standby"))
        for host in (first, second)[: 1 + full]:
            for _ in range(router.settings.max_in_flight_per_worker):
                router.pool[host].permit()
        status, body = await read_key(router)
        assert received == []
        assert status == (429 if full else 200)
        assert (b'"outcome":"full"' in body) == bool(full)
        router.pool.close()


async def test_a_hedges_copy_of_a_body_is_counted_until_it_ends():
    async with answering(0.5, b"200 OK") as (slow, _), answering(0.1, b"200 OK") as (quick, _):
        router = router_of((slow, "active"), (quick, "standby"))
        router.delay = SimpleNamespace(delay_ms=5.0, observe=lambda elapsed_ms: None)
        memory = Held(Limit("memory", 64 << 20, "no memory"), Peer("a"))
        request = ReplicaRequest(SPEC, 0, b"/v1/stores/s/batch-get", b"x" * 100_000, memory=memory)
        reading = asyncio.ensure_future(ask(router, request, ReadParameters(), boot_ms() + 5_000))
        await until(lambda: router.counts["hedges"] == 1)
        assert 100_000 < memory.amount < 110_000
        assert (await reading).answer.status == 200
        await until(lambda: memory.amount == 0)
        router.pool.close()
