from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from forebay.routing.failover_policy import GiveUp
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo, StreamsMetadataState
from forebay.wire.answers import HttpAnswer
from forebay_router.cluster.worker_view import WorkerView
from forebay_router.fast_path import RouterFastPath
from forebay_router.metrics import RouterMetrics
from forebay_router.reads import candidate_cache
from forebay_router.reads.candidate_cache import ReadTarget
from forebay_router.router import Router
from forebay_router.upstream.pool import WorkerConnections
from forebay_web.fast_path.pending import PendingResponse
from forebay_web.fast_path.protocol import FastPathProtocol
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.limits import Peer
from tests.support.cluster import until

PEER = Peer("a")
PROTOCOL = cast(FastPathProtocol, SimpleNamespace(address=PEER))
"""Nothing here gets further than to be counted."""


def test_candidate_cache_is_bounded(monkeypatch):
    """Clients may read with any number of different bounds."""
    monkeypatch.setattr(candidate_cache, "_MAX_CHOICES", 100)
    router = Router(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))
    spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 64)
    router.cluster.metadata = StreamsMetadataState({"s": spec})
    path = RouterFastPath(router, RouterMetrics(router))
    most = 0
    for bound in range(50):
        template = RequestTemplate("s", b"max_record_lag=%d" % bound, b"", b"", b"h")
        for key in range(100):
            # Nobody holds anything, so the route is to answer.
            assert path.key(template)(b"k%d" % key, PROTOCOL) is None
            most = max(most, sum(map(len, path._candidates._candidates.values())))
    assert 50 <= most <= 100


class SentRead:
    """A read of a router with room for one, on its way to a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[Callable[[HttpAnswer | None], bool]] = []

        class Worker:
            def send(self, request: bytes, then: Callable[[HttpAnswer | None], bool], most: int) -> bool:
                sent.append(then)
                return True

        class Client:
            address, trace = PEER, None

            def pending(self, template: RequestTemplate) -> Client:
                return self

            def peer(self, template: RequestTemplate) -> Peer:
                return PEER

            def fill(_, answer: HttpAnswer, *__: object) -> None:
                self.status.set_result(answer.status)

        settings = load_settings("router", {"seeds": "127.0.0.1:1", "max_in_flight": "1"}, {})
        self.router = Router(RouterSettings(**settings))
        spec = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
        self.router.cluster.metadata = StreamsMetadataState({"s": spec})
        self.path = RouterFastPath(self.router, RouterMetrics(self.router))
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.worker = WorkerView(HostInfo("w", 1))
        target = ReadTarget(self.worker, cast(WorkerConnections, Worker()), b"")
        monkeypatch.setattr(self.path._candidates, "choose", lambda *_: target)
        self.read = self.path.key(RequestTemplate("s", b"", b"", b"", b"h"))
        client = cast(FastPathProtocol, Client())
        assert self.read(b"k", client) is client
        (self.answer,) = sent


async def test_retried_read_keeps_its_place_in_flight(monkeypatch):
    """A read whose worker's connection ended still counts."""
    sent = SentRead(monkeypatch)
    sent.answer(None)
    # Another comes before it is asked elsewhere.
    later = sent.read(b"k", PROTOCOL)
    assert isinstance(later, HttpAnswer)
    assert later.status == 429
    # Nobody else holds anything.
    assert await asyncio.wait_for(sent.status, 10) == 503
    await until(lambda: sent.router.limits.requests.used == 0)


@pytest.mark.parametrize(
    ("answer", "silent_reads"),
    [(None, 5), (HttpAnswer(200, b"", b'{"store":"s","key":"k","value":1}'), 0)],
)
async def test_abandoned_answer_shows_that_its_worker_is_alive(monkeypatch, answer, silent_reads):
    """A failure on an abandoned request does not reset the worker's slow reads."""
    sent = SentRead(monkeypatch)
    (outstanding,) = sent.path._outstanding
    sent.path._continue_on_slow_path(outstanding, sent.path._policy_of(outstanding), [GiveUp("late")])
    assert await asyncio.wait_for(sent.status, 10) == 504
    sent.worker.slow_reads = 5
    sent.answer(answer)
    assert sent.worker.slow_reads == silent_reads


async def test_a_batch_that_fails_is_answered_and_counted(monkeypatch):
    async def failing(*_: object) -> HttpAnswer:
        raise RuntimeError("a mistake")

    class Client:
        def __init__(self) -> None:
            self.answered = asyncio.Event()

        def pending(self, template: RequestTemplate) -> PendingResponse:
            return cast(PendingResponse, self)

        address, trace = PEER, None

        def peer(self, template: RequestTemplate) -> Peer:
            return PEER

        def fill(self, answer: HttpAnswer) -> None:
            self.status = answer.status
            self.answered.set()

    monkeypatch.setattr("forebay_router.fast_path.batch_get", failing)
    router = Router(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))
    router.cluster.metadata = StreamsMetadataState(
        {"s": StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)}
    )
    metrics, client = RouterMetrics(router), Client()
    RouterFastPath(router, metrics).batch(
        RecognisedBatch(RequestTemplate("s", b"", b"", b"", b"h"), b"{}", False), cast(FastPathProtocol, client)
    )
    await asyncio.wait_for(client.answered.wait(), 10)
    samples = [(s.name, s.labels, s.value) for metric in metrics.collect() for s in metric.samples]
    assert client.status == 500
    assert ("forebay_router_results_total", {"store": "s", "status": "500"}, 1.0) in samples
