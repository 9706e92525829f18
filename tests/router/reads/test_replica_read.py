"""One read of a partition whose workers are scripted servers."""

from __future__ import annotations

import asyncio
import json

from forebay.clock import boot_ms
from forebay.lag import Lag
from forebay.metadata import HostInfo, StreamsMetadataState
from forebay.rest.parameters import ReadParameters
from forebay.rest.scans import FRAMES_MEDIA_TYPE
from forebay.settings import RouterSettings, load_settings
from forebay.topology import StoreSpec
from forebay_router.cluster.worker_view import Report, WorkerView
from forebay_router.reads.replica_read import ReplicaRequest, ask
from forebay_router.router import Router
from tests.router.scripted_worker import answer, worker

FRAMES = FRAMES_MEDIA_TYPE.encode()
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
JSON = answer(b"{}", extra=b"content-type: application/json\r\n")


def router_of(*roles: tuple[HostInfo, str]) -> Router:
    router = Router(RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, {})))
    router.cluster.metadata = StreamsMetadataState({"s": SPEC})
    for host, role in roles:
        view = WorkerView(host, live=True, replicas={("s", 0): Report(role, Lag(0, 0, 0), boot_ms())})
        router.cluster.workers[host] = view
        router.cluster._holds(view, set())
    return router


async def frames_of(router: Router) -> tuple[int, bytes]:
    request = ReplicaRequest(SPEC, 0, b"/v1/stores/s/batch-get", b"{}", accept=FRAMES, alone=True)
    try:
        async with asyncio.timeout(10):
            found = (await ask(router, request, ReadParameters(), boot_ms() + 5_000)).answer
    finally:
        router.upstreams.close()
    return found.status, found.body


async def test_a_worker_that_does_not_know_the_routers_format_leaves_it_to_another_replica():
    understood = answer(b"frames", extra=b"content-type: %b\r\n" % FRAMES)
    async with worker(JSON) as old, worker(understood) as new:
        assert await frames_of(router_of((old, "active"), (new, "standby"))) == (200, b"frames")


async def test_where_no_replica_knows_the_routers_format_that_is_told():
    async with worker(JSON) as old:
        status, body = await frames_of(router_of((old, "active")))
    assert status == 503
    assert json.loads(body)["attempts"] == [{"host": str(old), "outcome": "answered in another version's format"}]
